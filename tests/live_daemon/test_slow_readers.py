"""A client that stops reading: its sequence waits for it, everybody else goes on."""

import http.client
import json
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from live import LIMIT_S, Daemon, wait_until

# Each piece says which one it is, so that a lost one shows.
PIECES = [f"{number:04d}" + "." * 60 + "\n" for number in range(100)]


@pytest.fixture
def daemon(start_daemon: Callable[..., Daemon], fake_model: Callable[..., Path]) -> Daemon:
    daemon = start_daemon(NUM_PARALLEL=1, CONTEXT_LENGTH=1_000_000, NUM_THREAD=1)
    daemon.create("endless", fake_model(pieces=PIECES, endless=True, n_ctx_train=1_000_000))
    daemon.create("short", fake_model(pieces=["done"]))
    return daemon


def begin(daemon: Daemon, path: str, body: dict[str, object]) -> http.client.HTTPConnection:
    """A request whose socket takes in little before it is read."""
    connection = daemon.connect()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
    sock.settimeout(LIMIT_S)
    sock.connect(("127.0.0.1", daemon.port))
    connection.sock = sock
    connection.request("POST", path, json.dumps(body))
    return connection


def metric(daemon: Daemon, name: str) -> float:
    _, text = daemon.request("GET", "/metrics")
    lines = [line for line in text.decode().splitlines() if line.startswith(f"localrun_{name}{{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def text_of(connection: http.client.HTTPConnection) -> str:
    with connection.getresponse() as response:
        return "".join(json.loads(line)["response"] for line in response)


def test_a_client_that_stops_reading_stops_its_sequence_and_loses_nothing(daemon: Daemon) -> None:
    body = {"model": "endless", "prompt": "x", "options": {"num_predict": 5_000}}
    with closing(begin(daemon, "/api/generate", body)) as connection:
        wait_until(lambda: metric(daemon, "paused") == 1, "the sequence to be paused")
        assert daemon.n_busy() == 0
        n_decoded = metric(daemon, "decode_tokens_total")
        # Its slot, the only one, is somebody else's now; and it does not advance meanwhile.
        for _ in range(3):
            other = daemon.json(
                "POST",
                "/api/generate",
                {"model": "endless", "prompt": "y", "stream": False, "options": {"num_predict": 5}},
            )
            assert other["eval_count"] == 5
        assert metric(daemon, "decode_tokens_total") <= n_decoded + 3 * 5
        said = text_of(connection)
    assert said == "".join(PIECES) * 50
    assert metric(daemon, "pauses_total") >= 1
    assert metric(daemon, "paused") == 0


def test_a_client_that_leaves_while_it_is_paused_is_forgotten(daemon: Daemon) -> None:
    connection = begin(daemon, "/api/generate", {"model": "endless", "prompt": "x"})
    wait_until(lambda: metric(daemon, "paused") == 1, "the sequence to be paused")
    connection.close()
    wait_until(lambda: metric(daemon, "requests_cancelled_total") == 1, "the request to be over")
    assert metric(daemon, "paused") == 0
    assert daemon.ps()[0]["queued"] == 0
