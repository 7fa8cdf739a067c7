"""Models in and out of memory: how long one stays, who waits for it, and what a stop leaves."""

import json
import math
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from threading import Event, Thread
from typing import Any

import pytest
from live import chat_body, is_gone, wait_until
from residency_steps import (
    HALF,
    IS_FULL,
    Fake,
    Start,
    begin_to_load,
    load,
    n_loads,
    states,
    stop,
    wait_empty,
)

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
