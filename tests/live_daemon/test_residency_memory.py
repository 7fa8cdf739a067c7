"""Models that do not fit side by side: who takes whose place, and that all memory comes back."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import psutil
import pytest
from live import Daemon, chat_body, wait_until
from residency_steps import (
    HALF,
    IS_FULL,
    MACHINE,
    TOO_MUCH,
    Fake,
    Start,
    load,
    n_loads,
    states,
    stop,
    wait_empty,
)


def test_a_model_that_does_not_fit_beside_another_takes_its_place(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon()
    daemon.create("small", fake_model(pieces=["ok"], **MACHINE, needs_bytes=1 << 30))
    for name in ("a", "b"):
        daemon.create(name, fake_model(pieces=[name], **HALF))
    for name in ("a", "small", "b"):
        load(daemon, name, keep_alive=-1)
    assert states(daemon) == {"small": "ready", "b": "ready"}
    assert "a:latest was to stay for ever, but b:latest needs its place" in daemon.log()


def test_a_model_that_never_fits_is_refused_with_figures_and_nobody_goes_for_it(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon()
    daemon.create("a", fake_model(pieces=["ok"], **HALF))
    daemon.create("giant", fake_model(pieces=["x"], **TOO_MUCH))
    load(daemon, "a")
    said = daemon.json("POST", "/api/chat", chat_body("giant", "hi"), status=500)["error"]
    assert "11.00 GiB of RAM (available: 10.00 GiB)" in said
    body = {"model": "giant", "messages": [{"role": "user", "content": "hi"}]}
    error = daemon.json("POST", "/v1/chat/completions", body, status=500)["error"]
    # Their requests have no `num_ctx`.
    words = said.replace("smaller num_ctx", "smaller LOCALRUN_CONTEXT_LENGTH")
    assert words != said
    assert (error["code"], error["message"]) == ("not_enough_memory", words)
    assert states(daemon) == {"a": "ready"}
    wait_until(lambda: len(daemon.runners()) == 1, "the process of the refused one to be gone")


def test_ps_never_waits_and_shows_what_a_model_is_going_to_take(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(pieces=["x"], load_s=600, **HALF))
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(daemon.request, "POST", "/api/generate", {"model": "m"})
        wait_until(lambda: daemon.ps() and daemon.ps()[0]["size"], "the plan")
        (model,) = daemon.ps()
        assert (model["state"], model["size"], model["size_vram"]) == ("loading", 6 << 30, 0)
        assert model["queued"] == 1
        assert "layout" not in model
        stop(daemon, "m")
        waits.result()


@pytest.mark.soak
def test_a_running_answer_is_finished_before_another_model_takes_its_memory(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon()
    for name in ("a", "b"):
        script = {"pieces": [f"{name} "], "endless": True, "step_s": 0.02, **HALF}
        daemon.create(name, fake_model(**script))
    n_rounds = 20 if IS_FULL else 3
    with memory_watch(daemon) as most, ThreadPoolExecutor() as pool:
        for _ in range(n_rounds):
            # Long enough for the other one's process to start and to find no room.
            stream = daemon.stream("/api/chat", chat_body("a", "hi", num_predict=100))
            next(stream)
            other = pool.submit(daemon.chat, "b", "hi", num_predict=3)
            wait_until(lambda: states(daemon).get("a") == "stopping", "the first to make room")
            again = pool.submit(daemon.chat, "a", "hi", num_predict=3)
            assert list(stream)[-1]["eval_count"] == 100
            assert other.result()["message"]["content"] == "b " * 3
            assert again.result()["message"]["content"] == "a " * 3
    assert most[0] <= 6 << 30
    # The last round of one is the first of the next.
    assert (n_loads(daemon, "a"), n_loads(daemon, "b")) == (n_rounds + 1, n_rounds)


@contextmanager
def memory_watch(daemon: Daemon) -> Iterator[list[int]]:
    """[the most bytes that loaded models held at once, as `ps` shows them]"""
    most, is_over = [0], Event()

    def look() -> None:
        while not is_over.wait(0.01):
            held = (m["size"] for m in daemon.ps() if m["state"] != "loading")
            most[0] = max(most[0], sum(held))

    thread = Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        is_over.set()
        thread.join()


@pytest.mark.soak
def test_switching_between_real_models_gives_all_memory_back(
    start_daemon: Start, smollm2_path: Path, gemma3_path: Path
) -> None:
    daemon = start_daemon(MAX_LOADED_MODELS=1, CONTEXT_LENGTH=512, NUM_PARALLEL=1)
    daemon.create("a", smollm2_path)
    daemon.create("b", gemma3_path)
    process = psutil.Process(daemon.process.pid)

    def left() -> tuple[int, int, int]:
        stop(daemon, "a")
        stop(daemon, "b")
        wait_empty(daemon)
        wait_until(lambda: not process.children(), "every child to be reaped")
        return process.memory_info().rss, process.num_fds(), process.num_threads()

    def switch() -> None:
        assert daemon.chat("a", "hi", num_predict=4)["eval_count"]
        stream = daemon.stream("/api/generate", {"model": "b", "prompt": "Once upon a time"})
        next(stream)
        stream.close()
        connection = daemon.connect()  # a load that nobody waits for, and that is stopped
        connection.request("POST", "/api/generate", json.dumps({"model": "a"}))
        wait_until(lambda: "a" in states(daemon), "the other model to be on its way in")
        connection.close()

    for _ in range(2):
        switch()
    rss_bytes, n_fds, n_threads = left()
    for _ in range(28 if IS_FULL else 1):
        switch()
    rss_after_bytes, n_fds_after, n_threads_after = left()
    assert rss_after_bytes <= rss_bytes + (50 << 20)
    assert n_fds_after <= n_fds + 2
    assert n_threads_after <= n_threads + 2
