"""The step: sequences join and leave between forwards, and nothing of them stays behind."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localrun.core import LoadSpec, SamplingParams
from localrun.errors import EngineFailed
from localrun.runner.engine.engine import Engine, Remove, StepOutput
from localrun.runner.engine.kv import Slots, n_slots_that_fit
from localrun.runner.engine.sequence import Sequence
from localrun.runner.fake import FakeModel


class Bench:
    """An engine on a scripted model, stepped by hand."""

    def __init__(self, path: Path, n_parallel: int = 2, n_ctx: int = 100) -> None:
        spec = LoadSpec(str(path), "digest", n_ctx=n_ctx, n_parallel=n_parallel, n_threads=1)
        self.model = FakeModel(spec, lambda _fraction: None)
        self.outputs: list[StepOutput] = []
        self.engine = Engine(self.model, self.outputs.append)

    def submit(self, number: int, text: str, **params: Any) -> Sequence:
        tokens = self.model.vocab.tokenize(text)
        sequence = Sequence(number, tokens, SamplingParams(temperature=0, **params), 100)
        self.engine.inbox.put(sequence)
        return sequence

    def step(self) -> StepOutput | None:
        self.outputs.clear()
        self.engine.step()
        return self.outputs[0] if self.outputs else None

    def finish(self) -> dict[int, bytes]:
        """Steps until nothing happens; the text of every sequence by id."""
        texts: dict[int, bytes] = {}
        while output := self.step():
            for out in output.tokens:
                piece = b"" if out.token is None else self.model.vocab.token_bytes(out.token)
                texts[out.sequence.id] = texts.get(out.sequence.id, b"") + piece
        return texts


@pytest.fixture
def make_bench(fake_model: Callable[..., Path]) -> Callable[..., Bench]:
    def make(*, n_parallel: int = 2, n_ctx: int = 100, **script: Any) -> Bench:
        return Bench(fake_model(**script), n_parallel, n_ctx)

    return make


def test_a_waiting_sequence_enters_in_the_step_after_one_leaves(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(n_parallel=2, echo=True)
    for number, text in enumerate(["a", "long one", "next"]):
        bench.submit(number, text)
    first = bench.step()
    assert first is not None
    assert [s.id for s in first.admitted] == [0, 1]
    assert first.n_running == 2
    second = bench.step()  # sequence 0 has said its one byte and ends
    assert second is not None
    assert [out.sequence.id for out in second.tokens if out.reason == "stop"] == [0]
    third = bench.step()
    assert third is not None
    assert [s.id for s in third.admitted] == [2]


def test_every_answer_is_complete_whatever_runs_beside_it(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(n_parallel=3, echo=True, n_batch=5)
    texts = {n: "x" * (n % 7) + f"text {n}" for n in range(16)}
    for number, text in texts.items():
        bench.submit(number, text)
    assert bench.finish() == {n: text.encode() for n, text in texts.items()}


def test_a_removed_sequence_frees_its_slot_in_the_next_step(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(n_parallel=1, pieces=["la "], endless=True)
    bench.submit(1, "sing")
    bench.submit(2, "too")
    bench.step()
    bench.engine.inbox.put(Remove(1))
    output = bench.step()
    assert output is not None
    assert [s.id for s in output.admitted] == [2]
    assert {out.sequence.id for out in output.tokens} == {2}


def test_a_sequence_removed_while_it_waits_is_never_evaluated(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(n_parallel=1, pieces=["la "], endless=True)
    bench.submit(1, "sing")
    waiting = bench.submit(2, "too")
    bench.step()
    bench.engine.inbox.put(Remove(2))
    output = bench.step()
    assert output is not None
    assert output.n_running == 1
    assert waiting.n_done == 0


def test_removing_an_unknown_sequence_changes_nothing(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(pieces=["a", "b"])
    bench.submit(1, "hi")
    bench.engine.inbox.put(Remove(99))
    assert bench.finish() == {1: b"ab"}


def test_a_stream_decodes_in_every_step_beside_a_long_prompt(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(pieces=["la "], endless=True, n_batch=4)
    bench.submit(1, "sing")
    bench.step()
    bench.submit(2, "y" * 40)
    for _ in range(10):  # 40 rows in chunks of 4
        output = bench.step()
        assert output is not None
        assert 1 in {out.sequence.id for out in output.tokens}


def test_a_failed_forward_ends_only_its_own_sequences(make_bench: Callable[..., Bench]) -> None:
    # Two cells less than the window claims: the fake gives code 1 when they run out.
    bench = make_bench(n_ctx=6, pieces=["la "], endless=True)
    bench.submit(1, "12345")
    bench.submit(2, "1")
    failed = []
    for _ in range(3):
        output = bench.step()
        assert output is not None
        failed += output.failed
    assert {s.id for s, _ in failed} == {1, 2}  # one call carries both decodes
    assert all(isinstance(error, EngineFailed) for _, error in failed)
    bench.submit(3, "1")
    output = bench.step()
    assert output is not None
    assert [s.id for s in output.admitted] == [3]


def test_slots_are_handed_out_lowest_first() -> None:
    slots = Slots(4)
    assert [slots.take() for _ in range(3)] == [0, 1, 2]
    slots.give_back(1)
    slots.give_back(0)
    assert [slots.take(), slots.take(), slots.n_free] == [0, 1, 1]


@pytest.mark.parametrize(
    ("budget_bytes", "expected"), [(10**9, 8), (4096 * 100 * 3, 3), (1, 1), (0, 1)]
)
def test_windows_beyond_the_memory_cost_slots_but_never_the_last(
    budget_bytes: int, expected: int
) -> None:
    assert n_slots_that_fit(8, 4096, 100, budget_bytes) == expected
