"""Many clients at once: nobody's answer depends on who comes, leaves or stops reading."""

import json
import os
import random
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from live import Daemon, chat_body, wait_until

IS_FULL = os.environ.get("LOCALRUN_TEST_FULL") == "1"

# Options that give the same text whatever else is going on.
SAME: dict[str, Any] = {"temperature": 0, "num_predict": 6, "deterministic": True}

ENDLESS: dict[str, Any] = {"pieces": ["la "], "endless": True, "step_s": 0.005}


@pytest.fixture
def singer(start_daemon: Callable[..., Daemon], fake_model: Callable[..., Path]) -> Daemon:
    """A daemon with `sing`, which never ends, and `slow`, whose prompts take for ever."""
    daemon = start_daemon(NUM_PARALLEL=2, CONTEXT_LENGTH=100_000)
    daemon.create("sing", fake_model(**ENDLESS, n_ctx_train=100_000))
    daemon.create("slow", fake_model(pieces=["x"], row_s=0.002, n_batch=64, n_ctx_train=100_000))
    return daemon


def send_chat(daemon: Daemon, body: dict[str, Any]) -> socket.socket:
    """A request written to a bare socket."""
    data = json.dumps(body).encode()
    sock = socket.create_connection(("127.0.0.1", daemon.port), timeout=30)
    head = f"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    sock.sendall(head.encode() + data)
    return sock


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("leave", ["close", "half-close"])
@pytest.mark.parametrize("phase", ["prompt", "answer"])
def test_a_client_that_leaves_frees_its_slot(
    singer: Daemon, stream: bool, leave: str, phase: str
) -> None:
    model, text = ("slow", "y" * 50_000) if phase == "prompt" else ("sing", "hi")
    sock = send_chat(singer, chat_body(model, text, stream=stream))
    wait_until(lambda: singer.n_busy() == 1, "the request to get a slot")
    if phase == "answer" and stream:
        assert sock.recv(10)
    if leave == "close":
        sock.close()
    else:
        sock.shutdown(socket.SHUT_WR)
    wait_until(lambda: singer.n_busy() == 0, "the slot to be free")
    sock.close()
    assert singer.chat(model, "hi", num_predict=1)["done_reason"] == "length"


def test_a_client_that_leaves_during_a_load_does_no_harm(
    start_daemon: Callable[..., Daemon], fake_model: Callable[..., Path]
) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(pieces=["ok"], load_s=0.5))
    sock = send_chat(daemon, chat_body("m", "hi"))
    wait_until(lambda: [m["state"] for m in daemon.ps()] == ["loading"], "the load")
    with ThreadPoolExecutor() as pool:
        stays = pool.submit(daemon.chat, "m", "hi")
        sock.close()
        assert stays.result()["message"]["content"] == "ok"
    assert len(daemon.runners()) == 1


def test_leaving_the_queue_disturbs_nobody(
    start_daemon: Callable[..., Daemon], fake_model: Callable[..., Path]
) -> None:
    daemon = start_daemon(NUM_PARALLEL=1)
    daemon.create("m", fake_model(echo=True, step_s=0.005))
    text = "the undisturbed answer"
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(daemon.chat, "m", text)
        wait_until(lambda: daemon.n_busy() == 1, "the first request to run")
        queued = send_chat(daemon, chat_body("m", "never evaluated"))
        wait_until(lambda: daemon.ps()[0]["queued"] == 1, "the second to wait")
        queued.close()
        assert answer.result()["message"]["content"] == text
    wait_until(lambda: daemon.ps()[0]["queued"] == 0, "the queue to be empty")


def test_others_leaving_and_coming_do_not_change_a_greedy_answer(
    smollm2_daemon: Daemon,
) -> None:
    def ask() -> str:
        options = {"temperature": 0, "num_predict": 48, "deterministic": True}
        answer = smollm2_daemon.chat("smollm2:135m", "List the numbers from 1 to 20.", **options)
        return str(answer["message"]["content"])

    undisturbed = ask()
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(ask)
        wait_until(lambda: smollm2_daemon.n_busy() >= 1, "the answer to begin")
        for _ in range(3):
            other = send_chat(smollm2_daemon, chat_body("smollm2:135m", "Tell me a story."))
            other.recv(10)
            other.close()
        assert answer.result() == undisturbed


def test_sixteen_clients_with_answers_of_all_lengths_get_them_whole(
    start_daemon: Callable[..., Daemon], fake_model: Callable[..., Path]
) -> None:
    daemon = start_daemon(NUM_PARALLEL=8)
    daemon.create("m", fake_model(echo=True))
    texts = [f"{n}:" + "word " * n * 3 for n in range(16)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda text: daemon.chat("m", text), texts))
    assert [answer["message"]["content"] for answer in answers] == texts
    assert [answer["eval_count"] for answer in answers] == [len(text) for text in texts]


def test_sixteen_real_chats_at_once_all_end_properly(smollm2_daemon: Daemon) -> None:
    def ask(number: int) -> list[dict[str, Any]]:
        body = chat_body("smollm2:135m", f"Say {number}.", num_predict=3 + number, temperature=0)
        return list(smollm2_daemon.stream("/api/chat", body))

    with ThreadPoolExecutor(16) as pool:
        streams = list(pool.map(ask, range(16)))
    for number, stream in enumerate(streams):
        last = stream[-1]
        assert [part["done"] for part in stream].count(True) == 1
        assert last["done"]
        assert last["done_reason"] in ("stop", "length")
        assert last["eval_count"] <= 3 + number
    wait_until(lambda: smollm2_daemon.n_busy() == 0, "all slots to be free")


def _mixed_work(daemon: Daemon, seconds: float, rng: random.Random, problems: list[str]) -> None:
    """Chats, streams that break off, shows, lists and other windows, until the time is up."""
    stop = threading.Event()
    timer = threading.Timer(seconds, stop.set)
    timer.start()
    expected = daemon.chat("smollm2:135m", "Hi", **SAME)

    def work(seed: int) -> None:
        own = random.Random(seed)
        while not stop.is_set():
            kind = own.choice(["chat", "generate", "break off", "show", "ps", "window", "list"])
            try:
                _one_call(daemon, kind, own, expected["message"]["content"])
            except Exception as error:  # noqa: BLE001 - collected, and the test fails with it
                problems.append(f"{kind}: {error!r}")

    threads = [threading.Thread(target=work, args=(rng.randrange(10**9),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    timer.cancel()


def _one_call(daemon: Daemon, kind: str, rng: random.Random, expected: str) -> None:
    model = "smollm2:135m"
    if kind == "chat":
        answer = daemon.chat(model, "Hi", **SAME)["message"]["content"]
        assert answer == expected, answer
    elif kind == "generate":
        body = {"model": model, "prompt": "Hi", "stream": False, "options": {"num_predict": 4}}
        assert daemon.json("POST", "/api/generate", body)["done"]
    elif kind == "break off":
        stream = daemon.stream("/api/chat", chat_body(model, "Tell me a story."))
        for _ in range(rng.randrange(3)):
            next(stream)
        stream.close()
    elif kind == "window":
        daemon.chat(model, "Hi", num_ctx=rng.choice([256, 512, 1024]), num_predict=2)
    elif kind == "show":
        daemon.json("POST", "/api/show", {"model": model})
    else:
        daemon.json("GET", "/api/ps" if kind == "ps" else "/api/tags")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_mixed_work_from_eight_threads_never_breaks_the_runner(smollm2_daemon: Daemon) -> None:
    problems: list[str] = []
    smollm2_daemon.chat("smollm2:135m", "Hi", num_predict=1)
    pids = [runner.pid for runner in smollm2_daemon.runners()]
    _mixed_work(smollm2_daemon, 300 if IS_FULL else 8, random.Random(1), problems)
    assert problems == []
    assert [runner.pid for runner in smollm2_daemon.runners()] == pids
    wait_until(lambda: smollm2_daemon.n_busy() == 0, "all slots to be free")


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_hundreds_of_requests_neither_hang_nor_grow(
    start_daemon: Callable[..., Daemon], fake_model: Callable[..., Path]
) -> None:
    daemon = start_daemon(NUM_PARALLEL=4)
    daemon.create("m", fake_model(echo=True))
    n_rounds = 400 if IS_FULL else 6

    def ask(number: int) -> None:
        if number % 5 == 0:
            stream = daemon.stream("/api/chat", chat_body("m", "break off" * 20))
            next(stream)
            stream.close()
        else:
            text = f"request {number}"
            assert daemon.chat("m", text)["message"]["content"] == text

    def rss_bytes() -> int:
        processes = [psutil.Process(daemon.process.pid), *daemon.runners()]
        return sum(process.memory_info().rss for process in processes)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(200)))
        warm_bytes = rss_bytes()
        for _ in range(n_rounds):
            list(pool.map(ask, range(100)))
    wait_until(lambda: daemon.n_busy() == 0, "all slots to be free")
    assert rss_bytes() < warm_bytes * 1.05 + 2_000_000
