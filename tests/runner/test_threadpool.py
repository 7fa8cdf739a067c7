"""Compute threads: as many as are wanted, and none is ended that a context still knows."""

import itertools
from pathlib import Path
from typing import Any

import psutil
import pytest
from real_engine import PROMPTS, Bench, spec_of, text_of

from localrun.runner import library
from localrun.runner.engine.engine import Engine
from localrun.runner.engine.threads import Governor
from localrun.runner.ggml import threadpool
from localrun.runner.ggml.library import new_threadpool
from localrun.runner.ggml.threadpool import Threadpool
from localrun.runner.library import LlamaLibrary
from localrun.runner.llama import LlamaModel
from localrun.runner.model import Model
from localrun.spec import LoadSpec


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What llama.cpp is told; pools are numbers from 1."""
    calls: list[tuple[Any, ...]] = []
    numbers = itertools.count(1)

    def new(n_threads: int, *, polls: bool) -> int:
        calls.append(("new", n_threads, polls))
        return next(numbers)

    monkeypatch.setattr(threadpool, "new_threadpool", new)
    for name in ("attach", "pause", "free"):
        monkeypatch.setattr(
            threadpool, f"{name}_threadpool", lambda *a, _name=name: calls.append((_name, *a))
        )
    monkeypatch.setattr(
        threadpool.lib, "llama_set_n_threads", lambda *a: calls.append(("n_threads", *a))
    )
    return calls


def test_a_pool_ends_when_the_context_has_evaluated_with_the_next(
    told: list[tuple[Any, ...]],
) -> None:
    pool = Threadpool("context", polls=True)
    pool.use(2)
    pool.use(2)
    assert told == [("new", 2, True), ("attach", "context", 1), ("n_threads", "context", 2, 2)]
    told.clear()
    pool.use(1)
    pool.use(3)
    assert [call[0] for call in told if call[0] == "free"] == []
    told.clear()
    pool.has_evaluated()
    assert sorted(told) == [("free", 1), ("free", 2)]
    told.clear()
    pool.has_evaluated()
    assert told == []
    pool.rest()
    pool.close()
    pool.rest()
    pool.close()
    assert told == [("pause", 3), ("free", 3)]


def test_there_are_no_more_threads_than_processors(
    smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def new(n_threads: int, *, polls: bool) -> int:
        made.append(n_threads)
        return new_threadpool(n_threads, polls=polls)

    def start(spec: LoadSpec, model: Model) -> Model:
        Engine(model, spec, lambda _output: None)
        assert spec.n_threads == 2
        return model

    monkeypatch.setattr(library, "own_cpus", lambda: [4, 5])
    monkeypatch.setattr(threadpool, "new_threadpool", new)
    n_before = psutil.Process().num_threads()
    spec = spec_of(smollm2_path, n_threads=3)
    model = LlamaLibrary().load(spec, None, lambda _fraction: None, start)
    assert isinstance(model, LlamaModel)
    assert made == [2]
    model.close()
    assert psutil.Process().num_threads() == n_before


def test_who_sleeps_anyway_is_not_told_to(told: list[tuple[Any, ...]]) -> None:
    pool = Threadpool("context", polls=False)
    pool.rest()
    pool.use(2)
    told.clear()
    pool.rest()
    assert told == []


def test_a_context_has_exactly_the_threads_that_compute(model: LlamaModel) -> None:
    bench = Bench(model, n_parallel=1)
    bench.submit(model.vocab.tokenize(PROMPTS[0]), num_predict=20)
    counts: dict[int, set[int]] = {1: set(), 2: set()}
    numbers = itertools.cycle(counts)
    bench.engine._governor.look = lambda _now_s: next(numbers)  # type: ignore[method-assign]
    for _ in range(6):
        bench.step()
        counts[model._threadpool._n_threads].add(psutil.Process().num_threads())
    (one,), (two,) = counts.values()
    assert two == one + 1


def test_an_answer_is_the_same_while_the_threads_change_at_every_step(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = itertools.cycle([1, 2, 2, 1])
    monkeypatch.setattr(Governor, "look", lambda _self, _now_s: next(numbers))
    bench = Bench(model)
    for prompt in PROMPTS:
        bench.submit(model.vocab.tokenize(prompt), num_predict=12)
    answers = bench.finish()
    assert "Paris" in text_of(model, answers[0])
    assert "six" in text_of(model, answers[1])
