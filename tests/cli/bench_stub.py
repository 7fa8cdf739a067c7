"""A scripted server for `bench`, and readers of what it was asked and of what was printed."""

from typing import Any

from cli_stub import Reply, Run, Stub, completed

CHAT = "/v1/chat/completions"


def with_model(stub: Stub) -> Stub:
    """The stub as a daemon with the model `m`, which says three tokens."""
    resident = {"name": "m:latest", "context_length": 512, "kv": {"cells": 1000, "used_max": 250}}
    stub.on("POST", "/api/generate", Reply(body={"done": True}))
    stub.on("GET", "/api/ps", Reply(body={"models": [{"name": "other"}, resident]}))
    stub.on("GET", "/v1/models", Reply(body={"data": [{"id": "first"}, {"id": "second"}]}))
    stub.on("POST", CHAT, completed("a", "b", "c", n_prompt=20, n_cached=5))
    return stub


def widen(stub: Stub, n_tokens: int = 4096) -> None:
    """Gives the model another window."""
    resident = {"name": "m:latest", "context_length": n_tokens}
    stub.on("GET", "/api/ps", Reply(body={"models": [resident]}))


def rows(run: Run) -> list[list[str]]:
    """The cells of the first table, without its head."""
    lines = run.out.split("\n\n")[1].splitlines()
    assert lines[0].startswith("SERVER")
    return [line.split() for line in lines[1:]]


def bodies(stub: Stub) -> list[Any]:
    """The chats that were asked after the two that calibrate."""
    return [request.json for request in stub.asked(CHAT)[2:]]
