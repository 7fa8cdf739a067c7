"""What tests do to models in a daemon, and how much memory there is."""

import json
import os
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from live import Daemon, chat_body, wait_until

IS_FULL = os.environ.get("LOCALRUN_TEST_FULL") == "1"

Start = Callable[..., Daemon]
Fake = Callable[..., Path]

# A machine that holds one of two models, and a third one never.
MACHINE: dict[str, Any] = {"machine_bytes": 10 << 30}
HALF = {**MACHINE, "needs_bytes": 6 << 30}
TOO_MUCH = {**MACHINE, "needs_bytes": 11 << 30}


def states(daemon: Daemon) -> dict[str, str]:
    """The state of each model in memory, by the first part of its name."""
    return {model["name"].split(":")[0]: model["state"] for model in daemon.ps()}


def stop(daemon: Daemon, name: str) -> None:
    body = {"model": name, "keep_alive": 0, "stream": False}
    assert daemon.json("POST", "/api/generate", body)["done_reason"] == "unload"


def load(daemon: Daemon, name: str, **more: Any) -> None:
    daemon.json("POST", "/api/generate", {"model": name, "stream": False, **more})


def begin_to_load(daemon: Daemon, name: str, *, stream: bool) -> HTTPConnection:
    """The connection of a chat whose model is on its way in."""
    connection = daemon.connect()
    connection.request("POST", "/api/chat", json.dumps(chat_body(name, "hi", stream=stream)))
    wait_until(lambda: states(daemon), "the model to be on its way in")
    return connection


def wait_empty(daemon: Daemon) -> None:
    wait_until(lambda: not daemon.ps() and not daemon.runners(), "every model to be gone")


def n_loads(daemon: Daemon, name: str) -> int:
    return daemon.log().count(f"loading {name}:latest: ")
