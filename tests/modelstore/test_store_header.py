"""What the keys of a GGUF header mean to the store: role, labels, template."""

from pathlib import Path
from typing import Any

import pytest

from modelstore.gguf import read_header
from modelstore.labels import size_label
from tests.modelstore.gguf_writer import (
    tiny_metadata,
    tiny_tensors,
    write_gguf,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tiny.gguf"


@pytest.mark.parametrize(
    ("changes", "role"),
    [
        ({}, "model"),
        ({"general__type": None}, "model"),
        ({"general__type": "adapter"}, "adapter"),
        ({"general__type": "mmproj"}, "projector"),
        ({"general__type": "projector"}, "projector"),
        ({"general__type": None, "general__architecture": "clip"}, "projector"),
    ],
)
def test_the_role_follows_type_and_architecture(
    path: Path, changes: dict[str, Any], role: str
) -> None:
    write_gguf(path, tiny_metadata(**changes), tiny_tensors())
    assert read_header(path).role == role


@pytest.mark.parametrize(
    ("file_type", "label"),
    [
        (None, "unknown"),
        (0, "unknown"),
        (3, "Q4_1"),
        (15, "Q4_K_M"),
        (999, "unknown"),
        ("x", "unknown"),
    ],
)
def test_the_quantization_label_follows_the_file_type(
    path: Path, file_type: Any, label: str
) -> None:
    write_gguf(path, tiny_metadata(general__file_type=file_type), tiny_tensors())
    assert read_header(path).quantization == label


@pytest.mark.parametrize(
    ("count", "label"),
    [
        (0, "0"),
        (999, "999"),
        (1_000, "1K"),
        (134_515_008, "134.52M"),
        (135_000_000, "135M"),
        (7_000_000_000, "7B"),
        (6_738_415_616, "6.7B"),
    ],
)
def test_size_labels_follow_the_reference(count: int, label: str) -> None:
    assert size_label(count) == label


def test_template_and_pooling_are_found(path: Path) -> None:
    metadata = tiny_metadata(tokenizer__chat_template="{{ messages }}", llama__pooling_type=1)
    write_gguf(path, metadata, tiny_tensors())
    header = read_header(path)
    assert header.chat_template == "{{ messages }}"
    assert header.is_embedding_model


def test_keys_of_an_unexpected_type_read_as_absent(path: Path) -> None:
    metadata = tiny_metadata(general__architecture=5, tokenizer__chat_template=["a", "b"])
    write_gguf(path, metadata, tiny_tensors())
    header = read_header(path)
    assert header.architecture == ""
    assert header.chat_template is None
