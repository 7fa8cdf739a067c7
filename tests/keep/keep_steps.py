"""What tests ask of a daemon's store, through the API and on the disk."""

import json
from collections.abc import Callable
from pathlib import Path

from live import Daemon

from modelstore.digest import Digest

Start = Callable[..., Daemon]
Fake = Callable[..., Path]


def copy_in(daemon: Daemon, name: str, path: Path) -> None:
    """Registers a GGUF file by copying it into the store."""
    daemon.json("POST", "/api/create", {"model": name, "path": str(path), "stream": False})


def names(daemon: Daemon) -> list[str]:
    return sorted(model["name"] for model in daemon.json("GET", "/api/tags")["models"])


def referenced(root: Path) -> set[str]:
    """File names of the blobs that the manifests name."""
    found = set()
    for path in (root / "manifests").rglob("*"):
        if path.is_file():
            manifest = json.loads(path.read_text())
            layers = [manifest["config"], *manifest["layers"]]
            found |= {layer["digest"].replace(":", "-") for layer in layers}
    return found


def disk_use(root: Path) -> dict[str, int]:
    """Size of every file, but for the lock."""
    files = (path for path in root.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(root)): path.stat().st_size for path in files}


def manifest_path(root: Path, name: str) -> Path:
    return root / "manifests" / "registry.ollama.ai" / "library" / name / "latest"


def weights_blob(root: Path, path: Path) -> Path:
    return root / "blobs" / Digest.of(path.read_bytes()).file_name
