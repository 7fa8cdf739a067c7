"""Bodies of Anthropic's dialect, and what they become."""

import json
from typing import Any

from localrun.core import SCHEMA_PATH, ChatPrompt, Message
from localrun.wire.anthropic import MessageRequest, decode_messages

HI = [{"role": "user", "content": "hi"}]
WEATHER = {"name": "weather", "description": "Tells it", "input_schema": {"type": "object"}}
PLACES = {SCHEMA_PATH: "output_config.format.schema"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}


def decode(**fields: Any) -> MessageRequest:
    body = {"model": "m", "max_tokens": 9, "messages": HI, **fields}
    return decode_messages(json.dumps(body).encode())


def prompt(**fields: Any) -> ChatPrompt:
    (found,) = decode(**fields).call.prompts
    assert isinstance(found, ChatPrompt)
    return found


def turns(*content: Any, role: str = "user") -> tuple[Message, ...]:
    return prompt(messages=[{"role": role, "content": list(content)}]).messages


def text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


LOG = {"type": "text", "media_type": "text/plain", "data": "It broke."}
CALL = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}}


def document(source: Any, **more: Any) -> dict[str, Any]:
    return {"type": "document", "source": source, **more}
