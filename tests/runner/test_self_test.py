"""The self-test: what it tries, how it judges, and that it can be left at any time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localrun.core import SamplingParams
from localrun.runner.engine.engine import Engine
from localrun.runner.engine.self_test import Trial, judge, self_test
from localrun.runner.engine.sequence import Sequence
from localrun.runner.engine.traffic import StepOutput
from localrun.runner.fake import FakeModel
from localrun.spec import LoadSpec, Verdict

ALL = [("split", True), ("unified", True), ("split", False), ("unified", False)]


def trial(
    layout: Any, flash: bool, *, row_ms: float, step_ms: float, merged_ms: float = 0
) -> Trial:
    return Trial(layout, flash, row_ms / 1e3, step_ms / 1e3, 8, merged_ms / 1e3)


@pytest.mark.parametrize(
    ("trials", "verdict"),
    [
        pytest.param(
            [
                trial("split", True, row_ms=2, step_ms=40),
                trial("split", False, row_ms=2, step_ms=30),
            ],
            Verdict("split", False),
            id="the faster attention",
        ),
        pytest.param(
            [
                trial("split", True, row_ms=2, step_ms=40),
                trial("unified", True, row_ms=1.9, step_ms=38),
            ],
            Verdict("split", True),
            id="slots when about as fast",
        ),
        pytest.param(
            [
                trial("split", True, row_ms=2, step_ms=40),
                trial("unified", True, row_ms=2, step_ms=30),
            ],
            Verdict("unified", True),
            id="one pool when clearly faster",
        ),
        pytest.param(
            [trial("unified", True, row_ms=2, step_ms=40, merged_ms=150)],
            Verdict("unified", True, merges_rows=True),
            id="one call when it beats two",
        ),
        pytest.param(
            [trial("unified", True, row_ms=2, step_ms=40, merged_ms=200)],
            Verdict("unified", True),
            id="two calls otherwise",
        ),
    ],
)
def test_the_verdict(trials: list[Trial], verdict: Verdict) -> None:
    assert judge(trials) == verdict


class Machine:
    """A clock that a model's forwards move on: by layout, attention and rows."""

    def __init__(self, path: Path, row_ms: dict[tuple[str, bool | None], float]) -> None:
        spec = LoadSpec(str(path), "digest", n_ctx=512, n_parallel=4, n_threads=1)
        self.model = FakeModel(spec, lambda _fraction: None)
        self.now_s = 0.0
        self.opened: list[tuple[str, bool | None]] = []
        forward, open_ = self.model.forward, self.model.open

        def timed(tokens: Any, *rest: Any) -> int:
            self.now_s += row_ms[self.opened[-1]] / 1e3 * len(tokens)
            return forward(tokens, *rest)

        def opened(shape: Any) -> None:
            self.opened.append((shape.layout, shape.flash_attention))
            open_(shape)

        self.model.forward = timed  # type: ignore[method-assign]
        self.model.open = opened  # type: ignore[method-assign]

    def run(self) -> Verdict | None:
        found = list(self_test(self.model, ALL, 4, clock=lambda: self.now_s))  # type: ignore[arg-type]
        return found[-1] if found else None


@pytest.mark.parametrize("best", ALL)
def test_the_fastest_combination_wins(
    fake_model: Callable[..., Path], best: tuple[str, bool]
) -> None:
    row_ms = {kind: 0.5 if kind == best else 1.0 for kind in ALL}
    machine = Machine(fake_model(echo=True), row_ms)  # type: ignore[arg-type]
    verdict = machine.run()
    assert verdict is not None
    assert (verdict.layout, verdict.flash_attention) == best
    assert machine.opened == ALL


def test_a_pool_is_tried_with_idle_sequences_in_it(fake_model: Callable[..., Path]) -> None:
    machine = Machine(fake_model(echo=True), dict.fromkeys(ALL, 1.0))
    filled: dict[str, int] = {}
    restore = machine.model.restore

    def counted(kv_id: int, data: bytes) -> bool:
        layout = machine.opened[-1][0]
        filled[layout] = filled.get(layout, 0) + 1
        return restore(kv_id, data)

    machine.model.restore = counted  # type: ignore[method-assign, assignment]
    machine.run()
    # Beside the one that was computed, and twice: with flash attention and without.
    assert filled == {"split": 2 * 3, "unified": 2 * (3 + 2)}


def test_a_slow_machine_is_not_asked(fake_model: Callable[..., Path]) -> None:
    machine = Machine(fake_model(echo=True), dict.fromkeys(ALL, 50.0))
    assert machine.run() is None
    assert len(machine.opened) == 1


def test_whoever_comes_meanwhile_finds_the_engine_as_it_was(
    fake_model: Callable[..., Path],
) -> None:
    spec = LoadSpec(str(fake_model(echo=True)), "digest", n_ctx=512, n_parallel=4, n_threads=1)
    outputs: list[StepOutput] = []
    engine = Engine(FakeModel(spec, lambda _fraction: None), spec, outputs.append)
    shape = engine.shape
    sequence = Sequence(1, list(b"hello"), SamplingParams(temperature=0), 512)
    engine.inbox.put(sequence)
    engine.test_itself()  # stops after its first look
    assert [output for output in outputs if output.verdict] == []
    assert engine.shape == shape
    while not engine.is_idle or not engine.inbox.empty():
        engine.step()
    assert sequence.n_completion == 5
    engine.test_itself()
    assert outputs[-1].verdict is not None
    assert engine.shape == shape
