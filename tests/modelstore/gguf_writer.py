"""Writes small GGUF files by struct packing, correct or with one field wrong at a time.

Independent of the reader under test, so that both cannot share a mistake. For use by any test:
`write_gguf(path, tiny_metadata(), tiny_tensors())` is a complete, tiny llama-shaped file.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?"} | {
    U64: "Q",
    I64: "q",
    F64: "d",
}

Tensor = tuple[str, tuple[int, ...], int, bytes]  # name, shape, type id, data


@dataclass(frozen=True)
class Typed:
    """A metadata value with an explicit type id."""

    type_id: int
    value: Any


@dataclass(frozen=True)
class Raw:
    """A metadata value whose bytes after the type id are given as they are."""

    type_id: int
    data: bytes


@dataclass(frozen=True)
class Layout:
    """Where the parts of the written file end, for tests that cut it."""

    counts_end: int
    pairs_end: int
    tensor_table_end: int
    data_offset: int
    size_bytes: int
    pair_ends: list[int] = field(default_factory=list)


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Sequence[Tensor] = (),
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    order: str = "<",
    n_tensors: int | None = None,
    n_keys: int | None = None,
    extra_pairs: bytes = b"",
    n_extra_pairs: int = 0,
    offsets: Mapping[str, int] | None = None,
    padding: int | None = None,
    drop_bytes: int = 0,
) -> Layout:
    """Writes the file and says where its parts end.

    Wrong fields: `magic`, `version`, `order` (">" for big-endian), `n_tensors`, `n_keys` (claimed
    counts), `extra_pairs` (raw bytes after the pairs, counted by `n_extra_pairs`), `offsets` (by
    tensor name), `padding` (of the data, else the metadata's alignment or 32), `drop_bytes` (cut
    off at the end).
    """
    alignment = padding or _alignment_of(metadata)
    out = bytearray(magic + struct.pack(order + "I", version))
    out += _pack(order, "Q", len(tensors) if n_tensors is None else n_tensors)
    out += _pack(order, "Q", len(metadata) + n_extra_pairs if n_keys is None else n_keys)
    counts_end = len(out)
    pair_ends = []
    for key, value in metadata.items():
        out += pair(key, value, order)
        pair_ends.append(len(out))
    out += extra_pairs
    pairs_end = len(out)
    data = bytearray()
    for name, shape, type_id, content in tensors:
        offset = (offsets or {}).get(name, len(data))
        out += text(name, order) + _pack(order, "I", len(shape))
        out += b"".join(_pack(order, "Q", n) for n in shape)
        out += _pack(order, "I", type_id) + _pack(order, "Q", offset)
        data += content + b"\0" * (-len(content) % alignment)
    tensor_table_end = len(out)
    out += b"\0" * (-len(out) % alignment)
    data_offset = len(out)
    if tensors:  # the last tensor is not padded, so that one byte less is one byte too few
        data = data[: len(data) - (-len(tensors[-1][3]) % alignment)]
    out += data
    path.write_bytes(out[: len(out) - drop_bytes])
    return Layout(
        counts_end, pairs_end, tensor_table_end, data_offset, len(out) - drop_bytes, pair_ends
    )


def pair(key: str, value: Any, order: str = "<") -> bytes:
    """One key with its type and value."""
    if isinstance(value, Raw):
        return text(key, order) + _pack(order, "I", value.type_id) + value.data
    type_id, value = (value.type_id, value.value) if isinstance(value, Typed) else _guess(value)
    return text(key, order) + _pack(order, "I", type_id) + _value(type_id, value, order)


def text(value: str | bytes, order: str = "<") -> bytes:
    """A length-prefixed string."""
    data = value if isinstance(value, bytes) else value.encode()
    return _pack(order, "Q", len(data)) + data


def array_start(type_id: int, count: int) -> bytes:
    """The bytes that announce an array, for `Raw(ARRAY, …)`."""
    return struct.pack("<IQ", type_id, count)


def tiny_metadata(**changes: Any) -> dict[str, Any]:
    """Metadata of a llama-shaped model; `changes` use `__` for the dots in keys, None removes."""
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "general.type": "model",
        "general.name": "Tiny",
        "general.file_type": 1,
        "llama.context_length": 2048,
        "llama.embedding_length": 32,
        "llama.block_count": 1,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["<s>", "</s>", "hello", "wörld"],
        "tokenizer.ggml.token_type": Typed(ARRAY, (I32, [3, 3, 1, 1])),
    }
    metadata |= {key.replace("__", "."): value for key, value in changes.items()}
    return {key: value for key, value in metadata.items() if value is not None}


def tiny_tensors(fill: int = 0) -> list[Tensor]:
    """Three tensors of 32 × 4 F32, 32 F32 and 64 × 2 Q4_0; `fill` makes contents differ."""
    return [
        ("token_embd.weight", (32, 4), 0, bytes([fill]) * 512),
        ("output_norm.weight", (32,), 0, bytes([fill]) * 128),
        ("blk.0.attn_q.weight", (64, 2), 2, bytes([fill]) * 72),
    ]


def _alignment_of(metadata: Mapping[str, Any]) -> int:
    value = metadata.get("general.alignment", 32)
    value = value.value if isinstance(value, Typed) else value
    is_usable = isinstance(value, int) and 0 < value <= 1 << 16
    return value if is_usable else 32


def _guess(value: Any) -> tuple[int, Any]:
    if isinstance(value, bool):
        return BOOL, value
    if isinstance(value, int):
        if value < 0:
            return (I32 if value >= -(1 << 31) else I64), value
        return (U32 if value < 1 << 32 else U64), value
    if isinstance(value, float):
        return F32, value
    if isinstance(value, (str, bytes)):
        return STRING, value
    item_type = _guess(value[0])[0] if value else U32
    return ARRAY, (item_type, list(value))


def _value(type_id: int, value: Any, order: str) -> bytes:
    if type_id == STRING:
        return text(value, order)
    if type_id == ARRAY:
        item_type, items = value
        start = _pack(order, "I", item_type) + _pack(order, "Q", len(items))
        return start + b"".join(_value(item_type, item, order) for item in items)
    return _pack(order, _CODES[type_id], value)


def _pack(order: str, code: str, value: Any) -> bytes:
    return struct.pack(order + code, value)
