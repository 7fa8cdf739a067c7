"""Models in and out of memory: who is loaded, waits, has to go, and that nothing is left."""

import json
import math
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from http.client import HTTPConnection
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psutil
import pytest
from live import Daemon, chat_body, is_gone, wait_until

IS_FULL = os.environ.get("LOCALRUN_TEST_FULL") == "1"

Start = Callable[..., Daemon]
Fake = Callable[..., Path]

# A machine that holds one of two models, and a third one never.
MACHINE: dict[str, Any] = {"machine_bytes": 10 << 30}
HALF = {**MACHINE, "needs_bytes": 6 << 30}
TOO_MUCH = {**MACHINE, "needs_bytes": 11 << 30}


def states(daemon: Daemon) -> dict[str, str]:
    """The state of each model in memory, by the first part of its name."""
    return {model["name"].split(":")[0]: model["state"] for model in daemon.ps()}


def stop(daemon: Daemon, name: str) -> None:
    body = {"model": name, "keep_alive": 0, "stream": False}
    assert daemon.json("POST", "/api/generate", body)["done_reason"] == "unload"


def load(daemon: Daemon, name: str, **more: Any) -> None:
    daemon.json("POST", "/api/generate", {"model": name, "stream": False, **more})


def begin_to_load(daemon: Daemon, name: str, *, stream: bool) -> HTTPConnection:
    """The connection of a chat whose model is on its way in."""
    connection = daemon.connect()
    connection.request("POST", "/api/chat", json.dumps(chat_body(name, "hi", stream=stream)))
    wait_until(lambda: states(daemon), "the model to be on its way in")
    return connection


def wait_empty(daemon: Daemon) -> None:
    wait_until(lambda: not daemon.ps() and not daemon.runners(), "every model to be gone")


def n_loads(daemon: Daemon, name: str) -> int:
    return daemon.log().count(f"loading {name}:latest: ")


# ---- keep-alive


def test_every_form_of_keep_alive_shows_in_the_end_of_the_model(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon(KEEP_ALIVE="600")
    daemon.create("m", fake_model(pieces=["ok"]))
    seconds = {"300": 300, "10m": 600, "1h30m": 5400, "1.5h": 5400, 300: 300, 90.5: 90.5}
    for_ever = dict.fromkeys(["-1", "-1m", -1, 1e18], math.inf)
    default = {None: 600, "": 600}
    for value, keep_s in {**seconds, **for_ever, **default}.items():
        began_s = time.time()
        load(daemon, "m", keep_alive=value)
        (model,) = daemon.ps()
        if keep_s == math.inf:
            assert model["expires_at"] > "2100", value
        else:
            expires_s = datetime.fromisoformat(model["expires_at"][:19] + "+00:00").timestamp()
            assert began_s + keep_s - 2 <= expires_s <= time.time() + keep_s, value
        stop(daemon, "m")
        wait_empty(daemon)
    for value in (0, "0", "0s"):
        daemon.json("POST", "/api/chat", {**chat_body("m", "hi", stream=False), "keep_alive": 10})
        daemon.json(
            "POST", "/api/chat", {**chat_body("m", "hi", stream=False), "keep_alive": value}
        )
        wait_empty(daemon)
    for value in ("abc", True, {}):
        body = {"model": "m", "keep_alive": value}
        assert "keep_alive" in daemon.json("POST", "/api/generate", body, status=400)["error"]


def test_a_pinned_model_stays_pinned_until_a_request_says_otherwise(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(pieces=["ok"]))
    load(daemon, "m", keep_alive=-1)
    daemon.chat("m", "hi")
    message = {"role": "user", "content": "hi"}
    daemon.json("POST", "/v1/chat/completions", {"model": "m", "messages": [message]})
    for path in ("/api/tags", "/api/ps", "/v1/models"):
        daemon.json("GET", path)
    daemon.json("POST", "/api/show", {"model": "m"})
    assert daemon.ps()[0]["expires_at"] > "2100"
    load(daemon, "m", keep_alive="10s")
    assert daemon.ps()[0]["expires_at"] < "2100"


# ---- clients that leave, and stops


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_gives_up_again_and_again_finds_its_model_loaded_in_the_end(
    start_daemon: Start, fake_model: Fake, stream: bool
) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(pieces=["ok"], load_s=1.0))
    for _ in range(3):
        begin_to_load(daemon, "m", stream=stream).close()
    wait_until(lambda: states(daemon) == {"m": "ready"}, "the load to end although nobody waits")
    assert daemon.chat("m", "hi")["message"]["content"] == "ok"
    assert n_loads(daemon, "m") == 1


def test_a_load_goes_on_for_the_others_when_its_first_client_leaves(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(pieces=["ok"], load_s=1.0))
    connection = begin_to_load(daemon, "m", stream=True)
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(daemon.chat, "m", "hi")
        wait_until(lambda: daemon.ps()[0]["queued"] == 2, "the second to wait too")
        connection.close()
        assert waits.result()["message"]["content"] == "ok"
    assert n_loads(daemon, "m") == 1


def test_a_stop_during_a_load_ends_it_and_tells_who_waits(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(pieces=["ok"], load_s=600))
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(daemon.request, "POST", "/api/chat", chat_body("m", "hi"))
        wait_until(lambda: states(daemon) == {"m": "loading"}, "the load to begin")
        stop(daemon, "m")
        stop(daemon, "m")
        status, data = waits.result()
    assert status == 500
    assert "stopped before it was loaded" in json.loads(data)["error"]
    wait_empty(daemon)


def test_a_runner_that_is_killed_while_it_loads_leaves_nothing(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(pieces=["ok"], load_s=600, **HALF))
    daemon.create("other", fake_model(pieces=["ok"], **HALF))
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(daemon.request, "POST", "/api/chat", chat_body("m", "hi"))
        wait_until(lambda: daemon.ps() and daemon.ps()[0]["size"], "the load to begin")
        other = pool.submit(daemon.chat, "other", "hi")
        daemon.runners()[0].kill()
        status, data = waits.result()
        assert status == 500
        assert "SIGKILL" in json.loads(data)["error"]
        assert other.result()["message"]["content"] == "ok"
    assert states(daemon) == {"other": "ready"}
    assert len(daemon.runners()) == 1


def test_a_stop_of_what_is_not_loaded_does_nothing_and_of_what_is_not_there_says_so(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon()
    path = fake_model(pieces=["ok"])
    daemon.create("m", path)
    stop(daemon, "m")
    load(daemon, "m")
    path.unlink()  # what is in memory can be stopped also without its file
    stop(daemon, "m")
    wait_empty(daemon)
    daemon.json("POST", "/api/generate", {"model": "nobody", "keep_alive": 0}, status=404)


def test_a_stopped_runner_that_hangs_is_killed(start_daemon: Start, fake_model: Fake) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(pieces=["ok"]))
    load(daemon, "m")
    (runner,) = daemon.runners()
    runner.send_signal(signal.SIGSTOP)
    stop(daemon, "m")
    wait_until(lambda: is_gone(runner), "the runner to be killed")
    assert daemon.chat("m", "hi")["message"]["content"] == "ok"


@pytest.mark.soak
def test_stops_lost_clients_and_another_model_leave_nothing_behind(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon(NUM_PARALLEL=2)
    for name in ("a", "b"):
        daemon.create(name, fake_model(pieces=["la "] * 20, step_s=0.01, **HALF))
    rng = random.Random(7)

    def ask(name: str, n_lines: float) -> None:
        """Reads so many lines and leaves, or all of them."""
        last: dict[str, Any] = {}
        with daemon.open("POST", "/api/chat", chat_body(name, "hi")) as response:
            for number, line in enumerate(response):
                last = json.loads(line)
                if number >= n_lines:
                    return
        # What was asked before the stop may be told of it; what runs is finished.
        assert last.get("done") or "stopped before" in last["error"], last

    for _ in range(40 if IS_FULL else 3):
        with ThreadPoolExecutor(12) as pool:
            asked = [pool.submit(ask, "a", rng.choice([0, 1, 5, math.inf])) for _ in range(8)]
            for _ in range(3):
                wait_until(lambda: daemon.ps(), "a model")
                stop(daemon, "a")
                asked.append(pool.submit(ask, rng.choice("ab"), math.inf))
            for future in asked:
                future.result()
        for name in ("a", "b"):
            stop(daemon, name)
        wait_empty(daemon)


# ---- memory


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
    assert (error["code"], error["message"]) == ("not_enough_memory", said)
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


# ---- one runner for a model


def test_other_options_never_make_a_second_runner(start_daemon: Start, fake_model: Fake) -> None:
    daemon = start_daemon(NUM_PARALLEL=2)
    daemon.create("m", fake_model(pieces=["la "] * 5, step_s=0.01))
    most = [0]
    is_over = Event()

    def count() -> None:
        while not is_over.is_set():
            most[0] = max(most[0], len(daemon.runners()))

    counting = Thread(target=count)
    counting.start()
    try:
        options = [{}, {"num_ctx": 100}, {"num_batch": 32}, {"num_ctx": 900}, {"num_batch": 64}]
        with ThreadPoolExecutor(10) as pool:
            answers = [pool.submit(daemon.chat, "m", "hi", **each) for each in options * 2]
            assert [answer.result()["eval_count"] for answer in answers] == [5] * 10
    finally:
        is_over.set()
        counting.join()
    assert most[0] == 1
    assert len(daemon.ps()) == 1


# ---- models that leave the store


def test_a_removed_model_leaves_memory(start_daemon: Start, fake_model: Fake) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(pieces=["old"]))
    load(daemon, "m", keep_alive=-1)
    daemon.json("DELETE", "/api/delete", {"model": "m"})
    wait_empty(daemon)
    daemon.create("m", fake_model(pieces=["new"]))
    assert daemon.chat("m", "hi")["message"]["content"] == "new"


def test_a_model_removed_in_the_middle_of_an_answer_ends_it_and_its_name_is_free_at_once(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(pieces=["old "], endless=True, step_s=0.01))
    stream = daemon.stream("/api/chat", {**chat_body("m", "hi"), "keep_alive": -1})
    next(stream)
    daemon.json("DELETE", "/api/delete", {"model": "m"})
    daemon.create("m", fake_model(pieces=["new"]))
    assert daemon.chat("m", "hi")["message"]["content"] == "new"
    assert next(stream)["message"]["content"]  # the answer goes on
    assert sorted(model["state"] for model in daemon.ps()) == ["ready", "stopping"]
    stream.close()
    wait_until(lambda: states(daemon) == {"m": "ready"}, "the removed one to be gone")


def test_a_name_with_new_weights_lets_the_old_ones_go(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(pieces=["old"]))
    load(daemon, "m", keep_alive=-1)
    (old,) = daemon.runners()
    daemon.create("m", fake_model(pieces=["new"]))
    wait_until(lambda: is_gone(old), "the old weights to be gone")
    assert daemon.chat("m", "hi")["message"]["content"] == "new"


def test_a_model_stays_loaded_as_long_as_it_has_another_name(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon()
    daemon.create("one", fake_model(pieces=["ok"]))
    load(daemon, "one")
    daemon.json("POST", "/api/copy", {"source": "one", "destination": "two"})
    daemon.json("DELETE", "/api/delete", {"model": "one"})
    assert daemon.chat("two", "hi")["message"]["content"] == "ok"
    assert n_loads(daemon, "one") == 1
    assert n_loads(daemon, "two") == 0
    daemon.json("DELETE", "/api/delete", {"model": "two"})
    wait_empty(daemon)


def test_a_model_removed_while_it_loads_does_not_come(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(pieces=["ok"], load_s=600))
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(daemon.request, "POST", "/api/chat", chat_body("m", "hi"))
        wait_until(lambda: states(daemon) == {"m": "loading"}, "the load to begin")
        daemon.json("DELETE", "/api/delete", {"model": "m"})
        assert waits.result()[0] == 500
    wait_empty(daemon)
