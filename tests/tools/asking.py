"""One question in both dialects, whole and streamed, and what each says in the same words."""

import json
from dataclasses import dataclass
from typing import Any

from live import Daemon

# An integer that no 64 bits hold, and a call with a number that JSON's readers do not have.
LARGE = 123456789012345678901234567890
TOO_LARGE = '{"name": "weather", "arguments": {"city": 1e400}}'

QUESTION = {"role": "user", "content": "What is the weather in Oslo?"}


@dataclass
class Said:
    """What an answer consists of, in whatever dialect; `calls` are (name, arguments)."""

    text: str
    thinking: str
    calls: list[tuple[str, Any]]
    reason: str


def tool(name: str = "weather", **properties: Any) -> dict[str, Any]:
    """A definition; without properties it takes a city."""
    properties = properties or {"city": {"type": "string"}}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": name, "description": "Tells the weather", "parameters": parameters}
    return {"type": "function", "function": function}


def _native(message: dict[str, Any], reason: str) -> Said:
    functions = [call["function"] for call in message.get("tool_calls", ())]
    return Said(
        message["content"],
        message.get("thinking", ""),
        [(function["name"], function["arguments"]) for function in functions],
        reason,
    )


def _openai(message: dict[str, Any], reason: str) -> Said:
    functions = [call["function"] for call in message.get("tool_calls", ())]
    assert message.get("reasoning", "") == message.get("reasoning_content", "")
    return Said(
        message["content"] or "",
        message.get("reasoning", ""),
        [(function["name"], json.loads(function["arguments"])) for function in functions],
        reason,
    )


def native_whole(daemon: Daemon, **body: Any) -> Said:
    """POST /api/chat."""
    reply = daemon.json("POST", "/api/chat", _body(body) | {"stream": False})
    return _native(reply["message"], reply["done_reason"])


def native_stream(daemon: Daemon, **body: Any) -> Said:
    """The same, line by line; checks their order and that calls have lines of their own."""
    *lines, last = daemon.stream("/api/chat", _body(body))
    messages = [line["message"] for line in lines]
    assert [line["done"] for line in lines] == [False] * len(lines)
    assert last["message"] == {"role": "assistant", "content": ""}
    kinds = ["thinking" in message for message in messages]
    assert kinds == sorted(kinds, reverse=True), "thinking comes first"
    for message in messages:
        n_kinds = ("thinking" in message) + ("tool_calls" in message) + bool(message["content"])
        assert n_kinds <= 1, message
    gathered: dict[str, Any] = {
        "content": "".join(message["content"] for message in messages),
        "thinking": "".join(message.get("thinking", "") for message in messages),
        "tool_calls": [call for message in messages for call in message.get("tool_calls", ())],
    }
    indexes = [call["function"]["index"] for call in gathered["tool_calls"]]
    assert indexes == list(range(len(indexes)))
    return _native(gathered, last["done_reason"])


def openai_whole(daemon: Daemon, **body: Any) -> Said:
    """POST /v1/chat/completions."""
    choice = daemon.json("POST", "/v1/chat/completions", _body(body))["choices"][0]
    return _openai(choice["message"], choice["finish_reason"])


def openai_stream(daemon: Daemon, **body: Any) -> Said:
    """The same, event by event."""
    with daemon.open("POST", "/v1/chat/completions", _body(body) | {"stream": True}) as response:
        assert response.status == 200
        blocks = response.read().decode().removesuffix("\n\n").split("\n\n")
    assert blocks.pop() == "data: [DONE]"
    choices = [json.loads(block.removeprefix("data: "))["choices"][0] for block in blocks]
    deltas = [choice["delta"] for choice in choices]
    assert [i for i, delta in enumerate(deltas) if "role" in delta] == [0]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert [call["index"] for call in calls] == list(range(len(calls)))
    assert all(call["type"] == "function" and call["id"] for call in calls)
    gathered: dict[str, Any] = {"tool_calls": calls}
    for name in ("content", "reasoning", "reasoning_content"):
        gathered[name] = "".join(delta.get(name, "") for delta in deltas)
    return _openai(gathered, choices[-1]["finish_reason"])


NATIVE = {"native, whole": native_whole, "native, streamed": native_stream}
OPENAI = {"openai, whole": openai_whole, "openai, streamed": openai_stream}
ALL = NATIVE | OPENAI


def _body(fields: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [QUESTION], **fields}
