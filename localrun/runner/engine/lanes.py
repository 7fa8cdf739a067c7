"""Two forwards for vectors at a time, each with its part of the compute threads.

Threads of a forward meet at a barrier after every operation, so whatever else runs on one of their
cores, as the daemon does for every request, holds up all of them. Two forwards wait for nobody: 256
texts one by one from 32 clients take a sixth less time on two cores. Only for texts that are short
enough to share forwards, and only while more of them wait than one forward should have.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import NamedTuple

from localrun.runner.engine.embedder import Forward

# Rows that are worth a forward of their own: all-MiniLM in F16 makes 630 vectors a second in two
# forwards of 128 rows each, 460 in two of 64, and 560 with both threads in one (2 cores).
_ROWS_MIN = 128


class Part(NamedTuple):
    """What the next forward takes: rows at most, None for as many as it can, and threads."""

    n_rows: int | None
    n_threads: int


def part(n_short_rows: int, *, shares: bool, n_threads: int, n_used: int) -> Part | None:
    """What a forward takes of `n_threads` while another one has `n_used` of them. Pure.

    `n_short_rows` wait that either of two forwards may have; where a text does not share its
    forward, any two are worth one each. None: the forward has to wait.
    """
    if n_used >= n_threads:
        return None
    if n_used or n_threads == 1 or n_short_rows <= (_ROWS_MIN if shares else 0):
        return Part(None, n_threads - n_used)
    return Part(max(_ROWS_MIN, -(-n_short_rows // 2)), -(-n_threads // 2))


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """A forward has run: llama.cpp's code, or what was raised."""

    lane: "Lane"
    forward: Forward
    code: int
    elapsed_s: float
    error: BaseException | None = None


class Lane:
    """A thread that evaluates one forward at a time, and tells `ended` from there."""

    def __init__(
        self, ended: Callable[[Ended], None], clock_ns: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._ended = ended
        self._clock_ns = clock_ns
        self._forwards: SimpleQueue[Forward] = SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def start(self, forward: Forward) -> None:
        """Evaluates it; the one before must have ended."""
        self._forwards.put(forward)

    def _run(self) -> None:
        while True:
            forward = self._forwards.get()
            began_ns = self._clock_ns()
            code, error = 0, None
            try:
                code = forward.run()
            except BaseException as caught:  # noqa: BLE001 - it is the engine thread's to raise
                error = caught
            elapsed_s = (self._clock_ns() - began_ns) / 1e9
            self._ended(Ended(self, forward, code, elapsed_s, error))
