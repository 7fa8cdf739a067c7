"""What tests ask of a daemon that pulls."""

import fcntl
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from live import Daemon

Start = Callable[..., Daemon]
Make = Callable[..., bytes]


def pull(daemon: Daemon, model: str, **more: Any) -> list[dict[str, Any]]:
    """The lines of a streamed pull; `completed` must never fall."""
    lines, most = [], dict[str, int]()
    for line in daemon.stream("/api/pull", {"model": model, **more}):
        if digest := line.get("digest"):
            assert line.get("completed", 0) >= most.get(digest, 0)
            most[digest] = line.get("completed", 0)
        lines.append(line)
    return lines


def pulled(daemon: Daemon, model: str, **more: Any) -> list[dict[str, Any]]:
    lines = pull(daemon, model, **more)
    assert lines[-1] == {"status": "success"}, lines[-1]
    return lines


def refusal(daemon: Daemon, model: Any, **more: Any) -> tuple[int, str]:
    """(status, error) of a pull that is not streamed."""
    status, body = daemon.request("POST", "/api/pull", {"model": model, "stream": False, **more})
    return status, json.loads(body).get("error", "")


def names(daemon: Daemon) -> list[str]:
    return [model["name"] for model in daemon.json("GET", "/api/tags")["models"]]


def daemon_blobs(daemon: Daemon) -> Path:
    return daemon.log_path.parent / "models" / "blobs"


def is_unlocked(path: Path) -> bool:
    with path.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
