"""Cells of llama.cpp for real: saved, restored, forked, filled to the last; misuse never ends the
process."""

from collections.abc import Callable
from typing import Any

import pytest
from real_engine import (
    BOTH,
    N_CTX,
    Bench,
    assert_equal_to_near_ties,
    greedy,
    long_prompts,
    open_pool,
    prefill,
)

from localrun.core import SamplingParams
from localrun.runner.engine.layout import Shape
from localrun.runner.llama import LlamaModel


@BOTH
def test_a_restored_state_is_the_one_that_was_saved(model: LlamaModel, kv_layout: Any) -> None:
    model.open(Shape(kv_layout, N_CTX, 4, 4, 4 * N_CTX, None))
    (prompt,) = long_prompts(model, 1)
    assert prefill(model, 0, prompt) == 0
    want = greedy(model, 0, 5)
    model.trim(0, len(prompt))
    saved = bytes(model.save(0))
    assert len(saved) == model.state_bytes(0)
    model.trim(0, 0)
    assert model.restore(0, saved)
    assert model.n_positions(0) == len(prompt)
    assert bytes(model.save(0)) == saved
    model.trim(0, 0)
    assert model.restore(2, saved)  # under another id as well
    model.trim(2, len(prompt) - 1)
    assert prefill(model, 2, prompt[-1:], len(prompt) - 1) == 0
    assert greedy(model, 2, 5) == want


def test_a_pool_takes_exactly_its_cells_and_goes_on_after_a_trim(model: LlamaModel) -> None:
    bench = Bench(model, n_parallel=4, kv_layout="unified", kv_pool=256)
    prompts = long_prompts(model, 3, 60)
    ledger = bench.engine._cache.ledger
    for kv_id, prompt in enumerate(prompts):
        assert prefill(model, kv_id, prompt) == 0
        ledger.grow(kv_id, len(prompt))
    model.copy(0, 3, 50)
    ledger.fork(0, 3, 50)
    for _ in range(3):  # interleaved, as decodes are
        assert (
            model.forward([5] * 4, [*[ledger.length(n) for n in range(4)]], range(4), [1] * 4) == 0
        )
        for kv_id in range(4):
            ledger.grow(kv_id, 1)
    n_free = ledger.n_free
    assert n_free == 256 - 3 * 60 - 4 * 3
    assert prefill(model, 3, [5] * n_free, ledger.length(3)) == 0
    ledger.grow(3, n_free)
    assert prefill(model, 1, [5], ledger.length(1)) == 1
    assert model.n_positions(1) == ledger.length(1)  # nothing has changed
    model.trim(0, 0)
    ledger.trim(0, 0)
    assert ledger.n_free == 60 + 3 - 50
    assert prefill(model, 1, [5] * ledger.n_free, ledger.length(1)) == 0
    ledger.grow(1, ledger.n_free)
    assert prefill(model, 2, [5], ledger.length(2)) == 1


def test_a_state_that_does_not_fit_a_full_pool_changes_nothing(model: LlamaModel) -> None:
    open_pool(model, 256, n_ids=3)
    prompts = long_prompts(model, 2, 130)
    assert prefill(model, 0, prompts[0]) == 0
    saved = model.save(0)
    assert model.restore(1, saved) is False
    assert model.n_positions(1) == 0
    assert prefill(model, 2, prompts[1][:126]) == 0
    assert model.restore(1, saved) is False
    assert (model.n_positions(0), model.n_positions(2)) == (130, 126)
    model.trim(2, 0)
    model.trim(0, 0)
    assert model.restore(1, saved) is True
    assert model.n_positions(1) == 130


def test_a_fork_says_what_a_fresh_prefill_says(model: LlamaModel) -> None:
    open_pool(model, 1024)
    (prompt,) = long_prompts(model, 1)
    assert prefill(model, 0, prompt) == 0
    want = greedy(model, 0, 10)
    model.copy(0, 1, 100)
    assert model.n_positions(1) == 100
    assert prefill(model, 1, prompt[100:], 100) == 0
    got = greedy(model, 1, 10)
    model.trim(0, 0)  # the fork keeps what it shared
    assert prefill(model, 1, got[-1:], model.n_positions(1)) == 0
    assert_equal_to_near_ties(model, [prompt], [got], [want])


@pytest.mark.parametrize("kv_id", [-1, 4, 1000])
def test_ids_that_would_abort_the_process_are_refused(model: LlamaModel, kv_id: int) -> None:
    open_pool(model, 256)
    calls: list[Callable[[], object]] = [
        lambda: model.trim(kv_id, 0),
        lambda: model.n_positions(kv_id),
        lambda: model.copy(kv_id, 0, 1),
        lambda: model.copy(0, kv_id, 1),
        lambda: model.state_bytes(kv_id),
        lambda: model.save(kv_id),
        lambda: model.restore(kv_id, b"state"),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="is not below 4"):
            call()


def test_split_cells_have_one_owner(model: LlamaModel) -> None:
    model.open(Shape("split", N_CTX, 2, 2, 2 * N_CTX, None))
    assert prefill(model, 0, [1, 2, 3]) == 0
    with pytest.raises(ValueError, match="unified"):
        model.copy(0, 1, 2)


@pytest.mark.parametrize("state", [b"", b"no state", b"\0" * 5000])
def test_bytes_that_are_no_state_are_not_restored(model: LlamaModel, state: bytes) -> None:
    open_pool(model, 256)
    assert model.restore(0, state) is False
    assert model.n_positions(0) == 0


@pytest.mark.parametrize(
    "rows",
    [
        ([], [], [], []),
        ([1] * 513, list(range(513)), [0] * 513, [False] * 513),
        ([1], [0], [4], [True]),
        ([1], [0], [-1], [True]),
        ([1] * 5, list(range(5)), [0] * 5, [True] * 5),
    ],
    ids=["no rows", "too many rows", "id too high", "negative id", "too many outputs"],
)
def test_rows_that_would_abort_the_process_are_refused(model: LlamaModel, rows: Any) -> None:
    open_pool(model, 256)
    with pytest.raises(ValueError, match=r"rows|ids"):
        model.forward(*rows)


def test_output_rows_out_of_range_are_refused(model: LlamaModel) -> None:
    open_pool(model, 256)
    sampler = model.sampler(SamplingParams(), [])
    with pytest.raises(ValueError, match="row"):
        sampler.sample(0)
    sampler.close()
