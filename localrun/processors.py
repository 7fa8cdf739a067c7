"""Which processors are ours, and which threads run on which: the loop keeps off those of engines.

While all of them compute, those of a runner's threads that wait for a forward's end or its
beginning spin. The kernel takes a thread that is woken, as the daemon's loop is with every token,
to the processor of the one that wakes it, which is the engine: it would stand still until the
token is on its way, and the next forward with it. On any other processor the loop takes its time
from a thread that spins.
"""

import contextlib
import ctypes
import os
import sys
from collections.abc import Collection


def own_cpus() -> set[int]:
    """Numbers of the processors that the calling thread may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def current_cpu() -> int | None:
    """The number of the one that runs the calling thread; None where that cannot be told."""
    if sys.platform != "linux":
        return None
    number = int(ctypes.CDLL(None).sched_getcpu())
    return number if number >= 0 else None


# Linux gives threads and processes the processors of the thread that starts them.
ALLOWED = frozenset(own_cpus())


def keep_off(cpus: Collection[int]) -> None:
    """The calling thread stays off these, unless none is left."""
    run_on(ALLOWED.difference(cpus) or ALLOWED)


def use_all() -> None:
    """The calling thread runs wherever the process may, whatever the one that started it does."""
    run_on(ALLOWED)


def run_on(cpus: Collection[int]) -> None:
    """The calling thread, and those that it starts, run on these; on none that are not ours."""
    if hasattr(os, "sched_setaffinity"):
        # Somebody may have given the process others meanwhile.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cpus)
