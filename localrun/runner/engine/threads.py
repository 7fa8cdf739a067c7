"""How many compute threads a forward has: fewer while others use the CPUs. Pure but for the clock.

Compute threads meet at a barrier after every operation. One that shares its core with another
process arrives late each time, and all others wait for it: with 2 threads on 2 cores and one busy
neighbour a step takes several times as long, while a single thread on the free core keeps half of
the speed.
"""

import math
from collections.abc import Callable

# Parts of a core that others may use before a thread gives way. Clients and the daemon stay below.
_TOLERATED_CORES = 0.4

# How often to look. Shorter is noise, and a change of threads costs a step.
_INTERVAL_S = 0.5


def n_threads_beside(n_max: int, others_cores: float) -> int:
    """Compute threads, at most `n_max`, while others use that much of the CPUs."""
    n_taken = math.ceil(others_cores - _TOLERATED_CORES)
    return max(1, min(n_max, n_max - n_taken))


class Governor:
    """Looks at the CPUs now and then.

    `used_s` gives two readings in seconds of CPU: all that was used on this process's CPUs, and
    what the process itself used.
    """

    def __init__(self, n_max: int, used_s: Callable[[], tuple[float, float]], now_s: float) -> None:
        self.n_threads = n_max
        self.n_max = n_max
        self._used_s = used_s
        self._looked_s = now_s
        self._all_s, self._own_s = used_s()

    def look(self, now_s: float) -> int:
        """The number of threads from now on."""
        elapsed_s = now_s - self._looked_s
        if elapsed_s < _INTERVAL_S:
            return self.n_threads
        all_s, own_s = self._used_s()
        others_cores = (all_s - self._all_s - (own_s - self._own_s)) / elapsed_s
        self._looked_s, self._all_s, self._own_s = now_s, all_s, own_s
        self.n_threads = n_threads_beside(self.n_max, max(0.0, others_cores))
        return self.n_threads
