"""One daemon for all tests of vectors over HTTP, with real models."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from live import Daemon, running, write_fake_model


@pytest.fixture(scope="session")
def vectors_daemon(
    minilm_folder: Path, smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Daemon]:
    """Serves `minilm` (converted from safetensors), `smol`, and `rank`, which is scripted."""
    folder = tmp_path_factory.mktemp("vectors")
    with running(folder, CONTEXT_LENGTH=1024) as daemon:
        modelfile = folder / "Modelfile"
        modelfile.write_text(f"FROM {minilm_folder}\n")
        code, _, error = daemon.cli("create", "minilm", "-f", str(modelfile))
        assert code == 0, error
        daemon.create("smol", smollm2_path)
        daemon.create("rank", write_fake_model(folder / "rank.gguf", {"pooling": "rank"}))
        yield daemon
