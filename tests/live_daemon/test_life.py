"""Beginnings and ends: of the daemon, of its runners, and of what they were doing."""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from live import Daemon, chat_body, is_gone, wait_until

IS_FULL = os.environ.get("LOCALRUN_TEST_FULL") == "1"

Start = Callable[..., Daemon]
Fake = Callable[..., Path]


# ---- the daemon dies


@pytest.mark.parametrize("state", ["idle", "loading", "answering", "stopped"])
def test_no_runner_outlives_a_killed_daemon(
    start_daemon: Start, fake_model: Fake, state: str
) -> None:
    daemon = start_daemon()
    load_s = 60 if state == "loading" else 0
    daemon.create("m", fake_model(pieces=["la "], endless=True, step_s=0.01, load_s=load_s))
    thread = threading.Thread(target=lambda: _ignore_end(daemon), daemon=True)
    if state == "idle":
        daemon.json("POST", "/api/generate", {"model": "m"})
    else:
        thread.start()
    wait_until(daemon.runners, "a runner")
    if state == "answering":
        wait_until(lambda: daemon.n_busy() == 1, "the answer to begin")
    runners = daemon.runners()
    if state == "stopped":
        daemon.process.send_signal(signal.SIGSTOP)
    daemon.kill()
    wait_until(lambda: all(is_gone(runner) for runner in runners), "the runners to end")


def _ignore_end(daemon: Daemon) -> None:
    with contextlib.suppress(OSError, ValueError):
        list(daemon.stream("/api/chat", chat_body("m", "hi")))


def test_a_runner_that_computes_ends_with_its_daemon(
    start_daemon: Start, smollm2_path: Path
) -> None:
    daemon = start_daemon()
    daemon.create("m", smollm2_path)
    threading.Thread(target=lambda: _ignore_end(daemon), daemon=True).start()
    wait_until(lambda: daemon.n_busy() == 1, "the answer to begin")
    runners = daemon.runners()
    daemon.kill()
    wait_until(lambda: all(is_gone(runner) for runner in runners), "the runner to end")


# ---- a runner dies


def test_after_a_killed_runner_the_next_request_loads_again(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(pieces=["ok"]))
    for _ in range(50 if IS_FULL else 5):
        assert daemon.chat("m", "hi")["message"]["content"] == "ok"
        (runner,) = daemon.runners()
        runner.kill()
        wait_until(lambda runner=runner: is_gone(runner), "the runner to be gone")
    assert daemon.chat("m", "hi")["message"]["content"] == "ok"


def test_a_stream_that_had_begun_ends_with_an_error_and_says_so_once(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(pieces=["la "], endless=True, step_s=0.01))
    stream = daemon.stream("/api/chat", chat_body("m", "hi"))
    next(stream)
    daemon.runners()[0].kill()
    rest = list(stream)
    assert "model runner has unexpectedly stopped" in rest[-1]["error"]
    assert not any("error" in part or part["done"] for part in rest[:-1])


def test_requests_that_only_waited_are_answered_by_a_fresh_runner(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon(NUM_PARALLEL=1)
    daemon.create("m", fake_model(echo=True, step_s=0.02))
    with ThreadPoolExecutor() as pool:
        first = daemon.stream("/api/chat", chat_body("m", "x" * 1000))
        next(first)
        waiting = [pool.submit(daemon.chat, "m", f"waiting {n}") for n in range(3)]
        wait_until(lambda: daemon.ps()[0]["queued"] == 3, "three requests to wait")
        daemon.runners()[0].kill()
        answers = [future.result()["message"]["content"] for future in waiting]
    assert answers == [f"waiting {n}" for n in range(3)]
    assert "error" in list(first)[-1]


def test_a_prompt_that_kills_its_runner_twice_fails_alone(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon(NUM_PARALLEL=4)
    daemon.create("m", fake_model(echo=True, row_s=0.0002, crash_on=b"poison"))
    with ThreadPoolExecutor() as pool:
        poisoned = pool.submit(daemon.request, "POST", "/api/chat", chat_body("m", "poison"))
        others = [pool.submit(daemon.chat, "m", f"innocent {n}") for n in range(3)]
        answers = [future.exception() or future.result() for future in others]
        status, data = poisoned.result()
    # Headers may have gone out before the prompt was evaluated; then the error is the last line.
    assert status in (200, 500)
    assert "unexpectedly stopped" in json.loads(data.splitlines()[-1])["error"]
    for answer in answers:
        # Those that had sent text when the runner died end with an error; none hangs.
        assert isinstance(answer, AssertionError) or answer["done"]
    assert daemon.chat("m", "afterwards")["message"]["content"] == "afterwards"


def test_a_template_that_never_ends_costs_its_model_a_runner_and_nobody_else_anything(
    start_daemon: Start, fake_model: Fake
) -> None:
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    daemon = start_daemon()
    for name in ("loops", "counted"):
        daemon.create(name, fake_model(pieces=[name], chat_template=loop))
    daemon.create("fine", fake_model(pieces=["ok"]))
    with ThreadPoolExecutor() as pool:
        stuck = pool.submit(daemon.request, "POST", "/api/chat", chat_body("loops", "hi"))
        body = {"model": "counted", "messages": [{"role": "user", "content": "hi"}]}
        count = pool.submit(daemon.request, "POST", "/v1/messages/count_tokens", body)
        assert daemon.chat("fine", "hi")["message"]["content"] == "ok"
        status, data = stuck.result()
        counted = count.result()
    assert (status, counted[0]) == (500, 500)
    assert "did not finish within" in json.loads(data)["error"]
    assert "did not finish within" in json.loads(counted[1])["error"]["message"]
    assert daemon.chat("fine", "hi")["message"]["content"] == "ok"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ({"refuse": "the scales are missing"}, "the scales are missing"),
        ({"crash_on_load": True}, "SIGABRT"),
    ],
)
def test_a_load_that_fails_says_why_and_is_tried_again_by_the_next_request(
    start_daemon: Start, fake_model: Fake, script: dict[str, object], expected: str
) -> None:
    daemon = start_daemon()
    daemon.create("bad", fake_model(**script))
    daemon.create("good", fake_model(pieces=["ok"]))
    for _ in range(2):
        error = daemon.json("POST", "/api/chat", chat_body("bad", "hi"), status=500)["error"]
        assert expected in error
        assert "/" not in error.replace("I/O", "")
    assert daemon.chat("good", "hi")["message"]["content"] == "ok"
    assert [model["name"] for model in daemon.ps()] == ["good:latest"]


def test_a_load_without_progress_is_given_up(start_daemon: Start, fake_model: Fake) -> None:
    daemon = start_daemon(LOAD_TIMEOUT="300ms")
    daemon.create("m", fake_model(pieces=["x"], load_s=600, load_silent=True))
    error = daemon.json("POST", "/api/chat", chat_body("m", "hi"), status=500)["error"]
    assert "no progress" in error
    wait_until(lambda: not daemon.runners(), "the runner to be gone")


def test_a_runner_that_hangs_is_replaced(start_daemon: Start, fake_model: Fake) -> None:
    daemon = start_daemon(LOAD_TIMEOUT="1s")
    daemon.create("m", fake_model(pieces=["la "] * 50, step_s=0.01))
    stream = daemon.stream("/api/chat", chat_body("m", "hi"))
    next(stream)
    (runner,) = daemon.runners()
    runner.suspend()
    assert "error" in list(stream)[-1]
    assert is_gone(runner)
    assert daemon.chat("m", "hi")["eval_count"] == 50


def test_children_are_reaped(start_daemon: Start, fake_model: Fake) -> None:
    daemon = start_daemon()
    daemon.create("good", fake_model(pieces=["ok"]))
    daemon.create("bad", fake_model(refuse="no"))
    parent = psutil.Process(daemon.process.pid)
    for number in range(67 if IS_FULL else 5):
        daemon.chat("good", "hi")
        daemon.request("POST", "/api/chat", chat_body("bad", "hi"))
        if number % 2:
            daemon.runners()[0].kill()
        else:
            daemon.json("POST", "/api/generate", {"model": "good", "keep_alive": 0})
        wait_until(lambda: not parent.children(), "every child to be reaped")


# ---- keep-alive


def test_keep_alive_0_unloads_after_the_answer(start_daemon: Start, fake_model: Fake) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(pieces=["ok"]))
    daemon.json("POST", "/api/chat", {**chat_body("m", "hi", stream=False), "keep_alive": 0})
    wait_until(lambda: not daemon.ps() and not daemon.runners(), "the model to be gone")


def test_a_short_keep_alive_ends_and_a_negative_one_never_does(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon()
    for name in ("short", "stays"):
        daemon.create(name, fake_model(pieces=[name]))
    daemon.json("POST", "/api/generate", {"model": "stays", "keep_alive": -1})
    daemon.json("POST", "/api/generate", {"model": "short", "keep_alive": "50ms"})
    wait_until(
        lambda: [model["name"] for model in daemon.ps()] == ["stays:latest"], "the other to go"
    )
    assert daemon.ps()[0]["expires_at"] > "2100"


def test_a_busy_model_is_unloaded_after_its_last_answer(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(pieces=["la "] * 30, step_s=0.03))
    stream = daemon.stream("/api/chat", chat_body("m", "hi"))
    next(stream)
    assert daemon.json("POST", "/api/generate", {"model": "m", "keep_alive": 0})["done"]
    wait_until(lambda: daemon.ps()[0]["state"] == "stopping", "the model to be on its way out")
    parts = list(stream)
    assert parts[-1]["eval_count"] == 30
    wait_until(lambda: not daemon.ps(), "the model to be gone")


def test_a_model_too_many_takes_the_place_of_the_one_used_longest_ago(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon(MAX_LOADED_MODELS=2)
    for name in ("a", "b", "c"):
        daemon.create(name, fake_model(pieces=[name]))
        assert daemon.chat(name, "hi")["message"]["content"] == name
    assert {model["name"] for model in daemon.ps()} == {"b:latest", "c:latest"}


def test_names_that_share_weights_share_a_runner(start_daemon: Start, fake_model: Fake) -> None:
    daemon = start_daemon()
    path = fake_model(pieces=["ok"])
    for name in ("one", "two"):
        daemon.create(name, path)
        daemon.chat(name, "hi")
    assert len(daemon.runners()) == 1


# ---- SIGTERM


def test_sigterm_lets_a_short_answer_end_and_tells_an_endless_one(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon(NUM_PARALLEL=2)
    daemon.create("short", fake_model(pieces=["la "] * 20, step_s=0.01))
    daemon.create("endless", fake_model(pieces=["la "], endless=True, step_s=0.01))
    short = daemon.stream("/api/chat", chat_body("short", "hi"))
    endless = daemon.stream("/api/chat", chat_body("endless", "hi"))
    next(short), next(endless)
    with ThreadPoolExecutor() as pool:
        exit_code = pool.submit(daemon.terminate)
        ends = list(pool.map(list, [short, endless]))
    assert ends[0][-1]["done"]
    assert ends[0][-1]["eval_count"] == 20
    assert "shutting down" in ends[1][-1]["error"]
    assert sum("error" in part or part["done"] for part in ends[1]) == 1
    assert exit_code.result() == 0


def test_sigterm_refuses_what_waits_and_what_is_new(start_daemon: Start, fake_model: Fake) -> None:
    daemon = start_daemon(NUM_PARALLEL=1)
    daemon.create("endless", fake_model(pieces=["la "], endless=True, step_s=0.01))
    daemon.create("loading", fake_model(pieces=["x"], load_s=60))
    stream = daemon.stream("/api/chat", chat_body("endless", "hi"))
    next(stream)
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(daemon.request, "POST", "/api/chat", chat_body("loading", "hi"))
        wait_until(lambda: len(daemon.ps()) == 2, "the load to begin")
        daemon.process.send_signal(signal.SIGTERM)
        assert waits.result()[0] == 503
        with daemon.open("POST", "/api/chat", chat_body("endless", "hi")) as response:
            assert response.status == 503
            assert response.headers["Connection"] == "close"
        list(stream)
    assert daemon.process.wait(30) == 0


def test_sigterm_with_idle_connections_ends_at_once(daemon: Daemon) -> None:
    connections = [daemon.connect() for _ in range(3)]
    for connection in connections:
        connection.request("GET", "/api/tags")
        connection.getresponse().read()
    assert daemon.terminate() == 0
    for connection in connections:
        connection.close()
