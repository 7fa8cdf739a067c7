"""Which processors threads get, whatever the one that starts them keeps off."""

import os
import threading
from collections.abc import Callable

import pytest

from localrun import processors
from localrun.http.threads import workers

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="Linux only"),
    pytest.mark.skipif(len(processors.ALLOWED) < 2, reason="there is one processor"),
]

ALL = set(processors.ALLOWED)


def in_thread(look: Callable[[], set[int]]) -> set[int]:
    """What `look` finds in a thread of its own, whose processors are nobody else's matter."""
    found: list[set[int]] = []
    thread = threading.Thread(target=lambda: found.append(look()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("cpus", [{min(ALL)}, {max(ALL)}, set(), {max(ALL) + 1}])
def test_a_thread_keeps_off_what_it_is_told(cpus: set[int]) -> None:
    def look() -> set[int]:
        processors.keep_off(cpus)
        return os.sched_getaffinity(0)

    assert in_thread(look) == ALL - cpus


def test_it_stays_when_none_would_be_left() -> None:
    def look() -> set[int]:
        processors.keep_off({min(ALL)})
        processors.keep_off(ALL)
        return os.sched_getaffinity(0)

    assert in_thread(look) == ALL


def test_a_worker_runs_everywhere_whoever_starts_it() -> None:
    def look() -> set[int]:
        processors.keep_off({min(ALL)})
        with workers(1, "test") as pool:
            return pool.submit(os.sched_getaffinity, 0).result()

    assert in_thread(look) == ALL
