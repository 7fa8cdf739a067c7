"""A GGUF header as a value, and the labels that are derived from it.

Owns what the keys of a header mean to the store: role, size and quantization labels, template.
Made by `gguf.read_header`, which has checked everything; pure. Keys that are missing or of an
unexpected type read as absent, since their writers are strangers.
Source: GGUF specification (keys); labels as Ollama shows them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from modelstore.ggml_types import FILE_TYPE_LABELS, UNKNOWN_FILE_TYPE


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """Stands for an array that was skipped."""

    type: str
    count: int


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One row of the tensor table; `offset` counts from the header's `data_offset`."""

    name: str
    type_name: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int

    @property
    def n_elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    """Everything before the tensor data."""

    version: int
    metadata: dict[str, Any]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    data_offset: int
    file_size_bytes: int

    def get(self, key: str, default: Any = None) -> Any:
        return self.metadata.get(key, default)

    def text(self, key: str) -> str:
        """A string value; empty when it is missing or of another type."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else ""

    def arch_int(self, key: str) -> int | None:
        """The integer `<architecture>.<key>`, such as `context_length`; None when there is none."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def architecture(self) -> str:
        """`general.architecture`; empty when the file does not say."""
        return self.text("general.architecture")

    @property
    def role(self) -> Literal["model", "adapter", "projector"]:
        """What the file is for: weights, a LoRA adapter, or a multimodal projector."""
        kind = self.text("general.type")
        if kind == "adapter":
            return "adapter"
        if kind in ("projector", "mmproj") or self.architecture == "clip":
            return "projector"
        return "model"

    @property
    def parameter_count(self) -> int:
        return sum(tensor.n_elements for tensor in self.tensors)

    @property
    def parameter_size(self) -> str:
        """The label for `parameter_count`: `134.52M`, `7B`."""
        return size_label(self.parameter_count)

    @property
    def quantization(self) -> str:
        """The label for `general.file_type`; `unknown` for F32 and when it is missing."""
        value = self.metadata.get("general.file_type")
        return (
            FILE_TYPE_LABELS.get(value, UNKNOWN_FILE_TYPE)
            if isinstance(value, int)
            else (UNKNOWN_FILE_TYPE)
        )

    @property
    def chat_template(self) -> str | None:
        """The Jinja source that the file brings along."""
        return self.text("tokenizer.chat_template") or None

    @property
    def is_embedding_model(self) -> bool:
        return f"{self.architecture}.pooling_type" in self.metadata


def size_label(n_parameters: int) -> str:
    """A parameter count as Ollama shows it. Source: Ollama `format.HumanNumber`."""
    if n_parameters >= 1_000_000_000:
        billions = n_parameters / 1e9
        return f"{billions:.0f}B" if billions.is_integer() else f"{billions:.1f}B"
    if n_parameters >= 1_000_000:
        millions = n_parameters / 1e6
        return f"{millions:.0f}M" if millions.is_integer() else f"{millions:.2f}M"
    return f"{n_parameters / 1e3:.0f}K" if n_parameters >= 1_000 else str(n_parameters)
