"""Safetensors files, read lazily: names and places first, a tensor's values when they are wanted.

Owns the bounds: a header may claim anything, so every size is checked against the file before
memory is taken for it. Runs nothing of a file, which is what the format is for.
Source: the safetensors format (an 8-byte length, JSON, tensor data; header of 100 MB at most).
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from localrun.runner.jobs import Refused

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_MAX_TENSORS = 200_000  # the largest models with experts have some 50,000
_MAX_DIMENSIONS = 4
_ITEM_TYPES: dict[str, "np.dtype[Any]"] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}

Array = NDArray[Any]


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file: `dtype` is the file's word for it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int

    def check_type(self) -> None:
        """Raises Refused for values that are no floats; files have a few that nobody needs."""
        if self.dtype not in _ITEM_TYPES:
            raise Refused(
                f"the tensor `{_shown(self.name)}` is of type {_shown(self.dtype)}; supported are "
                f"{', '.join(_ITEM_TYPES)}"
            )

    def load(self) -> Array:
        """Its values as float16 or float32, of the file's own memory where that is possible."""
        kind = _ITEM_TYPES[self.dtype]
        items: Array = np.memmap(self.path, kind, "r", offset=self.offset, shape=self.shape or (1,))
        items = items.reshape(self.shape)
        if self.dtype != "BF16":
            return items
        # A BF16 is the upper half of an F32.
        widened: Array = (items.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return widened


def read_tensors(folder: Path) -> dict[str, StoredTensor]:
    """All tensors of the safetensors files of a folder. Raises Refused."""
    paths = sorted(folder.glob("*.safetensors"))
    _check_complete(folder, {path.name for path in paths})
    found: dict[str, StoredTensor] = {}
    for path in paths:
        for tensor in _read_file(path):
            if tensor.name in found:
                raise Refused(f"the tensor `{_shown(tensor.name)}` is in two files")
            found[tensor.name] = tensor
    if len(found) > _MAX_TENSORS:
        raise Refused(f"the files have {len(found)} tensors; at most {_MAX_TENSORS} are read")
    return found


def _check_complete(folder: Path, names: set[str]) -> None:
    for index in folder.glob("*.safetensors.index.json"):
        try:
            parts = set(json.loads(index.read_bytes())["weight_map"].values())
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise Refused(f"`{index.name}` is damaged") from error
        missing = sorted(str(part) for part in parts if part not in names)
        if missing:
            raise Refused(f"`{_shown(missing[0])}` is missing, which `{index.name}` names")


def _read_file(path: Path) -> list[StoredTensor]:
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        n_header = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if n_header > min(size_bytes - _LENGTH_BYTES, _MAX_HEADER_BYTES):
            raise Refused(f"`{path.name}` is incomplete, or is no safetensors file")
        header = file.read(n_header)
    try:
        raw: dict[str, msgspec.Raw] = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(one, type=_Entry) for name, one in raw.items()}
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Refused(f"the header of `{path.name}` is damaged") from error
    start = _LENGTH_BYTES + n_header
    return [_checked(path, name, entry, start, size_bytes) for name, entry in entries.items()]


def _checked(path: Path, name: str, entry: _Entry, start: int, size_bytes: int) -> StoredTensor:
    what = f"the tensor `{_shown(name)}` of `{path.name}`"
    if len(entry.shape) > _MAX_DIMENSIONS or min(entry.shape, default=1) < 1:
        raise Refused(f"{what} has an impossible shape")
    first, last = entry.data_offsets
    kind = _ITEM_TYPES.get(entry.dtype)
    n_bytes = math.prod(entry.shape) * kind.itemsize if kind else last - first
    if not 0 <= first <= last or last - first != n_bytes:
        raise Refused(f"{what} has another size than its shape")
    if start + last > size_bytes:
        raise Refused(f"{what} lies beyond the end of the file, which is incomplete")
    return StoredTensor(name, entry.dtype, tuple(entry.shape), path, start + first)


def _shown(text: str) -> str:
    """A text from a file, fit for a message."""
    return "".join(c if c.isprintable() else "?" for c in text[:80])
