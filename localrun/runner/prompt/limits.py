"""A bound on the memory that a template may take. Templates are files from strangers.

Time is bounded by the daemon, which ends a runner whose template does not come back. Memory has to
be bounded here: one expression makes a string of any length in one call, which nothing interrupts.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Above what any conversation needs, below what endangers the machine. It is the process that is
# bounded, for the milliseconds of a rendering: another thread that needs as much in just that time
# would fail as well, at the cost of this one model.
LIMIT_BYTES = 1 << 30

# The field of /proc/self/statm with the pages of private, writable memory.
_DATA_FIELD = 5


@contextmanager
def bounded_memory(limit_bytes: int = LIMIT_BYTES) -> Iterator[None]:
    """Within, the process gets at most `limit_bytes` more; what would exceed it is a MemoryError.

    Only Linux counts mapped memory towards such a limit; elsewhere there is none.
    """
    if sys.platform != "linux":
        yield
        return
    import resource

    with open("/proc/self/statm") as file:
        used_bytes = int(file.read().split()[_DATA_FIELD]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = used_bytes + limit_bytes
    known = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([wanted, *known]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
