"""A bound on the memory that a template may take. Templates are files from strangers.

Time is bounded by the daemon, which ends a runner whose template does not come back. Memory has to
be bounded here: one expression makes a string of any length in one call, which nothing interrupts.
The system can only bound the whole process, so whoever needs much beside a template says so.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Above what any conversation needs, below what endangers the machine.
LIMIT_BYTES = 1 << 30

# The field of /proc/self/statm with the pages of private, writable memory.
_DATA_FIELD = 5


class _Bound:
    """The limit of this process. Only Linux counts mapped memory; elsewhere there is none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._limit_bytes: int | None = None
        self._n_exempt = 0
        self._soft_before: int | None = None  # what the user has set, if anything

    def set(self, limit_bytes: int | None) -> None:
        """At most so much in all, or as before."""
        with self._lock:
            self._limit_bytes = limit_bytes
            self._apply()

    def lift(self) -> None:
        """No limit until `lower` was called as often."""
        with self._lock:
            self._n_exempt += 1
            self._apply()

    def lower(self, n_taken: int) -> None:
        """The limit again, with what was taken meanwhile on top."""
        with self._lock:
            self._n_exempt -= 1
            if self._limit_bytes is not None:
                self._limit_bytes += max(0, n_taken)
            self._apply()

    def _apply(self) -> None:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if self._soft_before is None:
            self._soft_before = soft
        soft = self._soft_before
        if self._limit_bytes is not None and self._n_exempt == 0:
            is_free = soft == resource.RLIM_INFINITY
            soft = self._limit_bytes if is_free else min(self._limit_bytes, soft)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


_bound = _Bound()
_is_bounded = sys.platform == "linux"


@contextmanager
def bounded_memory(limit_bytes: int = LIMIT_BYTES) -> Iterator[None]:
    """Within, the process gets at most `limit_bytes` more; what would exceed it is a MemoryError.

    For one thread at a time.
    """
    if not _is_bounded:
        yield
        return
    _bound.set(_used_bytes() + limit_bytes)
    try:
        yield
    finally:
        _bound.set(None)


@contextmanager
def large_allocation() -> Iterator[None]:
    """Within, memory can be had as if no other thread were bounded. Never waits for one."""
    if not _is_bounded:
        yield
        return
    before = _used_bytes()
    _bound.lift()
    try:
        yield
    finally:
        _bound.lower(_used_bytes() - before)


def _used_bytes() -> int:
    import resource

    with open("/proc/self/statm") as file:
        return int(file.read().split()[_DATA_FIELD]) * resource.getpagesize()
