"""Any bytes are a header or an error of ours, in bounded memory: nothing else ever happens."""

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modelstore.errors import InvalidGGUF
from modelstore.gguf import MAX_KEPT_BYTES, Header, read_header, read_model_header
from tests.modelstore.gguf_writer import (
    ARRAY,
    BOOL,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    STRING,
    U8,
    U16,
    U32,
    U64,
    Raw,
    array_start,
    pair,
    tiny_metadata,
    tiny_tensors,
    write_gguf,
)

# The window that a header is read through, twice while it moves, and what is kept.
PEAK_LIMIT_BYTES = (8 << 20) + MAX_KEPT_BYTES

# Where mistakes are: ends of ranges, and sizes that overflow when they are added or multiplied.
EXTREMES = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "f.gguf"


@pytest.fixture(scope="module")
def valid(path: Path) -> bytes:
    write_gguf(path, tiny_metadata(), tiny_tensors())
    return path.read_bytes()


def try_to_read(path: Path, content: bytes) -> bool:
    """Whether it is a header; anything but our own error, or too much memory, fails the test."""
    path.write_bytes(content)
    is_header = False
    for arrays in (False, True):
        problem = ""
        tracemalloc.start()
        try:
            check(read_header(path, arrays=arrays), len(content))
            is_header = True
        except InvalidGGUF as error:
            problem = str(error)
        finally:
            peak_bytes = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak_bytes < PEAK_LIMIT_BYTES
        assert len(problem) < 500
    return is_header


def check(header: Header, size_bytes: int) -> None:
    """What an accepted header promises lies within the file."""
    for tensor in header.tensors:
        assert header.data_offset + tensor.offset + tensor.size_bytes <= size_bytes
    assert header.parameter_size
    assert header.role in ("model", "adapter", "projector")


many = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@many
@given(content=st.binary(max_size=600))
def test_any_bytes(path: Path, content: bytes) -> None:
    try_to_read(path, content)


@many
@given(
    version=st.sampled_from([2, 3]),
    counts=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    content=st.binary(max_size=400),
)
def test_any_bytes_after_a_good_beginning(
    path: Path, version: int, counts: tuple[int, int], content: bytes
) -> None:
    try_to_read(path, b"GGUF" + struct.pack("<IQQ", version, *counts) + content)


# What happens at which share of a file: bytes replaced, put in, or taken out.
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["replace", "insert", "remove"]),
        st.floats(0, 1),
        st.one_of(
            st.sampled_from(EXTREMES).map(lambda number: struct.pack("<Q", number)),
            st.binary(min_size=1, max_size=12),
        ),
    ),
    min_size=1,
    max_size=5,
)


@many
@given(changes=CHANGES)
def test_any_change_of_a_good_file(
    path: Path, valid: bytes, changes: list[tuple[str, float, bytes]]
) -> None:
    content = bytearray(valid)
    for kind, share, data in changes:
        at = int(share * len(content))
        end = at if kind == "insert" else at + len(data)
        content[at:end] = b"" if kind == "remove" else data
    try_to_read(path, bytes(content))


def test_every_place_of_a_good_file_with_a_number_that_is_too_large(
    path: Path, valid: bytes
) -> None:
    path.write_bytes(valid)
    header = read_header(path)
    for at in range(4, header.data_offset - 8):
        value = (2**40, 2**63, 2**64 - 1)[at % 3]
        try_to_read(path, valid[:at] + struct.pack("<Q", value) + valid[at + 8 :])


ARRAY_TYPES = {
    "u8": U8,
    "i8": I8,
    "u16": U16,
    "i16": I16,
    "u32": U32,
    "i32": I32,
    "f32": F32,
    "bool": BOOL,
    "string": STRING,
    "array": ARRAY,
    "u64": U64,
    "i64": I64,
    "f64": F64,
    "unknown": 99,
}
ONE_WRONG_FIELD: dict[str, dict[str, Any]] = {
    **{
        f"array of {count} {name}": {
            "extra_pairs": pair("a", Raw(ARRAY, array_start(kind, count))),
            "n_extra_pairs": 1,
        }
        for name, kind in ARRAY_TYPES.items()
        for count in (2**20, 2**40, 2**64 - 1)
    },
    **{f"{count} keys": {"n_keys": count} for count in EXTREMES[2:]},
    **{f"{count} tensors": {"n_tensors": count} for count in EXTREMES[2:]},
    **{f"version {n}": {"version": n} for n in (0, 1, 4, 2**16, 2**31, 2**32 - 1)},
    **{
        f"offset {offset}": {"offsets": {"output_norm.weight": offset}}
        for offset in (*EXTREMES, 511, 513)
    },
    **{f"magic {magic!r}": {"magic": magic} for magic in (b"GGML", b"gguf", b"\0\0\0\0")},
    "big-endian": {"order": ">"},
}


@pytest.mark.parametrize("fault", ONE_WRONG_FIELD)
def test_one_wrong_field_is_refused(path: Path, fault: str) -> None:
    write_gguf(path, tiny_metadata(), tiny_tensors(), **ONE_WRONG_FIELD[fault])
    assert not try_to_read(path, path.read_bytes())


@many
@given(
    parts=st.lists(
        st.tuples(st.integers(-1, 4), st.sampled_from([0, 1, 2, 3, 65535])),
        min_size=2,
        max_size=4,
    )
)
def test_parts_are_a_model_only_if_they_say_so(path: Path, parts: list[tuple[int, int]]) -> None:
    name, *tensor = tiny_tensors()[0]
    paths = [path.with_name(f"part-{place}.gguf") for place in range(len(parts))]
    for place, (number, count) in enumerate(parts):
        metadata = tiny_metadata(split__no=number, split__count=count)
        write_gguf(paths[place], metadata, [(f"{place}.{name}", *tensor)])
    if parts == [(place, len(parts)) for place in range(len(parts))]:
        assert len(read_model_header(paths).tensors) == len(parts)
    else:
        with pytest.raises(InvalidGGUF):
            read_model_header(paths)
