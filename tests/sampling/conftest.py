"""One daemon for a file of this folder, and the scripted models that it serves."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from live import Daemon, running, write_fake_model

# Names the model, which is made when it is asked for first.
Scripted = Callable[..., str]


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon whose windows have a hundred tokens."""
    folder = tmp_path_factory.mktemp("sampling")
    with running(folder, CONTEXT_LENGTH=100, MAX_LOADED_MODELS=100) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def scripted(shared_daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Scripted:
    """Makes a model of `shared_daemon` from a script, `scripted(pieces=["a"])`; equal ones once."""
    folder: Path = tmp_path_factory.mktemp("scripts")
    names: dict[str, str] = {}

    def make(**script: Any) -> str:
        key = repr(sorted(script.items()))
        if key not in names:
            name = names[key] = f"m{len(names)}"
            shared_daemon.create(name, write_fake_model(folder / f"{name}.gguf", script))
        return names[key]

    return make
