"""Forms of the small real model, each written once for the whole run."""

from pathlib import Path

import pytest
from gguf_files import as_f16, split, write_adapter


@pytest.fixture(scope="session")
def smollm2_parts(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """SmolLM2 in three files."""
    parts = split(smollm2_path, tmp_path_factory.mktemp("parts"), "smol")
    assert [part.name for part in parts] == [f"smol-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    return parts


@pytest.fixture(scope="session")
def smollm2_f16(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 with matrices in F16: 270 MB."""
    return as_f16(smollm2_path, tmp_path_factory.mktemp("f16") / "smol-f16.gguf")


@pytest.fixture(scope="session")
def adapters(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """LoRA adapters for SmolLM2: one that changes nothing, one that does, and wrong ones."""
    folder = tmp_path_factory.mktemp("adapters")
    return {
        "zero": write_adapter(smollm2_path, folder / "zero.gguf", scale=0.0),
        "strong": write_adapter(smollm2_path, folder / "strong.gguf", scale=0.5),
        "other kind": write_adapter(smollm2_path, folder / "kind.gguf", scale=0.0, kind="ia3"),
        "other architecture": write_adapter(
            smollm2_path, folder / "arch.gguf", scale=0.0, architecture="gemma3"
        ),
    }
