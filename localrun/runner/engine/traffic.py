"""What comes into an engine and what leaves it: messages, one step's results, figures now and then.

The text thread is at the other end of both.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from localrun.core import DoneReason
from localrun.errors import LocalrunError
from localrun.ipc.messages import Pace, Share
from localrun.runner.engine.embedder import Answer, EmbedJob
from localrun.runner.engine.sequence import Sequence
from localrun.runner.model import Likelihoods
from localrun.spec import RunnerInfo, RunnerStats, Verdict

# How often the counters travel while there is work.
_STATS_INTERVAL_NS = 500_000_000


@dataclass(frozen=True, slots=True)
class Remove:
    """The sequence is over for its reader: it left, or its text reached a stop string."""

    id: int
    is_cancel: bool = True


class TokenOut(NamedTuple):
    """One step's result for one sequence: `token` None when it ended without another token.

    `likelihoods` of the token, if the request wants them.
    """

    sequence: Sequence
    token: int | None
    reason: DoneReason | None
    likelihoods: Likelihoods | None = None


class StepOutput(NamedTuple):
    """What a step, or a call of it, did; for the text thread. `failed` sequences are gone."""

    admitted: tuple[Sequence, ...]
    tokens: tuple[TokenOut, ...]
    failed: tuple[tuple[Sequence, LocalrunError], ...]
    n_running: int
    stats: RunnerStats | None = None
    info: RunnerInfo | None = None
    verdict: Verdict | None = None
    vectors: tuple[Answer, ...] = ()


# What the engine's inbox carries.
EngineMessage = Sequence | EmbedJob | Remove | Pace | Share


class Report:
    """What has been done that nobody has been told. Engine thread only."""

    def __init__(self, stats: Callable[[], RunnerStats], clock_ns: Callable[[], int]) -> None:
        self._stats = stats
        self._clock_ns = clock_ns
        self._stats_sent_ns = 0
        self._n_running = 0  # as told last
        self.admitted: list[Sequence] = []
        self.tokens: list[TokenOut] = []
        self.failed: list[tuple[Sequence, LocalrunError]] = []

    def has_news(self, n_running: int) -> bool:
        """True when there is something to tell, if only the figures."""
        has_done = self.tokens or self.admitted or self.failed
        return bool(has_done) or n_running != self._n_running or self._are_stats_due

    def take(
        self,
        n_running: int,
        info: RunnerInfo | None = None,
        vectors: tuple[Answer, ...] = (),
        *,
        is_last: bool = False,
    ) -> StepOutput:
        """All of it, which is forgotten here; `info` of a context that has changed.

        Figures come along now and then, and with the last step before there is nothing to do.
        """
        self._n_running = n_running
        stats = None
        if is_last or self._are_stats_due:
            self._stats_sent_ns = self._clock_ns()
            stats = self._stats()
        output = StepOutput(
            tuple(self.admitted),
            tuple(self.tokens),
            tuple(self.failed),
            n_running,
            stats,
            info,
            vectors=vectors,
        )
        self.admitted.clear()
        self.tokens.clear()
        self.failed.clear()
        return output

    @property
    def _are_stats_due(self) -> bool:
        return self._clock_ns() - self._stats_sent_ns >= _STATS_INTERVAL_NS
