"""A message of Anthropic's dialect from a daemon, whole and streamed, as one object."""

import json
from typing import Any

from live import Daemon

QUESTION = {"role": "user", "content": "Name the capital of France."}


def body_of(model: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "max_tokens": 64, "messages": [QUESTION], **fields}


def whole(daemon: Daemon, model: str, **fields: Any) -> dict[str, Any]:
    """POST /v1/messages."""
    found: dict[str, Any] = daemon.json("POST", "/v1/messages", body_of(model, **fields))
    return found


def events(daemon: Daemon, model: str, **fields: Any) -> list[dict[str, Any]]:
    """The same, event by event."""
    with daemon.open("POST", "/v1/messages", body_of(model, stream=True, **fields)) as response:
        assert response.status == 200
        blocks = response.read().decode().removesuffix("\n\n").split("\n\n")
    found = []
    for block in blocks:
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def streamed(daemon: Daemon, model: str, **fields: Any) -> dict[str, Any]:
    """What the events come to."""
    first, *others, delta, last = events(daemon, model, **fields)
    assert (delta["type"], last) == ("message_delta", {"type": "message_stop"})
    message: dict[str, Any] = first["message"]
    content = message["content"]
    for event in others:
        if event["type"] == "content_block_start":
            assert event["index"] == len(content)
            content.append(event["content_block"])
        elif event["type"] == "content_block_delta":
            piece = dict(event["delta"])
            kind = piece.pop("type").removesuffix("_delta")
            if kind == "input_json":
                content[event["index"]]["input"] = json.loads(piece["partial_json"])
            else:
                content[event["index"]][kind] += piece[kind]
    usage = delta["usage"]
    # What is said at the beginning is the whole prompt, of which some may have been cached.
    n_prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert message["usage"]["input_tokens"] == n_prompt
    return message | delta["delta"] | {"usage": usage}


BOTH = {"whole": whole, "streamed": streamed}


def text_of(message: dict[str, Any]) -> str:
    return "".join(block["text"] for block in message["content"] if block["type"] == "text")


def n_input(message: dict[str, Any]) -> int:
    """All tokens of the prompt."""
    usage = message["usage"]
    total: int = usage["input_tokens"] + usage["cache_read_input_tokens"]
    return total


def count(daemon: Daemon, model: str, **fields: Any) -> int:
    """POST /v1/messages/count_tokens."""
    body = body_of(model, **fields)
    del body["max_tokens"]
    found: int = daemon.json("POST", "/v1/messages/count_tokens", body)["input_tokens"]
    return found
