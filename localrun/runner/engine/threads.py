"""How many compute threads a forward has: fewer while others use the CPUs. Pure but for the clock.

Compute threads meet at a barrier after every operation. One that shares its core with another
process arrives late each time, and all others wait for it: with 2 threads on 2 cores and one busy
neighbour a step takes several times as long, while a single thread on the free core keeps half of
the speed.

Runners of the same daemon, siblings, have equal parts: if each took what the others leave, whoever
came first would keep all cores but one. A part that is hardly used, as by a model on a GPU, is left
to the others. Strangers go first.
"""

import math
from collections.abc import Callable, Iterable

# Parts of a core that others may use before a thread gives way. Clients and the daemon stay below.
_TOLERATED_CORES = 0.4

# How often to look. Shorter is noise, and a change of threads costs a step.
_INTERVAL_S = 0.5

# Siblings that use less of their parts do not compute on the CPUs. One that does stays above, also
# when it shares cores for a moment.
_LIGHT = 0.5


def fair_part(n_max: int, n_active: int, strangers_cores: float) -> int:
    """Threads of one of `n_active` runners that compute now, beside strangers."""
    return max(1, (n_max - _n_taken(strangers_cores)) // n_active)


def n_threads_beside(n_max: int, others_cores: float) -> int:
    """Compute threads, at most `n_max`, while others use that much of the CPUs."""
    return max(1, n_max - _n_taken(others_cores))


def _n_taken(cores: float) -> int:
    return max(0, math.ceil(cores - _TOLERATED_CORES))


class Governor:
    """Looks at the CPUs now and then.

    `used_s` gives two readings in seconds of CPU: all that was used on this process's CPUs, and
    what the process itself used. `process_s` reads that of another process, 0 for one that is gone.
    """

    def __init__(
        self,
        n_max: int,
        used_s: Callable[[], tuple[float, float]],
        process_s: Callable[[int], float],
        now_s: float,
    ) -> None:
        self.n_max = n_max
        self._used_s = used_s
        self._process_s = process_s
        self._n_active = 1
        self._has_changed = False  # `_n_active`, since the last look
        self._siblings: dict[int, float] = {}  # pid → its seconds at the last look
        self._strangers_cores = 0.0
        self._looked_s = now_s
        self._all_s, self._own_s = used_s()
        self.n_threads = n_max

    def share(self, n_active: int, siblings: Iterable[int]) -> None:
        """`n_active` runners compute now, this one among them; `siblings` are all other runners."""
        # All that a new one has ever used counts from now on: it is no stranger's work.
        self._siblings = {pid: self._siblings.get(pid, 0.0) for pid in siblings}
        if n_active != self._n_active:
            self._n_active = n_active
            self._has_changed = True
            self.n_threads = self._fair

    def look(self, now_s: float) -> int:
        """The number of threads from now on."""
        elapsed_s = now_s - self._looked_s
        if elapsed_s < _INTERVAL_S:
            return self.n_threads
        all_s, own_s = self._used_s()
        others_s = max(0.0, all_s - self._all_s - (own_s - self._own_s))
        siblings_s = min(others_s, self._read_siblings())
        # What is measured came of the parts that there were until now.
        parts_s = (self._n_active - 1) * self._fair * elapsed_s
        is_light = not self._has_changed and siblings_s < _LIGHT * parts_s
        self._strangers_cores = (others_s - siblings_s) / elapsed_s
        self.n_threads = self._fair
        if is_light:
            self.n_threads = n_threads_beside(self.n_max, others_s / elapsed_s)
        self._looked_s, self._all_s, self._own_s = now_s, all_s, own_s
        self._has_changed = False
        return self.n_threads

    @property
    def _fair(self) -> int:
        return fair_part(self.n_max, self._n_active, self._strangers_cores)

    def _read_siblings(self) -> float:
        """What they used since the last look."""
        readings = {pid: self._process_s(pid) for pid in self._siblings}
        used_s = sum(max(0.0, readings[pid] - before) for pid, before in self._siblings.items())
        self._siblings = readings
        return used_s
