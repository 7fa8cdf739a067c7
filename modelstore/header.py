"""A GGUF header as a value, and the labels that are derived from it.

Owns what the keys of a header mean to the store: role, size and quantization labels, template.
Made by `gguf.read_header`, which has checked everything; pure. Keys that are missing or of an
unexpected type read as absent, since their writers are strangers.
Source: GGUF specification (keys); labels as Ollama shows them.
"""

from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from modelstore.ggml_types import FILE_TYPE_LABELS, UNKNOWN_FILE_TYPE
from modelstore.labels import size_label


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
        """The product of the shape; 1 for a scalar."""
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
        """The value of any key as it was read; `default` when it is missing."""
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
        """The elements of all tensors together."""
        return sum(tensor.n_elements for tensor in self.tensors)

    @property
    def parameter_size(self) -> str:
        """The label for `parameter_count`: `134.52M`, `7B`."""
        return size_label(self.parameter_count)

    @property
    def quantization(self) -> str:
        """The label for `general.file_type`; `unknown` for F32 and when it is missing."""
        value = self.metadata.get("general.file_type")
        known = FILE_TYPE_LABELS.get(value) if isinstance(value, int) else None
        return known or UNKNOWN_FILE_TYPE

    @property
    def chat_template(self) -> str | None:
        """The Jinja source that the file brings along."""
        return self.text("tokenizer.chat_template") or None

    @property
    def is_embedding_model(self) -> bool:
        """True when the file says how its outputs are pooled, which only such models do."""
        return f"{self.architecture}.pooling_type" in self.metadata
