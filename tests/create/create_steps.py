"""What tests of `create` ask a live daemon, in a few words."""

import hashlib
from pathlib import Path
from typing import Any

from live import Client

# Enough text for two models to differ, short enough for a slow machine.
_N_TOKENS = 12


def upload(daemon: Client, path: Path) -> str:
    """The digest of the file, which is a blob of the daemon afterwards."""
    data = path.read_bytes()
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    assert daemon.request("POST", f"/api/blobs/{digest}", data)[0] in (200, 201)
    return digest


def make(daemon: Client, name: str, *, status: int = 200, **fields: Any) -> Any:
    """Creates a model and returns the reply, which must have this status."""
    body = {"model": name, "stream": False, **fields}
    return daemon.json("POST", "/api/create", body, status=status)


def refusal(daemon: Client, **fields: Any) -> str:
    """Why a model is not made; nothing is listed that was not there before."""
    before = daemon.json("GET", "/api/tags")
    text: str = make(daemon, "refused", status=400, **fields)["error"]
    assert daemon.json("GET", "/api/tags") == before
    return text


def greedy(daemon: Client, model: str, prompt: str = "The capital of France is") -> str:
    """What the model says to a raw prompt at temperature 0."""
    options = {"temperature": 0, "num_predict": _N_TOKENS, "num_ctx": 256}
    body = {"model": model, "prompt": prompt, "raw": True, "stream": False, "options": options}
    text: str = daemon.json("POST", "/api/generate", body)["response"]
    assert text
    return text


def row(daemon: Client, model: str) -> dict[str, Any]:
    """The model's row in the list."""
    rows = daemon.json("GET", "/api/tags")["models"]
    found: dict[str, Any] = next(one for one in rows if one["name"] == f"{model}:latest")
    return found
