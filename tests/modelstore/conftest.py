"""An empty store and a tiny model file for every test of the store."""

from pathlib import Path

import pytest

from modelstore.store import Store
from tests.modelstore.gguf_writer import tiny_metadata, tiny_tensors, write_gguf


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def gguf_path(tmp_path: Path) -> Path:
    path = tmp_path / "Tiny Model.gguf"
    write_gguf(path, tiny_metadata(), tiny_tensors())
    return path
