"""The daemon's loop and the processors, while a model computes on all of them."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from live import Daemon, wait_until

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs Linux and two processors",
)


def test_the_loop_keeps_off_the_engine_for_as_long_as_it_computes(
    start_daemon: Callable[..., Daemon], smollm2_path: Path, fake_model: Callable[..., Path]
) -> None:
    everywhere = os.sched_getaffinity(0)
    daemon = start_daemon(NUM_THREAD=len(everywhere), MAX_LOADED_MODELS=2)
    daemon.create("m", smollm2_path)
    daemon.create("other", fake_model(echo=True))

    def loops() -> set[int]:
        return os.sched_getaffinity(daemon.process.pid)

    def answers() -> Iterator[dict[str, Any]]:
        while True:
            yield from daemon.stream("/api/generate", {"model": "m", "prompt": "Tell a story."})

    running = answers()
    next(running)
    wait_until(lambda: next(running) and loops() != everywhere, "the loop to keep off")
    assert len(loops()) == len(everywhere) - 1
    (engines,) = (os.sched_getaffinity(runner.pid) for runner in daemon.runners())
    assert engines == everywhere

    # What is started meanwhile runs everywhere.
    wait_until(lambda: next(running) and loops() != everywhere, "the loop to keep off")
    daemon.chat("other", "hello")
    assert all(os.sched_getaffinity(runner.pid) == everywhere for runner in daemon.runners())
    assert len(daemon.runners()) == 2

    running.close()
    wait_until(lambda: loops() == everywhere, "the loop to run everywhere again")
