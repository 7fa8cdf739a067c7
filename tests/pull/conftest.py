"""Registries for one test each, and pullers that lose no time."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faulty_server import QUICK, FaultyRegistry, serving
from live import write_fake_model
from registry_servers import DockerRegistry

from modelstore.pull import Puller
from modelstore.registry.access import Access, Pace
from modelstore.registry.address import parse_registry
from modelstore.store import Store
from modelstore.transfer.transfers import Transfers


@pytest.fixture
def registry() -> Iterator[FaultyRegistry]:
    """One that does as it is told."""
    with serving() as made:
        yield made


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")


@pytest.fixture
def puller(store: Store, registry: FaultyRegistry) -> Puller:
    """May contact `registry` over http."""
    access = Access((parse_registry(f"http://{registry.host}"),), pace=Pace(5.0, 0.3))
    return Puller(store, Transfers(QUICK), access)


@pytest.fixture
def gguf(tmp_path: Path) -> Callable[..., bytes]:
    """A scripted model's file of at least so many bytes: `gguf(3_000_000, pieces=["hi"])`."""

    def make(n_bytes: int = 0, **script: Any) -> bytes:
        path = write_fake_model(tmp_path / "made.gguf", script or {"pieces": ["hello"]})
        data = path.read_bytes()
        # Behind the last tensor nobody looks; no two pieces are alike.
        return data + random.Random(n_bytes).randbytes(max(0, n_bytes - len(data)))

    return make


@pytest.fixture(scope="module")
def docker_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerRegistry]:
    """A real registry for a whole file."""
    server = DockerRegistry(tmp_path_factory.mktemp("registry"))
    yield server
    server.kill()
