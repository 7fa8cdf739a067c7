"""Sampler chains of one step, in several threads where there are cores for them.

A chain takes 50 to 250 µs a row, nearly all of it without the interpreter lock. Compute threads
wait for work by spinning, so a helper that shares a core with one of them gains nothing: only
cores beyond the compute threads count.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from localrun.processors import own_cpus
from localrun.runner.model import Sampler

# Fewer rows are done before a helper has woken up.
_MIN_ROWS = 4

# Beyond this a step's rows are too few to share.
_MAX_HELPERS = 3


def n_helpers(n_threads: int) -> int:
    """Threads that may sample beside the engine's own, next to `n_threads` compute threads."""
    return max(0, min(_MAX_HELPERS, len(own_cpus()) - n_threads))


class SamplerPool:
    """Owns the helper threads, if any."""

    def __init__(self, helpers: int) -> None:
        self._n = helpers
        self._pool = ThreadPoolExecutor(helpers, "sampler") if helpers else None

    def sample(self, jobs: Sequence[tuple[Sampler, int]]) -> list[int]:
        """The token of each (chain, output row), in their order."""
        if self._pool is None or len(jobs) < _MIN_ROWS:
            return _run(jobs)
        size = -(-len(jobs) // (self._n + 1))
        parts = [jobs[at : at + size] for at in range(0, len(jobs), size)]
        others = [self._pool.submit(_run, part) for part in parts[1:]]
        tokens = _run(parts[0])
        for other in others:
            tokens += other.result()
        return tokens


def _run(jobs: Sequence[tuple[Sampler, int]]) -> list[int]:
    return [sampler.sample(row) for sampler, row in jobs]
