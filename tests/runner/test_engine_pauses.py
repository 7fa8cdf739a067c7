"""A reader that is behind: its sequence leaves slot and cells to others, and loses no token."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localrun.core import SamplingParams
from localrun.ipc.messages import Pace
from localrun.runner.engine.engine import Engine
from localrun.runner.engine.sequence import Sequence
from localrun.runner.engine.traffic import Remove, StepOutput
from localrun.runner.fake import FakeModel
from localrun.spec import LoadSpec

TEXT = "the whole text that is said"


class Rig:
    """An engine on an echoing script, stepped by hand."""

    def __init__(self, path: Path, n_parallel: int, kv_layout: Any) -> None:
        spec = LoadSpec(str(path), "d", 200, n_parallel, 1, kv_layout=kv_layout)
        self.model = FakeModel(spec, lambda _fraction: None)
        self.outputs: list[StepOutput] = []
        self.engine = Engine(self.model, spec, self.outputs.append)
        self.said: dict[int, bytes] = {}

    def submit(self, number: int, **sampling: Any) -> None:
        tokens = self.model.vocab.tokenize(TEXT)
        params = SamplingParams(temperature=0, **sampling)
        self.engine.inbox.put(Sequence(number, tokens, params, 200))

    def pace(self, number: int, *, is_paused: bool) -> None:
        self.engine.inbox.put(Pace(number, is_paused))

    def step(self, n: int = 1) -> bool:
        moved = False
        for _ in range(n):
            self.outputs.clear()
            moved = self.engine.step()
            for out in (out for output in self.outputs for out in output.tokens):
                piece = b"" if out.token is None else self.model.vocab.token_bytes(out.token)
                self.said[out.sequence.id] = self.said.get(out.sequence.id, b"") + piece
        return moved

    def finish(self) -> None:
        while self.step():
            pass


MakeRig = Callable[..., Rig]


@pytest.fixture(params=["unified", "split"])
def make_rig(request: pytest.FixtureRequest, fake_model: Callable[..., Path]) -> MakeRig:
    def make(n_parallel: int = 2) -> Rig:
        return Rig(fake_model(echo=True), n_parallel, request.param)

    return make


def test_a_paused_sequence_says_nothing_and_goes_on_where_it_was(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.submit(1)
    rig.step(5)
    before = rig.said[1]
    rig.pace(1, is_paused=True)
    rig.finish()
    assert rig.said[1] == before
    assert rig.engine.is_idle
    gauges = rig.engine.gauges()
    assert (gauges["paused"], gauges["running"], gauges["kv_cells_used"]) == (1, 0, 0)
    rig.pace(1, is_paused=False)
    rig.finish()
    assert rig.said[1] == TEXT.encode()
    assert rig.engine.stats().values["pauses_total"] == 1


def test_its_slot_is_for_others_meanwhile(make_rig: MakeRig) -> None:
    rig = make_rig(n_parallel=1)
    rig.submit(1)
    rig.submit(2)
    rig.step(5)
    assert 2 not in rig.said
    rig.pace(1, is_paused=True)
    rig.finish()
    assert rig.said[2] == TEXT.encode()
    rig.pace(1, is_paused=False)
    rig.finish()
    assert rig.said[1] == TEXT.encode()


def test_it_comes_back_before_those_that_came_later(make_rig: MakeRig) -> None:
    rig = make_rig(n_parallel=1)
    rig.submit(1)
    rig.step(3)
    rig.pace(1, is_paused=True)
    rig.step()
    for number in (2, 3):
        rig.submit(number)
    rig.step(3)
    rig.pace(1, is_paused=False)
    while 3 not in rig.said:
        assert rig.step()
    assert rig.said[1] == TEXT.encode()


def test_a_reader_that_leaves_while_paused_leaves_nothing_behind(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.submit(1)
    rig.step(5)
    rig.pace(1, is_paused=True)
    rig.step()
    rig.engine.inbox.put(Remove(1))
    rig.finish()
    gauges = rig.engine.gauges()
    assert (gauges["paused"], gauges["host_tier_bytes"]) == (0, 0)
    rig.pace(1, is_paused=False)
    rig.finish()
    assert rig.engine.is_idle


def test_paces_of_strangers_and_twice_do_no_harm(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.submit(1)
    rig.pace(7, is_paused=True)
    rig.pace(1, is_paused=False)
    rig.step(4)
    for is_paused in (True, True, False, False):
        rig.pace(1, is_paused=is_paused)
    rig.finish()
    assert rig.said[1] == TEXT.encode()


def test_a_larger_window_meanwhile_does_not_lose_it(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.submit(1)
    rig.step(5)
    rig.pace(1, is_paused=True)
    rig.step()
    wide = Sequence(2, rig.model.vocab.tokenize(TEXT), SamplingParams(temperature=0), 2000)
    rig.engine.inbox.put(wide)
    rig.finish()
    assert rig.said[2] == TEXT.encode()
    rig.pace(1, is_paused=False)
    rig.finish()
    assert rig.said[1] == TEXT.encode()


def test_a_deterministic_sequence_goes_on(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.submit(1, deterministic=True)
    rig.step(5)
    rig.pace(1, is_paused=True)
    rig.finish()
    assert rig.said[1] == TEXT.encode()
