"""Compute threads beside other processes: tables, and governors on a simulated machine."""

import math
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence

import psutil
import pytest

from localrun.runner.engine.threads import Governor, fair_part, n_threads_beside
from localrun.runner.measure import process_cpu_s


@pytest.mark.parametrize(
    ("n_max", "others", "n"),
    [(2, 0.0, 2), (2, 0.39, 2), (2, 0.5, 1), (2, 1.0, 1), (2, 9.0, 1), (8, 1.2, 7), (8, 1.5, 6)],
)
def test_threads_beside_others(n_max: int, others: float, n: int) -> None:
    assert n_threads_beside(n_max, others) == n


@pytest.mark.parametrize(
    ("n_max", "n_active", "strangers", "n"),
    [(16, 1, 0, 16), (16, 2, 0, 8), (16, 3, 0, 5), (2, 3, 0, 1), (16, 2, 4, 6), (16, 2, 99, 1)],
)
def test_a_fair_part(n_max: int, n_active: int, strangers: float, n: int) -> None:
    assert fair_part(n_max, n_active, strangers) == n


def test_the_governor_looks_at_what_others_used_since_its_last_look() -> None:
    used = [0.0, 0.0]
    governor = Governor(2, lambda: (used[0], used[1]), lambda _pid: 0.0, now_s=0.0)
    used[:] = [1.0, 0.0]
    assert governor.look(0.1) == 2  # too early to say
    assert governor.look(1.0) == 1
    used[:] = [3.0, 2.0]  # only ourselves
    assert governor.look(2.0) == 2


def test_what_a_sibling_did_before_it_was_known_was_no_strangers_work() -> None:
    """It had all cores while this one was idle, and stops when this one begins."""
    used = {0: 0.0, 7: 0.0}
    governor = Governor(8, lambda: (sum(used.values()), used[0]), used.__getitem__, now_s=0.0)
    used[7] = 800.0
    governor.share(1, (7,))
    assert governor.look(100.0) == 8


def test_a_sibling_that_died_takes_nothing_back() -> None:
    used = {0: 0.0, 7: 50.0}
    governor = Governor(8, lambda: (used[0] + 50.0, used[0]), lambda pid: used[pid], now_s=0.0)
    governor.share(1, (7,))
    assert governor.look(1.0) == 8
    used[7] = 0.0
    used[0] = 8.0
    assert governor.look(2.0) == 8


def test_the_cpu_time_of_another_process_is_read() -> None:
    assert process_cpu_s(os.getpid()) > 0
    with subprocess.Popen([sys.executable, "-c", "pass"]) as child:
        pid = child.pid
    assert process_cpu_s(pid) == 0.0
    assert not psutil.pid_exists(pid)


# ---- a machine

Span = tuple[float, float]
_TICK_S = 0.05


class Machine:
    """`n_cores` shared by runners, each active within its spans of time, and by strangers.

    A runner uses as many cores as it has threads, or as `uses` says; where more is wanted than
    there is, everybody gets the same part of it. `history` holds (second, threads of each runner)
    for every change, 0 for an idle one.
    """

    def __init__(
        self,
        n_cores: int,
        spans: Sequence[Sequence[Span]],
        *,
        strangers: Callable[[float], float] = lambda _now_s: 0.0,
        uses: dict[int, float] | None = None,
    ) -> None:
        self.n_cores = n_cores
        self.spans = spans
        self.strangers = strangers
        self.uses = uses or {}
        self.all_s = 0.0
        self.own_s = [0.0] * len(spans)
        self.history: list[tuple[float, tuple[int, ...]]] = []
        self._told: dict[int, int] = {}
        self._governors = [self._governor(number) for number in range(len(spans))]

    def _governor(self, number: int) -> Governor:
        return Governor(
            self.n_cores,
            lambda: (self.all_s, self.own_s[number]),
            self.own_s.__getitem__,
            now_s=0.0,
        )

    def run(self, seconds: float) -> "Machine":
        for tick in range(round(seconds / _TICK_S)):
            self._pass(tick * _TICK_S)
        return self

    def _pass(self, now_s: float) -> None:
        active = [n for n, spans in enumerate(self.spans) if any(a <= now_s < b for a, b in spans)]
        for number in active:
            if self._told.get(number) != len(active):
                self._told[number] = len(active)
                siblings = [n for n in range(len(self.spans)) if n != number]
                self._governors[number].share(len(active), siblings)
        # Not all look at the same moment.
        threads = {n: self._governors[n].look(now_s + 0.01 * n) for n in active}
        wanted = {n: self.uses.get(n, float(threads[n])) for n in active}
        total = sum(wanted.values()) + self.strangers(now_s)
        part = min(1.0, self.n_cores / total) if total else 0.0
        for number in active:
            self.own_s[number] += wanted[number] * part * _TICK_S
        self.all_s += total * part * _TICK_S
        state = tuple(threads.get(n, 0) for n in range(len(self.spans)))
        if not self.history or self.history[-1][1] != state:
            self.history.append((now_s, state))

    @property
    def settled_s(self) -> float:
        """When the last change was."""
        return self.history[-1][0]

    @property
    def threads(self) -> tuple[int, ...]:
        return self.history[-1][1]


ALWAYS = [(0.0, math.inf)]


def late(since_s: float) -> list[Span]:
    return [(since_s, math.inf)]


@pytest.mark.parametrize(
    ("n_cores", "spans", "threads", "settled_s"),
    [
        (16, [ALWAYS, ALWAYS], (8, 8), 0.0),
        (16, [ALWAYS, late(3)], (8, 8), 3.0),
        (2, [ALWAYS, late(3)], (1, 1), 3.0),
        (16, [ALWAYS, late(3), late(5)], (5, 5, 5), 5.0),
        (4, [ALWAYS] * 5, (1,) * 5, 0.0),
        # The first ends, comes back after a while, and finds the second with all cores.
        (16, [[(0, 4), (20, math.inf)], late(3)], (8, 8), 20.0),
        (16, [[(0, 4)], late(3)], (0, 16), 4.0),
    ],
)
def test_runners_that_compute_have_equal_parts_at_once(
    n_cores: int, spans: list[list[Span]], threads: tuple[int, ...], settled_s: float
) -> None:
    machine = Machine(n_cores, spans).run(25)
    assert machine.threads == threads
    assert machine.settled_s == pytest.approx(settled_s, abs=_TICK_S)


def test_strangers_go_first_and_what_is_left_is_shared() -> None:
    machine = Machine(16, [ALWAYS, late(1)], strangers=lambda now_s: 4.0 if now_s > 3 else 0.0)
    assert machine.run(10).threads == (6, 6)


def test_a_runner_that_hardly_computes_leaves_its_part_to_the_other() -> None:
    machine = Machine(16, [ALWAYS, ALWAYS], uses={1: 1.0})
    assert machine.run(10).threads[0] == 15
    assert machine.settled_s < 2


def test_a_runner_that_comes_and_goes_does_not_unsettle_the_other() -> None:
    visits = [(2 + 0.4 * n, 2.2 + 0.4 * n) for n in range(10)]
    machine = Machine(16, [ALWAYS, visits]).run(8)
    assert {threads for _, threads in machine.history} == {(16, 0), (8, 8)}


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_parts_are_equal_and_stay_so_a_second_after_the_last_event(
    seed: int,
) -> None:
    draw = random.Random(seed)
    n_cores = draw.choice([2, 4, 8, 16, 64])
    spans: list[list[Span]] = []
    for _ in range(draw.randint(1, 5)):
        moments = [sorted((draw.uniform(0, 6), draw.uniform(0, 6))) for _ in range(3)]
        visits: list[Span] = [(begin, end) for begin, end in moments]
        spans.append([*visits, *late(draw.uniform(0, 6))] if draw.random() < 0.8 else visits)
    n_strange, ends_s = draw.choice([0, 0, 1, 2, n_cores // 2]), draw.uniform(2, 6)
    machine = Machine(
        n_cores, spans, strangers=lambda now_s: n_strange if now_s < ends_s else 0.0
    ).run(14)
    assert machine.settled_s < 6 + 1.3
    active = [n for n in machine.threads if n]
    part = max(1, n_cores // max(1, len(active)))
    assert active == [part] * len(active)
