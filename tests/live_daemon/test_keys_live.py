"""A daemon with API keys, and the command line that has one."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from live import Daemon, wait_until

KEY = "sk-live-secret"


class KeyedDaemon(Daemon):
    """Asks with the key, as the helpers of tests do without one."""

    def request(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        connection = self.connect()
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"x-api-key": KEY, "Connection": "close"})
        with connection.getresponse() as response:
            return response.status, response.read()


@pytest.fixture
def guarded(start_daemon: Callable[..., Daemon], fake_model: Callable[..., Path]) -> Daemon:
    """Beyond loopback, which the key allows, with a model that echoes."""
    daemon = start_daemon(HOST="0.0.0.0:0", API_KEY=KEY)
    daemon.__class__ = KeyedDaemon
    daemon.create("m", fake_model(echo=True))
    return daemon


def localrun(daemon: Daemon, *words: str, key: str = "") -> subprocess.CompletedProcess[str]:
    return daemon.run_cli(*words, **({"LOCALRUN_API_KEY": key} if key else {}))


def test_the_command_line_sends_its_key_and_says_what_is_missing(guarded: Daemon) -> None:
    assert "m:latest" in localrun(guarded, "list", key=KEY).stdout
    assert localrun(guarded, "run", "m", "hello", key=KEY).stdout == "hello\n"
    assert localrun(guarded, "show", "m", key=KEY).returncode == 0
    for key in ("", "sk-wrong"):
        for words in (("list",), ("run", "m", "hello"), ("rm", "m"), ("stop", "--daemon")):
            done = localrun(guarded, *words, key=key)
            assert done.returncode != 0
            assert "API key" in done.stderr, done.stderr
            assert "Traceback" not in done.stderr
    assert "m:latest" in localrun(guarded, "list", key=KEY).stdout


def test_no_key_stands_in_the_log(guarded: Daemon) -> None:
    localrun(guarded, "list", key=KEY)
    localrun(guarded, "list", key="sk-wrong-live")
    assert "sk-" not in guarded.log()


def test_only_health_answers_without_a_key(guarded: Daemon) -> None:
    for path, status in (("/health", 200), ("/", 200), ("/api/tags", 401), ("/metrics", 401)):
        assert Daemon.request(guarded, "GET", path)[0] == status


def test_keys_share_no_prefix_and_each_with_itself_does(
    start_daemon: Callable[..., Daemon], fake_model: Callable[..., Path], tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("ada: k-ada\nben: k-ben\n")
    keys.chmod(0o600)
    daemon = start_daemon(API_KEY=KEY, API_KEYS_FILE=keys, MAX_RUNNING_PER_KEY=1)
    daemon.__class__ = KeyedDaemon
    daemon.create("m", fake_model(pieces=["ok"]))
    text = "a long beginning that several requests have in common " * 4

    def n_cached(key: str) -> int:
        connection = daemon.connect()
        body = {"model": "m", "prompt": text, "stream": False, "options": {"temperature": 0}}
        headers = {"Authorization": f"Bearer {key}", "Connection": "close"}
        connection.request("POST", "/api/generate", json.dumps(body), headers)
        with connection.getresponse() as response:
            return int(json.loads(response.read()).get("prompt_cached_count", 0))

    assert n_cached("k-ada") == 0
    assert n_cached("k-ben") == 0
    assert n_cached("k-ada") > len(text) // 2
    assert n_cached(KEY) == 0


def test_a_key_that_has_its_share_gets_429_and_others_go_on(
    start_daemon: Callable[..., Daemon], fake_model: Callable[..., Path], tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("other: k-other\n")
    keys.chmod(0o600)
    daemon = start_daemon(
        API_KEY=KEY, API_KEYS_FILE=keys, MAX_RUNNING_PER_KEY=1, MAX_QUEUED_PER_KEY=0
    )
    daemon.__class__ = KeyedDaemon
    daemon.create("m", fake_model(pieces=["la "], endless=True, step_s=0.005))
    body = {"model": "m", "prompt": "x", "options": {"num_predict": 5}}
    first = daemon.connect()
    first.request("POST", "/api/generate", json.dumps(body | {"options": {}}), {"x-api-key": KEY})
    assert first.getresponse().read(1)
    status, reply = daemon.request("POST", "/api/generate", body)
    assert (status, "limit" in reply.decode()) == (429, True)
    other = daemon.connect()
    other.request("POST", "/api/generate", json.dumps(body), {"x-api-key": "k-other"})
    assert other.getresponse().status == 200
    first.close()
    wait_until(
        lambda: daemon.request("POST", "/api/generate", body)[0] == 200, "the place to be free"
    )
    other.close()


def test_a_daemon_without_a_key_does_not_leave_loopback(tmp_path: Path) -> None:
    environment = {**os.environ, "LOCALRUN_HOST": "0.0.0.0:0", "LOCALRUN_MODELS": str(tmp_path)}
    command = [sys.executable, "-m", "cli", "serve"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "LOCALRUN_API_KEY" in done.stderr


def test_a_file_of_keys_that_others_may_read_stops_the_start(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("ada: k-ada\n")
    keys.chmod(0o644)
    environment = {
        **os.environ,
        "LOCALRUN_HOST": "127.0.0.1:0",
        "LOCALRUN_MODELS": str(tmp_path / "models"),
        "LOCALRUN_API_KEYS_FILE": str(keys),
    }
    command = [sys.executable, "-m", "cli", "serve"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "chmod 600" in done.stderr
    assert "Traceback" not in done.stderr
