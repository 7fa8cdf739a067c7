"""Windows and load options of many clients: who causes a load, and what no value can do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from live import Daemon, chat_body, wait_until

Start = Callable[..., Daemon]
Fake = Callable[..., Path]


def runner_pid(daemon: Daemon) -> int:
    """The process id of the one runner."""
    wait_until(lambda: len(daemon.runners()) == 1, "one runner to be there")
    return daemon.runners()[0].pid


def test_no_window_loads_a_model_again(start_daemon: Start, fake_model: Fake) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(echo=True))
    pids = set()
    for num_ctx in (2048, None, 1024, 2049, 0, 2048, 1024, None):
        options = {} if num_ctx is None else {"num_ctx": num_ctx}
        assert daemon.chat("m", "the answer", **options)["message"]["content"] == "the answer"
        pids.add(runner_pid(daemon))
    assert len(pids) == 1
    assert daemon.ps()[0]["context_length"] == 4096


def test_a_window_grows_and_shrinks_for_each_request_alone(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(echo=True))
    text = "x" * 1000
    assert daemon.chat("m", text, num_ctx=1200)["done_reason"] == "length"
    pid = runner_pid(daemon)
    assert daemon.chat("m", text, num_ctx=2100)["message"]["content"] == text
    assert daemon.ps()[0]["context_length"] >= 2100
    capped = daemon.chat("m", text, num_ctx=1200)
    assert capped["done_reason"] == "length"
    assert capped["prompt_eval_count"] + capped["eval_count"] <= 1200
    assert runner_pid(daemon) == pid


def test_only_a_load_option_that_is_asked_for_and_differs_loads_again(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon(NUM_THREAD=2)
    daemon.create("m", fake_model(pieces=["ok"]))
    steps: tuple[tuple[dict[str, Any], bool], ...] = (
        ({}, True),
        ({"num_batch": 512}, False),
        ({"num_batch": 64}, True),
        ({}, False),
        ({"num_batch": 64, "num_thread": 0}, False),
        ({"use_mmap": False}, True),
        ({"use_mmap": False, "num_batch": 512}, False),
        ({"num_thread": 1}, True),
        ({"num_thread": 1, "temperature": 0}, False),
        ({"admission": "static"}, True),
        ({}, False),
    )
    pid = 0
    for options, loads_again in steps:
        assert daemon.chat("m", "hi", **options)["message"]["content"] == "ok"
        assert (runner_pid(daemon) != pid) is loads_again, options
        pid = runner_pid(daemon)


def test_the_log_says_how_many_threads_a_model_gets(start_daemon: Start, fake_model: Fake) -> None:
    daemon = start_daemon(NUM_THREAD=1)
    daemon.create("m", fake_model(pieces=["ok"]))
    daemon.chat("m", "hi", num_ctx=512)
    assert "loading m:latest: window 512, threads 1" in daemon.log()


ODD: tuple[tuple[str, Any], ...] = (
    *(("num_keep", value) for value in (255, 256, 257, 100_000, -1, -2)),
    *(("num_ctx", value) for value in (0, 1, 7, -5, 10**9, "big")),
    *(("num_batch", value) for value in (0, 1, 257, 100_000)),
)


def test_no_odd_option_of_the_window_harms_anybody(start_daemon: Start, fake_model: Fake) -> None:
    daemon = start_daemon(CONTEXT_LENGTH=256)
    daemon.create("m", fake_model(pieces=["la "], endless=True))
    for name, value in ODD:
        body = chat_body("m", "hi", stream=False, **{"num_ctx": 256, name: value})
        pids = []
        for _ in range(2):  # the first may load with its `num_batch`, the second finds it there
            status, data = daemon.request("POST", "/api/chat", body)
            assert status in (200, 400), (name, value, data)
            assert status == 200 or name in data.decode(), (name, value, data)
            pids.append([runner.pid for runner in daemon.runners()])
        assert pids[0] == pids[1], (name, value)
    assert daemon.process.poll() is None
    assert daemon.chat("m", "hi", num_predict=3)["done_reason"] == "length"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("limit", [{}, {"num_predict": -1}, {"num_predict": -2}])
def test_an_answer_without_an_end_ends_with_its_window(
    start_daemon: Start, fake_model: Fake, stream: bool, limit: dict[str, int]
) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(pieces=["la "], endless=True))
    body = chat_body("m", "hi", stream=stream, num_ctx=256, **limit)
    *_, last = daemon.stream("/api/chat", body)
    assert (last["done"], last["done_reason"]) == (True, "length")
    assert last["prompt_eval_count"] + last["eval_count"] <= 256
    wait_until(lambda: daemon.n_busy() == 0, "the slot to be free")


def test_metrics_cover_the_models_in_memory(start_daemon: Start, fake_model: Fake) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(pieces=["ok"]))
    with daemon.open("GET", "/metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert b"localrun_loaded_models 0\n" in response.read()
    daemon.chat("m", "hi")
    status, data = daemon.request("GET", "/metrics")
    lines = data.decode().splitlines()
    assert status == 200
    assert "localrun_loaded_models 1" in lines
    assert any(line.startswith('localrun_kv_cells{model="m:latest"} ') for line in lines)
    assert any(
        line.startswith('localrun_ttft_seconds_bucket{model="m:latest",le="') for line in lines
    )
    assert {"slots", "queued", "layout", "kv"} <= daemon.ps()[0].keys()
