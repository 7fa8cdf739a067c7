"""A store with a model."""

from pathlib import Path

import pytest

from modelstore.create import CreateRequest, create
from modelstore.store import Store
from tests.modelstore.gguf_writer import tiny_metadata, tiny_tensors, write_gguf


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "in put" / "tiny.gguf"
    path.parent.mkdir()
    write_gguf(path, tiny_metadata(), tiny_tensors())
    return path


@pytest.fixture
def root(tmp_path: Path, gguf: Path) -> Path:
    """A store with one model, `tiny:latest`."""
    root = tmp_path / "store"
    request = CreateRequest(
        name="tiny",
        path=gguf,
        template="{{ .Prompt }} {{ .Tools }}",
        system="Be brief.",
        licenses=("MIT",),
        parameters={"stop": ["a"], "top_k": 3},
    )
    for _ in create(Store(root), request, check_parameters=lambda parameters: parameters):
        pass
    return root
