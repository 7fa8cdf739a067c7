"""`stop --daemon` against a process that only claims to be a daemon."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from cli_stub import Reply, Shell, Stub

from cli.commands import stop

# Answers every request with the text of its second argument, in which PID is its own number.
CODE = """
import http.server, os, signal, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        text = sys.argv[2].replace("PID", str(os.getpid())).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def log_message(self, *_):
        pass
if sys.argv[3:]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print("ready", flush=True)
server.serve_forever()
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(free_port: int) -> Iterator[Start]:
    """Starts the process on the free port; it is ended afterwards."""
    started = []

    def begin(*argv: str) -> "subprocess.Popen[str]":
        child = subprocess.Popen(
            [sys.executable, "-c", CODE, str(free_port), *argv], stdout=subprocess.PIPE, text=True
        )
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        return child

    yield begin
    for child in started:
        child.kill()
        child.communicate()


@pytest.fixture
def away(shell: Shell, free_port: int) -> Shell:
    """Commands for the free port."""
    return Shell(shell.environ | {"LOCALRUN_HOST": f"127.0.0.1:{free_port}"})


OURS = '{"version": "0.30.0", "localrun": "0.1.0", "pid": PID}'


def test_the_daemon_ends(start: Start, away: Shell, free_port: int) -> None:
    child = start(OURS)
    result = away("stop", "--daemon")
    assert (result.code, result.err) == (0, "")
    url = f"http://127.0.0.1:{free_port}"
    assert result.out == f"stopped localrun 0.1.0 at {url} (pid {child.pid})\n"
    assert child.wait(30) == -15
    again = away("stop", "--daemon")
    message = f"Error: no localrun daemon at {url}: there is nothing to stop\n"
    assert (again.code, again.out, again.err) == (3, "", message)


def test_a_daemon_that_does_not_end(
    start: Start, away: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop, "DAEMON_END_TIMEOUT_S", 0.1)
    child = start(OURS, "stubborn")
    result = away("stop", "--daemon")
    assert (result.code, result.out) == (1, "")
    assert f"has not ended in 0.1 s; `kill -9 {child.pid}` ends it at once" in result.err


@pytest.mark.parametrize("pid", [None, -1, 0, os.getppid()])
def test_a_process_that_does_not_listen_there_is_spared(
    stub: Stub, shell: Shell, pid: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("must not get this far"))
    body = {"version": "0.30.0", "localrun": "0.1.0", "pid": pid}
    stub.on("GET", "/api/version", Reply(body=body))
    result = shell("stop", "--daemon")
    assert (result.code, "is not a process of this machine and user" in result.err) == (1, True)


def test_what_is_not_ours_is_spared(stub: Stub, shell: Shell) -> None:
    body = {"version": "0.12.3", "pid": os.getpid()}
    stub.on("GET", "/api/version", Reply(body=body))
    result = shell("stop", "--daemon")
    assert (result.code, "is not localrun but Ollama 0.12.3" in result.err) == (1, True)
    distant = shell("stop", "--daemon", LOCALRUN_HOST="192.0.2.1")
    assert (distant.code, "is not on this machine" in distant.err) == (2, True)
