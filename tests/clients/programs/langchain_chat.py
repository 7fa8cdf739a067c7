"""langchain-ollama: a chat model as chains and agents use it. Prints what worked."""

import asyncio
import json
import os
from collections.abc import Callable
from typing import Literal

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
from ollama import ResponseError
from pydantic import BaseModel

MODEL, CALLER, THINKER = (os.environ[name] for name in ("MODEL", "CALLER", "THINKER"))
QUESTION = [HumanMessage("Name the capital of France.")]
OPTIONS = {"model": MODEL, "temperature": 0, "num_predict": 16}


def works(feature: str) -> None:
    print(json.dumps({"feature": feature, "outcome": "yes"}), flush=True)


def chat() -> None:
    model = ChatOllama(**OPTIONS, validate_model_on_init=True)
    answer = model.invoke(QUESTION)
    assert "Paris" in answer.content
    assert answer.usage_metadata["output_tokens"] > 0
    assert answer.response_metadata["done_reason"] in ("stop", "length")
    works("chat")
    pieces = list(model.stream(QUESTION))
    assert "".join(piece.content for piece in pieces) == answer.content
    assert len(pieces) > 2
    works("chat, streamed")
    talk = [SystemMessage("Be brief."), *QUESTION, AIMessage("Paris."), HumanMessage("And Italy?")]
    assert model.invoke(talk).content
    works("chat with history")
    stopped = ChatOllama(**OPTIONS, stop=["Paris"]).invoke(QUESTION)
    assert "Paris" not in stopped.content
    works("limits and stop strings")


async def chat_async() -> None:
    model = ChatOllama(**OPTIONS)
    answers = await model.abatch([QUESTION] * 3)
    assert all("Paris" in answer.content for answer in answers)
    works("several requests at once")


def text() -> None:
    model = OllamaLLM(**OPTIONS)
    assert "Paris" in model.invoke("Name the capital of France.")
    works("completion")
    assert "Paris" in "".join(model.stream("Name the capital of France."))
    works("completion, streamed")


def errors() -> None:
    refusal = refused(lambda: ChatOllama(model="no-such-model").invoke(QUESTION))
    assert isinstance(refusal, ResponseError)
    assert refusal.status_code == 404
    assert "not found" in refusal.error
    works("errors with status and text")


def refused(attempt: Callable[[], object]) -> Exception | None:
    try:
        attempt()
    except Exception as error:  # noqa: BLE001 - whatever class the client makes of a refusal
        return error
    return None


def weather(city: str) -> str:
    """Tells the weather of a city."""
    return f"sunny in {city}"


def tools() -> None:
    model = ChatOllama(model=CALLER).bind_tools([weather])
    answer = model.invoke(QUESTION)
    (call,) = answer.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Oslo"})
    assert answer.content.strip() == "Let me look."
    # What was called and what came of it go back as history.
    result = ToolMessage(weather(**call["args"]), tool_call_id=call["id"])
    assert model.invoke([*QUESTION, answer, result]).tool_calls
    works("tools")
    pieces = list(model.stream(QUESTION))
    (streamed,) = (call for piece in pieces for call in piece.tool_calls)
    assert (streamed["name"], streamed["args"]) == ("weather", {"city": "Oslo"})
    assert "".join(piece.content for piece in pieces) == answer.content
    works("tools, streamed")


class Capital(BaseModel):
    """A capital."""

    is_large: bool
    country: Literal["France", "Italy"]


def structured() -> None:
    model = ChatOllama(model=MODEL, temperature=0)
    model = model.with_structured_output(Capital, method="json_schema")
    assert isinstance(model.invoke(QUESTION), Capital)
    works("structured output")


def thinking() -> None:
    answer = ChatOllama(model=THINKER, reasoning=True).invoke(QUESTION)
    assert answer.additional_kwargs["reasoning_content"].strip() == "It is in France."
    assert answer.content == "Paris."
    works("thinking")


def embeddings() -> None:
    embedder = OllamaEmbeddings(model=os.environ["EMBEDDER"])
    vectors = embedder.embed_documents(["A cat.", "A kitten.", "The stock market."])
    (near, far) = (sum(a * b for a, b in zip(vectors[0], v, strict=True)) for v in vectors[1:])
    assert near > far
    assert len(embedder.embed_query("A cat.")) == 384
    works("embeddings")


chat()
asyncio.run(chat_async())
text()
errors()
tools()
structured()
thinking()
embeddings()
