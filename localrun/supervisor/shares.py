"""Runners that compute at the same time learn of each other, and each takes its part of the CPUs.
The daemon's loop keeps off the processors of their engines.

Decides nothing but whom to tell: what a part is, a runner finds out (`runner.engine.threads`).
"""

from collections.abc import Callable
from typing import Protocol


class Sharer(Protocol):
    """A runner, as far as sharing the CPUs goes."""

    on_activity: Callable[[], object]

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    @property
    def is_active(self) -> bool:
        """True while it has requests."""
        ...

    @property
    def is_lost(self) -> bool:
        """True once its process has ended."""
        ...

    @property
    def cpu(self) -> int | None:
        """The processor that its engine computes on; see `RunnerStats.cpu`."""
        ...

    def share(self, n_active: int, siblings: tuple[int, ...]) -> None:
        """Tells it how many runners are active, itself included, and the pids of all others."""
        ...


class Shares:
    """All loaded runners, and what each has been told last.

    `keep_off` is called in the loop's thread with the processors that are the engines' now.
    """

    def __init__(self, keep_off: Callable[[frozenset[int]], object]) -> None:
        self._keep_off = keep_off
        self._engines: frozenset[int] = frozenset()
        self._runners: dict[int, Sharer] = {}
        self._told: dict[int, tuple[int, tuple[int, ...]]] = {}

    def join(self, runner: Sharer) -> None:
        """Takes a loaded runner in until it is lost."""
        self._runners[runner.pid] = runner
        runner.on_activity = self._update
        self._update()

    def _update(self) -> None:
        """Tells every active runner what it does not know yet.

        An idle one is left alone: it would wake up for nothing, in the middle of a self-test maybe.
        """
        self._runners = {pid: one for pid, one in self._runners.items() if not one.is_lost}
        self._told = {pid: told for pid, told in self._told.items() if pid in self._runners}
        active = [runner for runner in self._runners.values() if runner.is_active]
        for runner in active:
            others = tuple(pid for pid in self._runners if pid != runner.pid)
            news = len(active), others
            # A runner counts on being alone until it hears otherwise.
            if self._told.get(runner.pid, (1, ())) != news:
                self._told[runner.pid] = news
                runner.share(*news)
        engines = frozenset(runner.cpu for runner in active if runner.cpu is not None)
        if engines != self._engines:
            self._engines = engines
            self._keep_off(engines)
