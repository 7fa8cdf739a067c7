"""LlamaIndex with its package for Ollama. Prints what worked."""

import asyncio
import json
import os
from typing import Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.ollama import Ollama
from pydantic import BaseModel

URL = os.environ["OLLAMA_HOST"]
QUESTION = [ChatMessage(role="user", content="Name the capital of France.")]


def model(variable: str, **more: object) -> Ollama:
    return Ollama(
        model=os.environ[variable],
        base_url=URL,
        temperature=0,
        context_window=2048,
        request_timeout=120,
        **more,
    )


def works(feature: str) -> None:
    print(json.dumps({"feature": feature, "outcome": "yes"}), flush=True)


def chat() -> None:
    short = model("MODEL", additional_kwargs={"num_predict": 16})
    answer = short.chat(QUESTION).message.content
    assert "Paris" in answer
    works("chat")
    pieces = list(short.stream_chat(QUESTION))
    assert len(pieces) > 2
    assert "".join(piece.delta for piece in pieces) == answer == pieces[-1].message.content
    works("chat, streamed")
    talk = [ChatMessage(role="system", content="Be brief."), *QUESTION]
    talk += [ChatMessage(role="assistant", content="Paris."), ChatMessage(role="user", content="?")]
    assert short.chat(talk).message.content
    works("chat with history")
    assert "Paris" in short.complete("Name the capital of France.").text
    works("completion")
    pieces = list(short.stream_complete("Name the capital of France."))
    assert "Paris" in pieces[-1].text
    works("completion, streamed")


async def at_once() -> None:
    short = model("MODEL", additional_kwargs={"num_predict": 16})
    answers = await asyncio.gather(*(short.achat(QUESTION) for _ in range(3)))
    assert all("Paris" in answer.message.content for answer in answers)
    works("several requests at once")


def weather(city: str) -> str:
    """Tells the weather of a city."""
    return f"sunny in {city}"


def tools() -> None:
    caller = model("CALLER")
    answer = caller.chat_with_tools([FunctionTool.from_defaults(weather)], chat_history=QUESTION)
    (call,) = caller.get_tool_calls_from_response(answer)
    assert (call.tool_name, call.tool_kwargs) == ("weather", {"city": "Oslo"})
    works("tools")


class Capital(BaseModel):
    """A capital."""

    is_large: bool
    country: Literal["France", "Italy"]


def structured() -> None:
    asked = PromptTemplate("Name the capital of {country}.")
    found = model("MODEL").structured_predict(Capital, asked, country="France")
    assert isinstance(found, Capital)
    works("structured output")


def thinking() -> None:
    answer = model("THINKER", thinking=True).chat(QUESTION).message
    thoughts = [block.content for block in answer.blocks if block.block_type == "thinking"]
    assert [text.strip() for text in thoughts] == ["It is in France."]
    assert answer.content == "Paris."
    works("thinking")


chat()
asyncio.run(at_once())
tools()
structured()
thinking()
