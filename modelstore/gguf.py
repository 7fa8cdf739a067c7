"""GGUF headers: read within bounds, so that a stranger's file costs neither memory nor time.

Owns the decision whether a file is a GGUF file that the engine may see. Reads the header only,
through a window of fixed size rather than a memory map: a mapped file that somebody truncates kills
the process that reads it. Caches nothing. Reads no tensor data.
Source: GGUF specification, versions 2 and 3 (ggml `docs/gguf.md`); the checks on tensors follow
llama.cpp `ggml/src/gguf.cpp`, so what passes here is not refused by the engine's own parser.
"""

from collections.abc import Collection, Sequence
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from modelstore.errors import IncompleteGGUF, InvalidGGUF, shown
from modelstore.files import open_regular
from modelstore.ggml_types import (
    ARRAY,
    REMOVED_TENSOR_TYPES,
    SCALARS,
    STRING,
    TENSOR_TYPES,
    UINT32,
)
from modelstore.header import ArrayInfo, Header, TensorInfo
from modelstore.header_cursor import HeaderCursor
from modelstore.splits import in_order, joined

__all__ = ["Header", "read_header", "read_model_header"]

MAGIC = b"GGUF"

# Limits, far above every published model; beyond them a file is refused, however long it is.
MAX_KEYS = 65_536  # real headers have 20 to 200
MAX_TENSORS = 65_536  # the largest models have a few thousand
MAX_KEY_BYTES = 65_535  # the specification's own limit
MAX_TENSOR_NAME_BYTES = 63  # GGML_MAX_NAME less its terminator
MAX_DIMENSIONS = 4
MAX_KEPT_BYTES = 16 << 20  # all strings that are kept; chat templates are the longest
MAX_ARRAY_ITEMS = 2 << 20  # items with a step each; real vocabularies: 1.3 million
MAX_ALIGNMENT_BYTES = 1 << 20  # real values are 32 to 16384
_MAX_ELEMENTS = (1 << 63) - 1  # llama.cpp counts in int64

_SMALLEST_PAIR_BYTES = 8 + 4 + 1  # length of an empty key, type, one byte of value
_SMALLEST_TENSOR_BYTES = 8 + 4 + 4 + 8  # name length, dimensions, type, offset
_DEFAULT_ALIGNMENT = 32


def read_header(
    path: Path, *, arrays: bool = False, wanted: Collection[str] = frozenset()
) -> Header:
    """Reads and checks a header, including that every tensor lies within the file.

    Arrays become `ArrayInfo` unless `arrays` is set or their key is in `wanted`; then tuples.
    Raises: InvalidGGUF, IncompleteGGUF (ends too early), SourceNotAllowed (not a regular file).
    """
    try:
        with open_regular(path) as file:
            return _HeaderReader(file, arrays, wanted).read()
    except OSError as error:
        raise InvalidGGUF(f"cannot read `{path.name}`: {error.strerror}") from error


def read_model_header(
    paths: Sequence[Path], *, arrays: bool = False, wanted: Collection[str] = frozenset()
) -> Header:
    """The header of a model as a whole, from its file or from all parts of a split one, in order.

    Raises: InvalidGGUF, also for files that do not belong together, and what `read_header` does.
    """
    headers = [read_header(path, arrays=arrays, wanted=wanted) for path in paths]
    names = [path.name for path in paths]
    if in_order(names, headers) != tuple(range(len(paths))):
        raise InvalidGGUF("the parts of the split model are in the wrong order")
    return joined(headers)


class _HeaderReader:
    """Walks one header from front to back."""

    def __init__(self, file: BinaryIO, arrays: bool, wanted: Collection[str]) -> None:
        self._in = HeaderCursor(file)
        self._arrays = arrays
        self._wanted = wanted
        self._kept_bytes = 0
        self._n_items = 0
        self._alignment = _DEFAULT_ALIGNMENT

    def read(self) -> Header:
        version = self._read_version()
        n_tensors = self._in.uint64()
        n_keys = self._in.uint64()
        self._check_count("tensors", n_tensors, MAX_TENSORS, _SMALLEST_TENSOR_BYTES)
        self._check_count("metadata keys", n_keys, MAX_KEYS, _SMALLEST_PAIR_BYTES)
        metadata = self._read_metadata(n_keys)
        tensors = self._read_tensors(n_tensors)
        end = self._in.position
        data_offset = end + -end % self._alignment
        self._check_layout(tensors, data_offset)
        return Header(version, metadata, tensors, self._alignment, data_offset, self._in.size_bytes)

    def _read_version(self) -> int:
        magic = self._in.up_to(4)
        if not MAGIC.startswith(magic):
            raise InvalidGGUF("the file does not start with the GGUF magic")
        self._in.skip(4)
        version = self._in.uint32()
        if version & 0xFFFF == 0 and version:
            raise InvalidGGUF("the file is big-endian; convert it for little-endian machines")
        if version not in (2, 3):
            raise InvalidGGUF(f"version {version} is not supported; convert the model again")
        return version

    def _read_metadata(self, n_keys: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for _ in range(n_keys):
            key = self._key()
            if key in metadata:
                raise InvalidGGUF(f"the key `{shown(key)}` appears twice")
            type_id = self._in.uint32()
            metadata[key] = value = self._value(key, type_id)
            if key == "general.alignment":
                self._alignment = _checked_alignment(type_id, value)
        return metadata

    def _key(self) -> str:
        length = self._in.uint64()
        if length > MAX_KEY_BYTES:
            raise InvalidGGUF(f"a key of {length} bytes is too long; the file is corrupt")
        try:
            return self._keep(length).decode()
        except UnicodeDecodeError:
            raise InvalidGGUF("a key is not UTF-8; the file is corrupt") from None

    def _value(self, key: str, type_id: int) -> Any:
        if type_id == STRING:
            # Some published files hold broken UTF-8 in descriptions; that is no reason to refuse.
            return self._keep(self._in.uint64()).decode(errors="replace")
        if type_id == ARRAY:
            return self._array(key)
        if type_id not in SCALARS:
            raise InvalidGGUF(f"the key `{shown(key)}` has the unknown value type {type_id}")
        return self._in.unpack(SCALARS[type_id][1])

    def _array(self, key: str) -> ArrayInfo | tuple[Any, ...]:
        type_id = self._in.uint32()
        count = self._in.uint64()
        is_kept = self._arrays or key in self._wanted
        if type_id == ARRAY:
            raise InvalidGGUF(f"the key `{shown(key)}` holds an array of arrays")
        if type_id != STRING and type_id not in SCALARS:
            raise InvalidGGUF(f"the key `{shown(key)}` is an array of unknown type {type_id}")
        if is_kept or type_id == STRING:
            self._n_items += count
            if self._n_items > MAX_ARRAY_ITEMS:
                raise InvalidGGUF(
                    f"the key `{shown(key)}` claims {count} items; at most {MAX_ARRAY_ITEMS} "
                    "are allowed in a file"
                )
        if type_id == STRING:
            self._in.expect(8 * count)
            if is_kept:
                return tuple(
                    self._keep(self._in.uint64()).decode(errors="replace") for _ in range(count)
                )
            self._in.skip_strings(count)
            return ArrayInfo("string", count)
        name, layout = SCALARS[type_id]
        if is_kept:
            return self._in.unpack_many(layout, count)
        self._in.skip(layout.size * count)
        return ArrayInfo(name, count)

    def _keep(self, length: int) -> bytes:
        # The file's end comes first: a cut file should hear that it was cut.
        self._in.expect(length)
        self._kept_bytes += length
        if self._kept_bytes > MAX_KEPT_BYTES:
            raise InvalidGGUF(f"its metadata holds more than {MAX_KEPT_BYTES >> 20} MiB of text")
        return self._in.take(length)

    def _read_tensors(self, n_tensors: int) -> tuple[TensorInfo, ...]:
        tensors = []
        seen = set()
        for _ in range(n_tensors):
            tensor = self._tensor()
            if tensor.name in seen:
                raise InvalidGGUF(f"the tensor `{shown(tensor.name)}` appears twice")
            seen.add(tensor.name)
            tensors.append(tensor)
        return tuple(tensors)

    def _tensor(self) -> TensorInfo:
        length = self._in.uint64()
        if length > MAX_TENSOR_NAME_BYTES:
            raise InvalidGGUF(f"a tensor name of {length} bytes is too long; the file is corrupt")
        name = self._in.take(length).decode(errors="replace")
        n_dimensions = self._in.uint32()
        if n_dimensions > MAX_DIMENSIONS:
            raise InvalidGGUF(f"the tensor `{shown(name)}` has {n_dimensions} dimensions")
        shape = tuple(self._in.uint64() for _ in range(n_dimensions))
        type_id = self._in.uint32()
        offset = self._in.uint64()
        type_name, size_bytes = _tensor_size(name, type_id, shape)
        return TensorInfo(name, type_name, shape, offset, size_bytes)

    def _check_count(self, what: str, count: int, limit: int, smallest_bytes: int) -> None:
        if count > limit:
            raise InvalidGGUF(f"it claims {count} {what}; at most {limit} are allowed")
        self._in.expect(count * smallest_bytes)

    def _check_layout(self, tensors: tuple[TensorInfo, ...], data_offset: int) -> None:
        # Files are written without gaps and llama.cpp accepts no others, so each offset is known:
        # one comparison finds overlap, disorder and offsets outside of the file.
        expected = end = 0
        for tensor in tensors:
            if tensor.offset != expected:
                raise InvalidGGUF(
                    f"the tensor `{shown(tensor.name)}` is at offset {tensor.offset}, "
                    f"expected {expected}; the file is corrupt"
                )
            end = expected + tensor.size_bytes
            expected = end + -end % self._alignment
        if tensors and data_offset + end > self._in.size_bytes:
            raise IncompleteGGUF(self._in.size_bytes, data_offset + end)


def _tensor_size(name: str, type_id: int, shape: tuple[int, ...]) -> tuple[str, int]:
    kind = TENSOR_TYPES.get(type_id)
    if kind is None:
        label = REMOVED_TENSOR_TYPES.get(type_id, "unknown")
        raise InvalidGGUF(
            f"the tensor `{shown(name)}` has type {type_id} ({label}), which is not supported"
        )
    n_elements = prod(shape)
    if n_elements > _MAX_ELEMENTS or max(shape, default=0) > _MAX_ELEMENTS:
        raise InvalidGGUF(f"the tensor `{shown(name)}` has an impossible shape {list(shape)}")
    if (shape[0] if shape else 1) % kind.block_elements:
        raise InvalidGGUF(
            f"the tensor `{shown(name)}` has rows of {shape[0] if shape else 1} elements, which "
            f"{kind.name} cannot hold: blocks have {kind.block_elements}"
        )
    return kind.name, n_elements // kind.block_elements * kind.block_bytes


def _checked_alignment(type_id: int, value: Any) -> int:
    if type_id != UINT32:
        raise InvalidGGUF("`general.alignment` is not of type uint32")
    alignment = int(value)
    if not 0 < alignment <= MAX_ALIGNMENT_BYTES or alignment & (alignment - 1):
        raise InvalidGGUF(
            f"`general.alignment` is {alignment}; it must be a power of two, at most "
            f"{MAX_ALIGNMENT_BYTES}"
        )
    return alignment
