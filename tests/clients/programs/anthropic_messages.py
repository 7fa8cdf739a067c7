"""Anthropic's own client for Python, with its helpers for streams, tools and types.

Prints what worked.
"""

import asyncio
import json
import os
from typing import Any, Literal

import anthropic
from pydantic import BaseModel

MODEL, CALLER, THINKER = (os.environ[name] for name in ("MODEL", "CALLER", "THINKER"))
QUESTION: list[Any] = [{"role": "user", "content": "Name the capital of France."}]
# This version has no argument for the temperature any more.
SHORT: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 16,
    "messages": QUESTION,
    "extra_body": {"temperature": 0},
}
WEATHER: Any = {
    "name": "weather",
    "description": "Tells the weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
    },
}

client = anthropic.Anthropic(base_url=os.environ["OLLAMA_HOST"], api_key="unused", max_retries=0)


def works(feature: str) -> None:
    print(json.dumps({"feature": feature, "outcome": "yes"}), flush=True)


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


class Capital(BaseModel):
    """A capital."""

    is_large: bool
    country: Literal["France", "Italy"]


def chat() -> None:
    whole = client.messages.create(**SHORT)
    assert "Paris" in text_of(whole)
    assert (whole.stop_reason, whole.role, whole.model) == ("end_turn", "assistant", MODEL)
    assert whole._request_id
    works("chat")
    with client.messages.stream(**SHORT) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert text == text_of(message) == text_of(whole)
    n_input = message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
    assert n_input == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
    assert message.usage.output_tokens == whole.usage.output_tokens
    works("chat, streamed")
    counted = client.messages.count_tokens(model=MODEL, messages=QUESTION)
    assert counted.input_tokens == n_input
    works("tokens of a prompt")


def conversation() -> None:
    before = client.messages.count_tokens(model=MODEL, messages=QUESTION).input_tokens
    brief = client.messages.create(**SHORT, system=[{"type": "text", "text": "Be brief."}])
    assert brief.usage.input_tokens + (brief.usage.cache_read_input_tokens or 0) != before
    works("system text")
    turns = [*QUESTION, {"role": "assistant", "content": brief.content}, *QUESTION]
    longer = client.messages.create(**SHORT | {"messages": turns})
    assert longer.usage.input_tokens + (longer.usage.cache_read_input_tokens or 0) > before
    works("chat with history")


def limits() -> None:
    stopped = client.messages.create(**SHORT, stop_sequences=["Paris"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "Paris")
    assert "Paris" not in text_of(stopped)
    short = client.messages.create(**SHORT | {"max_tokens": 2})
    assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 2)
    works("limits and stop strings")


def tools() -> None:
    request = {"model": CALLER, "max_tokens": 99, "tools": [WEATHER]}
    called = client.messages.create(**request, messages=QUESTION)
    text, call = called.content
    assert text.text == "Let me look."
    assert (call.name, call.input, called.stop_reason) == ("weather", {"city": "Oslo"}, "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    turns = [*QUESTION, called.to_param(), {"role": "user", "content": [result]}]
    assert client.messages.create(**request, messages=turns).stop_reason == "tool_use"

    @anthropic.beta_tool
    def weather(city: str) -> str:
        """Tells the weather.

        Args:
            city: where
        """
        cities.append(city)
        return f"sunny in {city}"

    cities: list[str] = []
    runner = client.beta.messages.tool_runner(
        model=CALLER, max_tokens=99, messages=QUESTION, tools=[weather], max_iterations=3
    )
    assert len(list(runner)) == 3
    assert cities[:2] == ["Oslo", "Oslo"]
    works("tools")
    with client.messages.stream(**request, messages=QUESTION) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_message()
    assert "input_json" in kinds
    assert [block.type for block in streamed.content] == ["text", "tool_use"]
    assert streamed.content[1].input == {"city": "Oslo"}
    works("tools, streamed")
    forced = client.messages.create(
        **SHORT | {"max_tokens": 99}, tools=[WEATHER], tool_choice={"type": "any"}
    )
    assert {block.type for block in forced.content} == {"tool_use"}
    works("forced tool call")


def structured() -> None:
    parsed = client.messages.parse(**SHORT | {"max_tokens": 99}, output_format=Capital)
    assert isinstance(parsed.parsed_output, Capital)
    with client.messages.stream(**SHORT | {"max_tokens": 99}, output_format=Capital) as stream:
        assert isinstance(stream.get_final_message().parsed_output, Capital)
    works("structured output")


def thinking() -> None:
    request: Any = {
        "model": THINKER,
        "max_tokens": 2048,
        "messages": QUESTION,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }
    thought, text = client.messages.create(**request).content
    assert (thought.thinking, text.text) == ("It is in France.", "Paris.")
    with client.messages.stream(**request) as stream:
        streamed = stream.get_final_message()
    assert [block.type for block in streamed.content] == ["thinking", "text"]
    turns = [*QUESTION, streamed.to_param(), *QUESTION]
    assert client.messages.create(**request | {"messages": turns}).stop_reason == "end_turn"
    # A model that cannot think is not told to.
    assert client.messages.create(**request | {"model": MODEL, "max_tokens": 4}).content
    works("thinking")


def refusal(kind: type[Any], **fields: Any) -> Any:
    """The error, of that class, that a request with these fields ends in."""
    try:
        client.messages.create(**SHORT | fields)
    except kind as error:
        return error
    raise AssertionError("nothing was refused")


def errors() -> None:
    missing = refusal(anthropic.NotFoundError, model="no-such-model")
    assert missing.type == "not_found_error"
    assert missing.api_message == "model 'no-such-model' not found"
    assert missing.request_id
    assert "top_p" in str(refusal(anthropic.BadRequestError, extra_body={"top_p": 3}))
    works("errors with status and text")


def abort() -> None:
    story = [{"role": "user", "content": "Tell me a long story."}]
    with client.messages.stream(**SHORT | {"max_tokens": 1000, "messages": story}) as stream:
        next(iter(stream.text_stream))
    works("abort of a stream")


def models() -> None:
    found = {model.id: model for model in client.models.list(limit=1)}
    assert (found[MODEL].type, found[MODEL].display_name) == ("model", MODEL)
    works("list models")
    assert client.models.retrieve(MODEL).created_at == found[MODEL].created_at
    works("show a model")


async def several() -> None:
    async with anthropic.AsyncAnthropic(
        base_url=os.environ["OLLAMA_HOST"], api_key="unused"
    ) as many:
        messages = await asyncio.gather(*(many.messages.create(**SHORT) for _ in range(4)))
    assert all("Paris" in text_of(message) for message in messages)
    works("several requests at once")


chat()
conversation()
limits()
tools()
structured()
thinking()
errors()
abort()
models()
asyncio.run(several())
client.close()
