"""Which processors threads run on: the daemon's loop keeps off those of engines.

While all of them compute, those of a runner's threads that wait for a forward's end or its
beginning spin. The kernel takes a thread that is woken, as the daemon's loop is with every token,
to the processor of the one that wakes it, which is the engine: it would stand still until the
token is on its way, and the next forward with it. On any other processor the loop takes its time
from a thread that spins.
"""

import contextlib
import os
from collections.abc import Collection

# Linux gives threads and processes the processors of the thread that starts them.
ALLOWED = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


def keep_off(cpus: Collection[int]) -> None:
    """The calling thread stays off these, unless none is left."""
    run_on(ALLOWED.difference(cpus) or ALLOWED)


def use_all() -> None:
    """The calling thread runs wherever the process may, whatever the one that started it does."""
    run_on(ALLOWED)


def run_on(cpus: Collection[int]) -> None:
    """The calling thread, and those that it starts, run on these; on none that are not ours."""
    if cpus:  # else the system has no such thing
        # Somebody may have given the process others meanwhile.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cpus)
