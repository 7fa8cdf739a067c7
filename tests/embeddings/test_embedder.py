"""The embedder with a scripted model: what shares a forward, who fails, what is left behind."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localrun.core import Vectors
from localrun.errors import EngineFailed, LoadFailed, LocalrunError
from localrun.runner.engine.embedder import Embedder, EmbedJob
from localrun.runner.engine.meter import Meter
from localrun.runner.fake import FakeModel
from localrun.runner.fake_embeddings import N_DIMS, FakeEmbeddings
from localrun.runner.model import LoadRefused
from localrun.spec import LoadSpec


class Bench:
    """An embedder around a scripted model, with a clock that stands still."""

    def __init__(self, path: Path, *, delay_s: float = 0.0, batch: int = 64) -> None:
        spec = LoadSpec(
            str(path), "sha256:0", 4096, 8, 1, embeds=True, embed_batch=batch, embed_delay_s=delay_s
        )
        self.now_ns = 0
        self.meter = Meter()
        self.model = FakeModel(spec, lambda _fraction: None)
        self.embedder = Embedder(self.model, spec, self.meter, lambda: 1, lambda: self.now_ns)

    def add(self, number: int, *texts: list[int], n_ctx: int = 512, **fields: Any) -> None:
        places = fields.pop("places", list(range(len(texts))))
        self.embedder.add(EmbedJob(number, list(texts), places, n_ctx, **fields))

    def run(self, budget_s: float | None = None) -> dict[int, Vectors | LocalrunError]:
        """Steps until nothing more is done; the answers by job."""
        answers: dict[int, Vectors | LocalrunError] = {}
        while self.embedder.step(budget_s):
            answers.update(self.embedder.take_answers())
        answers.update(self.embedder.take_answers())
        return answers

    @property
    def context(self) -> FakeEmbeddings:
        return self.model.embeddings(1)

    @property
    def forwards(self) -> list[tuple[int, int]]:
        return self.context.forwards


@pytest.fixture
def bench(fake_model: Callable[..., Path]) -> Callable[..., Bench]:
    def make(delay_s: float = 0.0, batch: int = 64, **script: Any) -> Bench:
        return Bench(fake_model(**script), delay_s=delay_s, batch=batch)

    return make


def vector_of(text: list[int]) -> list[float]:
    counts = np.bincount(np.array(text) % N_DIMS, minlength=N_DIMS).astype(np.float64)
    return [float(one) for one in counts / np.sqrt(counts @ counts)]


def rows_of(answer: Vectors | LocalrunError) -> list[list[float]]:
    assert isinstance(answer, Vectors), answer
    found = np.frombuffer(answer.data, "<f4").reshape(-1, answer.n_dims)
    return [[float(one) for one in row] for row in found]


def test_texts_of_all_requests_share_a_forward(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.add(1, [1, 2, 3], [4])
    b.add(2, [5, 6])
    answers = b.run()
    assert b.forwards == [(6, 3)]
    assert rows_of(answers[1]) == [
        pytest.approx(vector_of([1, 2, 3])),
        pytest.approx(vector_of([4])),
    ]
    assert rows_of(answers[2]) == [pytest.approx(vector_of([5, 6]))]
    assert b.embedder.is_idle
    assert b.meter.counts["embed_texts_total"] == 3
    assert b.meter.counts["embed_tokens_total"] == 6


def test_equal_texts_are_evaluated_once_and_counted_each_time(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.add(1, [1, 2], [3], places=[0, 1, 0])
    answer = b.run()[1]
    assert isinstance(answer, Vectors)
    first, _, third = rows_of(answer)
    assert first == third
    assert b.forwards == [(3, 2)]
    assert answer.n_tokens == 5


@pytest.mark.parametrize("n_rows", [17, 20, 64])
def test_a_long_text_has_one_vector_however_it_is_split(
    bench: Callable[..., Bench], n_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench()
    text = [n % 251 for n in range(200)]
    b.add(1, [9], text, [8])
    b.embedder._row_s = 1.0  # the clock stands still, so it does not learn
    monkeypatch.setattr("localrun.runner.engine.embedder._WEIGHT", 0.0)
    answers = b.run(budget_s=n_rows)
    assert rows_of(answers[1]) == [
        pytest.approx(vector_of(one), rel=1e-5) for one in ([9], text, [8])
    ]
    assert max(n for n, _ in b.forwards) <= n_rows
    assert sum(n for n, _ in b.forwards) == 202


def test_several_texts_have_smaller_forwards_than_a_long_one(
    bench: Callable[..., Bench],
) -> None:
    b = bench(pooling="mean", is_causal=False, batch=32)
    b.add(1, *([n] * 16 for n in range(5)), list(range(100)), n_ctx=128)
    assert len(rows_of(b.run()[1])) == 6
    assert b.forwards == [(32, 2), (32, 2), (16, 1), (100, 1)]


def test_a_text_that_sees_ahead_is_never_split(bench: Callable[..., Bench]) -> None:
    b = bench(pooling="mean", is_causal=False)
    b.add(1, list(range(100)), [1], n_ctx=128)
    assert len(rows_of(b.run(budget_s=0.01)[1])) == 2
    assert b.forwards == [(100, 1), (1, 1)]


def test_the_first_of_few_waits_for_others_but_not_for_ever(bench: Callable[..., Bench]) -> None:
    b = bench(delay_s=0.5)
    b.add(1, [1])
    assert b.run() == {}
    b.now_ns = 400_000_000
    b.add(2, [2])
    assert b.run() == {}
    b.now_ns = 500_000_000
    assert b.run().keys() == {1, 2}
    assert b.forwards == [(2, 2)]
    # A full forward waits for nobody.
    b.add(3, *([n] for n in range(64)))
    assert b.run().keys() == {3}


def test_a_forward_that_fails_ends_the_request_that_makes_it_fail_and_no_other(
    bench: Callable[..., Bench],
) -> None:
    b = bench(fail_on=7)
    b.add(1, [1], [2])
    b.add(2, [3], [7, 7])
    b.add(3, [4])
    answers = b.run()
    assert isinstance(answers[2], EngineFailed)
    assert len(rows_of(answers[1])) == 2
    assert rows_of(answers[3]) == [pytest.approx(vector_of([4]))]
    assert b.embedder.is_idle


def test_one_text_does_not_wait_for_somebody_elses_hundreds(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.add(1, *([n % 250] * 40 for n in range(200)))
    assert b.embedder.step(None)
    b.add(2, [1, 2, 3])
    b.add(3, *([n] * 10 for n in range(8)))
    n_before = len(b.forwards)
    ended: dict[int, int] = {}
    while b.embedder.step(None):
        for number, _ in b.embedder.take_answers():
            ended[number] = len(b.forwards) - n_before
    assert ended[2] == 1
    assert ended[3] <= 4
    assert ended[1] > 100


def test_rows_beside_answers_follow_what_a_row_has_taken(bench: Callable[..., Bench]) -> None:
    b = bench(batch=512)
    context = b.model.embeddings(512)
    evaluate = context.forward

    def forward(tokens: list[int], *rest: Any) -> int:
        b.now_ns += len(tokens) * 10_000_000
        return evaluate(tokens, *rest)

    context.forward = forward  # type: ignore[assignment,method-assign]
    b.add(1, [n % 250 for n in range(500)])
    b.run(budget_s=0.4)
    rows = [n for n, _ in b.forwards]
    assert rows[0] == 100
    assert rows[0] > rows[1] > rows[2] > rows[5]
    assert 40 <= rows[5] <= 50


def test_who_leaves_in_the_middle_of_a_long_text_leaves_nothing_behind(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    b.add(1, list(range(200)))
    assert b.embedder.step(0.2)
    b.embedder.remove(1)
    b.embedder.remove(1)
    b.add(2, [1, 2, 3])
    assert rows_of(b.run()[2]) == [pytest.approx(vector_of([1, 2, 3]))]
    assert b.embedder.is_idle


def test_a_larger_window_takes_another_context_and_loses_no_text(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    text = list(range(200))
    b.add(1, text, n_ctx=256)
    assert b.embedder.step(0.2)
    b.add(2, [5], n_ctx=1024)
    answers = b.run()
    assert rows_of(answers[1]) == [pytest.approx(vector_of(text), rel=1e-5)]
    assert rows_of(answers[2]) == [pytest.approx(vector_of([5]))]


def test_without_memory_for_a_context_all_who_wait_hear_of_it(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench()

    def refuse(_n_ctx: int) -> FakeEmbeddings:
        raise LoadRefused("no memory")

    monkeypatch.setattr(b.model, "embeddings", refuse)
    b.add(1, [1])
    b.add(2, [2])
    answers = b.run()
    assert [type(answer) for answer in answers.values()] == [LoadFailed, LoadFailed]
    assert b.embedder.is_idle


def test_no_texts_are_answered_at_once(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.add(1)
    assert b.run() == {1: Vectors()}


def test_ranks_are_no_vectors(bench: Callable[..., Bench]) -> None:
    b = bench(pooling="rank")
    b.add(1, [8, 8, 8])
    assert rows_of(b.run()[1]) == [[3.0, *[0.0] * 7]]
