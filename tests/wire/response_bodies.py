"""Bodies of OpenAI's responses, what becomes of them, and what is written."""

import json
from typing import Any

from response_events import Streamed, checked

from localrun.core import (
    ChatPrompt,
    Choice,
    Delta,
    Done,
    Message,
    ToolCall,
    Usage,
)
from localrun.wire.responses import ResponseRequest, decode_responses
from localrun.wire.responses_writer import ResponsesWriter

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "string"}}}


def decode(**fields: Any) -> ResponseRequest:
    return decode_responses(json.dumps({"model": "m", "input": "hi", **fields}).encode())


def prompt(**fields: Any) -> ChatPrompt:
    (found,) = decode(**fields).call.prompts
    assert isinstance(found, ChatPrompt)
    return found


def messages(*items: Any, **fields: Any) -> tuple[Message, ...]:
    return prompt(input=list(items), **fields).messages


def function(name: str = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": SCHEMA, **more}


CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x": 1}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "20 C"}
CALLED = ToolCall("f", {"x": 1}, "c1")


def said(text: str, role: str = "assistant") -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": text}]}


USAGE = Usage(prompt_count=9, cached_count=4, completion_count=3)
DONE = Done("stop", USAGE)


def writer(**fields: Any) -> ResponsesWriter:
    request = decode(**fields)
    return ResponsesWriter(
        "m",
        request.echo,
        namespaces=request.namespaces,
        has_encrypted=request.has_encrypted,
        clock_s=lambda: 7.5,
        key="k",
    )


def written(*pieces: Delta, done: Done = DONE, **fields: Any) -> tuple[dict[str, Any], Streamed]:
    """The whole reply and the stream, which say the same."""
    whole = json.loads(writer(**fields).whole([Choice("", done, pieces=pieces)]))
    stream = writer(**fields)
    data = stream.begin(9) + b"".join(map(stream.delta, pieces)) + stream.final(done)
    found = checked(data)
    assert found.response == whole
    return whole, found
