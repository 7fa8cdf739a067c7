"""The routes that answer with text, and readers of their streams."""

import json
from typing import Any

from http_fakes import Exchange, ScriptedService, app_of

from localrun.errors import RunnerLost

HI = [{"role": "user", "content": "hi"}]
GENERATE = ("/api/generate", {"model": "m", "prompt": "hi"})
CHAT = ("/api/chat", {"model": "m", "messages": HI})
OPENAI = ("/v1/chat/completions", {"model": "m", "messages": HI, "stream": True})
COMPLETION = ("/v1/completions", {"model": "m", "prompt": "hi", "stream": True})
MESSAGES = ("/v1/messages", {"model": "m", "messages": HI, "max_tokens": 9, "stream": True})
RESPONSES = ("/v1/responses", {"model": "m", "input": "hi", "stream": True})
ROUTES = [GENERATE, CHAT, OPENAI, COMPLETION]
ALL = [*ROUTES, MESSAGES, RESPONSES]
LOST = RunnerLost("decode", "cannot open /home/somebody/models/blob-1: killed by signal 9")


def post(service: ScriptedService, tmp_path: Any, route: Any, **fields: Any) -> Exchange:
    path, body = route
    return Exchange(app_of(service, tmp_path), "POST", path, body | fields)


def lines(body: bytes) -> list[dict[str, Any]]:
    assert body.endswith(b"\n")
    assert b"\n\n" not in body
    return [json.loads(line) for line in body.splitlines()]


def events(body: bytes) -> list[str]:
    assert body.endswith(b"\n\n")
    blocks = body.decode().removesuffix("\n\n").split("\n\n")
    assert all(block.startswith("data: ") for block in blocks)
    return [block.removeprefix("data: ") for block in blocks]
