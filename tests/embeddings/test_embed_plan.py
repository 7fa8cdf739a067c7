"""What a forward for vectors takes, and the context that it runs in: pure functions."""

import math
import struct

import pytest
from msgspec import structs

from localrun.runner.engine.embedder import plan_rows
from localrun.runner.engine.layout import ModelFacts, embedding_shape, side_shape
from localrun.runner.ggml.logits import finished
from localrun.spec import LoadSpec

SPEC = LoadSpec("m.gguf", "sha256:0", n_ctx=4096, n_parallel=8, n_threads=2)


@pytest.mark.parametrize(
    ("n_left", "n_rows", "can_split", "expected"),
    [
        ([3, 4, 5], 512, False, [3, 4, 5]),  # all that waits
        ([3, 4, 5], 8, False, [3, 4]),  # in their order, as far as there are rows
        ([3, 6, 1], 8, False, [3]),  # nobody goes ahead of a longer one
        ([20, 4], 8, False, [20]),  # one that must not be split is as long as it is
        ([8, 4], 8, True, [8]),
        ([20, 4], 8, True, [8]),  # a long one goes on in the next forward
        ([9, 4], 8, True, [7]),  # and never with a single row
        ([4, 20], 8, True, [4]),  # its first part is alone
        ([1] * 70, 512, False, [1] * 64),
        ([2], 1, True, [1]),
    ],
)
def test_rows_of_a_forward(
    n_left: list[int], n_rows: int, can_split: bool, expected: list[int]
) -> None:
    assert plan_rows(n_left, n_rows, 64, can_split=can_split, most=512) == expected


def vector(*numbers: float, n_dims: int = 0, is_score: bool = False) -> list[float]:
    data = finished(struct.pack(f"{len(numbers)}f", *numbers), n_dims, is_score=is_score)
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def test_a_vector_has_length_1_after_it_was_cut() -> None:
    assert vector(3, 4, 12) == pytest.approx([3 / 13, 4 / 13, 12 / 13])
    assert vector(3, 4, 12, n_dims=2) == pytest.approx([0.6, 0.8])
    assert vector(3, 4, 12, n_dims=9) == vector(3, 4, 12)
    assert vector(0, 0) == [0, 0]
    assert vector(7, is_score=True) == [7]
    assert vector(1, math.nan) == vector(1, math.inf) == vector(math.nan, is_score=True) == []


def facts(**fields: object) -> ModelFacts:
    return ModelFacts(1, **fields)  # type: ignore[arg-type]


def test_a_text_that_sees_ahead_has_a_forward_as_long_as_its_window() -> None:
    shape = embedding_shape(SPEC, facts(n_vocab=30_000, pooling="mean", is_causal=False), 2048)
    assert (shape.n_ctx, shape.n_rows, shape.n_cells) == (2048, 2048, 2048)
    assert not shape.can_split


@pytest.mark.parametrize(
    ("embed_batch", "is_on_cpu", "n_ctx", "n_rows", "n_shared"),
    [
        (None, True, 512, 512, 256),
        (None, False, 512, 512, 512),
        (None, True, 4096, 4096, 256),  # a long text has a forward, several have a smaller one
        (64, True, 512, 512, 64),
        (1024, True, 512, 1024, 1024),
        (8, True, 16, 32, 8),
    ],
)
def test_texts_share_as_many_rows_as_pay(
    embed_batch: int | None, is_on_cpu: bool, n_ctx: int, n_rows: int, n_shared: int
) -> None:
    spec = structs.replace(SPEC, embed_batch=embed_batch)
    known = facts(n_vocab=30_000, pooling="mean", is_causal=False, is_on_cpu=is_on_cpu)
    shape = embedding_shape(spec, known, n_ctx)
    assert (shape.n_rows, shape.n_shared) == (n_rows, n_shared)


@pytest.mark.parametrize(
    ("embed_batch", "n_ctx", "n_rows", "n_rows_beside"),
    [(65, 512, 512, 128), (513, 512, 576, 256), (None, 700, 704, 256), (4096, 512, 2240, 256)],
)
def test_rows_are_equally_many_for_each_text(
    embed_batch: int | None, n_ctx: int, n_rows: int, n_rows_beside: int
) -> None:
    spec = structs.replace(SPEC, embed_batch=embed_batch)
    known = facts(n_vocab=30_522, pooling="mean", is_causal=False, is_on_cpu=True)
    shape = embedding_shape(spec, known, n_ctx)
    beside = side_shape(shape)
    assert (shape.n_ctx, shape.n_rows, beside.n_rows) == (n_ctx, n_rows, n_rows_beside)
    assert beside.n_shared <= (embed_batch or 256)


def test_a_text_that_shares_no_forward_has_all_its_rows() -> None:
    known = facts(n_vocab=30_000, is_quantized=True, is_on_cpu=True)
    assert embedding_shape(SPEC, known, 4096).n_shared == 512


def test_a_text_that_sees_back_only_goes_on_behind_its_first_rows() -> None:
    shape = embedding_shape(SPEC, facts(n_vocab=30_000), 4096)
    assert (shape.n_ctx, shape.n_rows, shape.n_cells) == (4096, 512, 4608)
    assert shape.can_split


def test_logits_that_llama_cpp_reserves_bound_the_rows_of_a_forward() -> None:
    # 262,144 numbers of 4 bytes are 1 MiB a row.
    large = facts(n_vocab=1 << 18)
    assert embedding_shape(SPEC, large, 4096).n_rows == 256
    # One that must not be split is cut where its logits would take more than 1 GiB.
    ahead = facts(n_vocab=1 << 18, pooling="mean", is_causal=False)
    shape = embedding_shape(SPEC, ahead, 4096)
    assert (shape.n_ctx, shape.n_rows) == (1024, 1024)


@pytest.mark.parametrize(
    ("is_quantized", "is_on_cpu", "n_texts"),
    [(True, True, 1), (True, False, 64), (False, True, 64), (False, False, 64)],
)
def test_quantized_texts_share_no_forward_on_a_cpu(
    is_quantized: bool, is_on_cpu: bool, n_texts: int
) -> None:
    known = facts(n_vocab=100, is_quantized=is_quantized, is_on_cpu=is_on_cpu)
    assert embedding_shape(SPEC, known, 512).n_ids == n_texts
