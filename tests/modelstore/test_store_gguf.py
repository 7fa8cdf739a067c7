"""GGUF headers: what is read, and that every kind of damage is refused within bounds."""

import contextlib
import os
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modelstore import gguf
from modelstore.errors import IncompleteGGUF, InvalidGGUF, SourceNotAllowed
from modelstore.ggml_types import TENSOR_TYPES
from modelstore.gguf import read_header
from modelstore.header import ArrayInfo
from tests.modelstore.gguf_writer import (
    ARRAY,
    F32,
    I32,
    STRING,
    U8,
    U32,
    Raw,
    Typed,
    array_start,
    pair,
    tiny_metadata,
    tiny_tensors,
    write_gguf,
)

# Each example overwrites the one file, so sharing it between examples is intended.
REUSED_PATH = [HealthCheck.function_scoped_fixture]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tiny.gguf"


def test_a_good_file_is_read_completely(path: Path) -> None:
    layout = write_gguf(path, tiny_metadata(), tiny_tensors())
    header = read_header(path)
    assert header.version == 3
    assert header.architecture == "llama"
    assert header.role == "model"
    assert header.get("llama.rope.freq_base") == 10000.0
    assert header.get("absent", 7) == 7
    assert header.arch_int("context_length") == 2048
    assert header.arch_int("absent") is None
    assert header.quantization == "F16"
    assert header.parameter_count == 32 * 4 + 32 + 128
    assert header.chat_template is None
    assert not header.is_embedding_model
    assert header.alignment == 32
    assert header.data_offset == layout.data_offset
    assert header.file_size_bytes == layout.size_bytes
    assert [(t.name, t.type_name, t.shape, t.offset, t.size_bytes) for t in header.tensors] == [
        ("token_embd.weight", "F32", (32, 4), 0, 512),
        ("output_norm.weight", "F32", (32,), 512, 128),
        ("blk.0.attn_q.weight", "Q4_0", (64, 2), 640, 72),
    ]


def test_arrays_are_skipped_unless_they_are_asked_for(path: Path) -> None:
    write_gguf(path, tiny_metadata(), tiny_tensors())
    header = read_header(path)
    assert header.get("tokenizer.ggml.tokens") == ArrayInfo("string", 4)
    assert header.get("tokenizer.ggml.token_type") == ArrayInfo("int32", 4)
    header = read_header(path, wanted={"tokenizer.ggml.tokens"})
    assert header.get("tokenizer.ggml.tokens") == ("<s>", "</s>", "hello", "wörld")
    assert header.get("tokenizer.ggml.token_type") == ArrayInfo("int32", 4)
    header = read_header(path, arrays=True)
    assert header.get("tokenizer.ggml.token_type") == (3, 3, 1, 1)


def test_every_scalar_type_comes_back(path: Path) -> None:
    values = {0: 255, 1: -128, 2: 65535, 3: -32768, 4: 2**32 - 1, 5: -(2**31), 6: 0.5, 7: True}
    values |= {10: 2**64 - 1, 11: -(2**63), 12: 0.1}
    metadata = {f"k{type_id}": Typed(type_id, value) for type_id, value in values.items()}
    write_gguf(path, metadata)
    assert read_header(path).metadata == {f"k{type_id}": v for type_id, v in values.items()}


def test_a_string_array_longer_than_the_window_is_passed_over(path: Path) -> None:
    tokens = [("é" * (i % 90)) for i in range(60_000)]
    write_gguf(path, tiny_metadata(big=tokens, after="still here"), tiny_tensors())
    header = read_header(path)
    assert path.stat().st_size > 4 << 20
    assert header.get("big") == ArrayInfo("string", 60_000)
    assert header.get("after") == "still here"
    assert read_header(path, wanted={"big"}).get("big") == tuple(tokens)


def test_a_long_numeric_array_costs_no_memory(path: Path) -> None:
    big = Raw(ARRAY, array_start(U8, 32 << 20) + bytes(32 << 20))
    write_gguf(path, tiny_metadata(big=big), tiny_tensors())
    tracemalloc.start()
    header = read_header(path)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert header.get("big") == ArrayInfo("uint8", 32 << 20)
    assert peak_bytes < 6 << 20


@pytest.mark.parametrize("type_id", sorted(TENSOR_TYPES))
def test_every_tensor_type_has_its_size(path: Path, type_id: int) -> None:
    kind = TENSOR_TYPES[type_id]
    shape = (kind.block_elements * 2, 3)
    write_gguf(path, tiny_metadata(), [("t", shape, type_id, bytes(kind.block_bytes * 6))])
    (tensor,) = read_header(path).tensors
    assert (tensor.type_name, tensor.size_bytes) == (kind.name, kind.block_bytes * 6)


def test_broken_utf8_in_a_value_is_no_reason_to_refuse(path: Path) -> None:
    write_gguf(path, tiny_metadata(note=b"caf\xe9"), tiny_tensors())
    assert read_header(path).get("note") == "caf\ufffd"


def test_a_file_cut_at_any_byte_is_incomplete(path: Path) -> None:
    layout = write_gguf(path, tiny_metadata(), tiny_tensors())
    data = path.read_bytes()
    for size_bytes in range(layout.size_bytes):
        path.write_bytes(data[:size_bytes])
        with pytest.raises(IncompleteGGUF) as caught:
            read_header(path)
        assert caught.value.size_bytes == size_bytes
        assert size_bytes < caught.value.needed_bytes <= layout.size_bytes


def test_one_missing_byte_is_named_exactly(path: Path) -> None:
    layout = write_gguf(path, tiny_metadata(), tiny_tensors(), drop_bytes=1)
    needed = layout.size_bytes + 1
    text = f"invalid GGUF: file is incomplete: has {layout.size_bytes} bytes, needs {needed}"
    with pytest.raises(IncompleteGGUF) as caught:
        read_header(path)
    assert str(caught.value) == text


HOSTILE: dict[str, dict[str, Any]] = {
    "n_keys": {"n_keys": 2**40},
    "n_tensors": {"n_tensors": 2**40},
    "all_ones": {"n_keys": 2**64 - 1, "n_tensors": 2**64 - 1},
    "string_length": {
        "extra_pairs": pair("s", Raw(STRING, struct.pack("<Q", 2**31))),
        "n_extra_pairs": 1,
    },
    "key_length": {"extra_pairs": struct.pack("<Q", 2**40) + b"x" * 16, "n_extra_pairs": 1},
    "string_array": {
        "extra_pairs": pair("a", Raw(ARRAY, array_start(STRING, 2**40))),
        "n_extra_pairs": 1,
    },
    "number_array": {
        "extra_pairs": pair("a", Raw(ARRAY, array_start(F32, 2**62))),
        "n_extra_pairs": 1,
    },
    "string_in_array": {
        "extra_pairs": pair("a", Raw(ARRAY, array_start(STRING, 1) + b"\xff" * 8)),
        "n_extra_pairs": 1,
    },
    "nested_array": {
        "extra_pairs": pair("a", Raw(ARRAY, array_start(ARRAY, 1) + array_start(U8, 1) + b"\1")),
        "n_extra_pairs": 1,
    },
}


@pytest.mark.parametrize("arrays", [False, True])
@pytest.mark.parametrize("fault", HOSTILE)
def test_huge_claims_are_refused_quickly_and_in_little_memory(
    path: Path, fault: str, arrays: bool
) -> None:
    write_gguf(path, {"general.architecture": "llama"}, **HOSTILE[fault])
    started = time.perf_counter()
    tracemalloc.start()
    with pytest.raises(InvalidGGUF) as caught:
        read_header(path, arrays=arrays)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(caught.value).startswith("invalid GGUF: ")
    assert time.perf_counter() - started < 1.0
    assert peak_bytes < 4 << 20


@pytest.mark.parametrize(
    "alignment",
    [Typed(I32, 32), Typed(STRING, "32"), Typed(U32, 0), Typed(U32, 3), Typed(U32, 2**30)],
)
def test_a_bad_alignment_is_refused(path: Path, alignment: Typed) -> None:
    write_gguf(path, tiny_metadata(general__alignment=alignment), tiny_tensors())
    with pytest.raises(InvalidGGUF, match=r"general\.alignment"):
        read_header(path)


def test_a_valid_alignment_moves_the_data(path: Path) -> None:
    write_gguf(path, tiny_metadata(general__alignment=4096), tiny_tensors())
    header = read_header(path)
    assert header.alignment == 4096
    assert [tensor.offset for tensor in header.tensors] == [0, 4096, 8192]
    assert header.data_offset % 4096 == 0


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"magic": b"GGML"}, "magic"),
        ({"version": 1}, "version 1"),
        ({"version": 4}, "version 4"),
        ({"version": 0}, "version 0"),
        ({"order": ">"}, "big-endian"),
        ({"offsets": {"output_norm.weight": 0}}, "offset 0, expected 512"),
        ({"offsets": {"output_norm.weight": 544}}, "offset 544, expected 512"),
        ({"offsets": {"token_embd.weight": 2**60}}, "expected 0"),
        ({"offsets": {"blk.0.attn_q.weight": 2**64 - 1}}, "expected 640"),
        (
            {"extra_pairs": pair("general.name", "again"), "n_extra_pairs": 1},
            "`general.name` appears twice",
        ),
        ({"extra_pairs": pair("odd", Raw(13, b"\0" * 8)), "n_extra_pairs": 1}, "value type 13"),
        (
            {"extra_pairs": pair("odd", Raw(ARRAY, array_start(77, 0))), "n_extra_pairs": 1},
            "unknown type 77",
        ),
        (
            {"extra_pairs": struct.pack("<Q", 2) + b"\xff\xfe" + b"\0" * 8, "n_extra_pairs": 1},
            "not UTF-8",
        ),
    ],
)
def test_each_wrong_field_is_named(path: Path, wrong: dict[str, Any], problem: str) -> None:
    write_gguf(path, tiny_metadata(), tiny_tensors(), **wrong)
    with pytest.raises(InvalidGGUF) as caught:
        read_header(path)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("tensor", "problem"),
    [
        (("t", (32,), 43, b""), "type 43 (unknown)"),
        (("t", (32,), 4, b""), "Q4_2"),
        (("t", (32,), 2**32 - 1, b""), "not supported"),
        (("t", (33,), 2, b""), "blocks have 32"),
        (("t", (), 2, b""), "blocks have 32"),
        (("t", (1, 1, 1, 1, 1), 0, b""), "5 dimensions"),
        (("t", (2**40, 2**40), 0, b""), "impossible shape"),
        (("t", (2**64 - 1,), 0, b""), "impossible shape"),
        (("t" * 64, (1,), 0, b""), "64 bytes is too long"),
        (("t", (2**40,), 0, b""), "file is incomplete"),
    ],
)
def test_each_wrong_tensor_is_refused(path: Path, tensor: Any, problem: str) -> None:
    write_gguf(path, tiny_metadata(), [tensor])
    with pytest.raises(InvalidGGUF) as caught:
        read_header(path)
    assert problem in str(caught.value)


def test_a_tensor_name_may_appear_only_once(path: Path) -> None:
    write_gguf(path, tiny_metadata(), [("t", (8,), 0, bytes(32))] * 2)
    with pytest.raises(InvalidGGUF, match="`t` appears twice"):
        read_header(path)


def test_too_much_text_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "MAX_KEPT_BYTES", 1 << 20)
    write_gguf(path, tiny_metadata(a="x" * 600_000, b="y" * 600_000), tiny_tensors())
    with pytest.raises(InvalidGGUF, match="MiB of text"):
        read_header(path)


def test_too_many_strings_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "MAX_ARRAY_ITEMS", 100)
    write_gguf(path, tiny_metadata(a=["x"] * 60, b=["y"] * 60), tiny_tensors())
    with pytest.raises(InvalidGGUF, match="at most 100"):
        read_header(path)


def test_an_empty_file_and_a_text_file_are_told_apart(path: Path) -> None:
    path.write_bytes(b"")
    with pytest.raises(IncompleteGGUF):
        read_header(path)
    path.write_bytes(b"GGhello, this is a text")
    with pytest.raises(InvalidGGUF, match="magic"):
        read_header(path)


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it in the ordinary way would never return
    for name in ("pipe", ".", "missing"):
        with pytest.raises(SourceNotAllowed) as caught:
            read_header(tmp_path / name)
        assert str(tmp_path.parent) not in str(caught.value)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_flipped_bytes_never_cause_another_kind_of_error(path: Path, data: st.DataObject) -> None:
    layout = write_gguf(path, tiny_metadata(), tiny_tensors())
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, layout.tensor_table_end - 1))
        content[at] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    for arrays in (False, True):
        with contextlib.suppress(InvalidGGUF):
            assert read_header(path, arrays=arrays).file_size_bytes == layout.size_bytes


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(junk=st.binary(max_size=400), n_keys=st.integers(0, 2**64 - 1))
def test_random_bytes_after_the_magic_never_cause_another_kind_of_error(
    path: Path, junk: bytes, n_keys: int
) -> None:
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, n_keys) + junk)
    with pytest.raises(InvalidGGUF):
        read_header(path)


def test_the_small_real_model_is_read(smollm2_path: Path) -> None:
    header = read_header(smollm2_path)
    assert (header.architecture, header.parameter_size, header.quantization) == (
        "llama",
        "134.52M",
        "Q4_1",
    )
    assert header.arch_int("context_length") == 8192
    assert header.get("tokenizer.ggml.tokens") == ArrayInfo("string", 49_152)
    assert "im_start" in (header.chat_template or "")
    assert len(header.tensors) == 272


def test_a_large_vocabulary_is_passed_over_quickly(gemma3_path: Path) -> None:
    read_header(gemma3_path)
    started = time.perf_counter()
    header = read_header(gemma3_path)
    elapsed_s = time.perf_counter() - started
    assert header.get("tokenizer.ggml.tokens") == ArrayInfo("string", 262_144)
    assert header.chat_template is None
    assert elapsed_s < 0.5  # about 20 ms alone on a machine; the bound leaves room for neighbours
