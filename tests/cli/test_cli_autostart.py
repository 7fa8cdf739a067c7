"""Starting a daemon in the background: once, with its log, and saying why when it fails."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli import autostart
from cli.errors import DaemonUnreachable
from localrun.settings import Settings

# Notes its start, then answers everything until it is told to stop.
FAKE_DAEMON = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
    def log_message(self, *_):
        pass
port, starts = int(sys.argv[1]), sys.argv[2]
with open(starts, "a") as file:
    file.write(f"{os.getpid()} {os.getsid(0) == os.getpid()}\\n")
server = http.server.HTTPServer(("127.0.0.1", port), Handler)
server.serve_forever()
"""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(autostart, "state_folder", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def starts(state: Path, free_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file in which every fake daemon notes its start; they are ended afterwards."""
    path = state / "starts"
    command = [sys.executable, "-c", FAKE_DAEMON, str(free_port), str(path)]
    monkeypatch.setattr(autostart, "daemon_command", lambda _: command)
    yield path
    for line in path.read_text().splitlines() if path.exists() else []:
        pid = int(line.split()[0])
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)


def test_two_commands_at_once_end_with_one_daemon(starts: Path, free_port: int) -> None:
    settings = Settings(port=free_port)
    notes: list[str] = []
    threads = [
        threading.Thread(
            target=autostart.ensure_daemon, args=(settings, dict(os.environ), notes.append)
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(notes) == 1
    (line,) = starts.read_text().splitlines()
    assert line.endswith("True"), "the daemon must lead a session of its own"
    assert autostart.answers(settings.url)


def test_a_daemon_that_dies_early_is_quoted(
    state: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (state / "daemon.log").write_text("of an earlier daemon\n")
    command = [sys.executable, "-c", "print('first'); raise SystemExit('no model folder')"]
    monkeypatch.setattr(autostart, "daemon_command", lambda _: command)
    with pytest.raises(DaemonUnreachable) as caught:
        autostart.ensure_daemon(Settings(port=free_port), dict(os.environ), print)
    text = str(caught.value)
    assert "it ended with code 1 right after its start\n" in text
    assert text.endswith("no model folder")
    assert "earlier" not in text


def test_the_last_lines_are_found_after_a_rotation(
    state: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = state / "daemon.log"
    log.write_text("old " * 100)
    code = f"import os; os.rename({str(log)!r}, 'x'); open({str(log)!r}, 'w').write('disk gone')"
    monkeypatch.chdir(state)
    monkeypatch.setattr(autostart, "daemon_command", lambda _: [sys.executable, "-c", code])
    with pytest.raises(DaemonUnreachable, match=r"disk gone$"):
        autostart.ensure_daemon(Settings(port=free_port), dict(os.environ), print)


def test_the_daemon_logs_into_the_file_itself(tmp_path: Path) -> None:
    log = tmp_path / "daemon.log"
    assert autostart.daemon_command(log)[-3:] == ["serve", "--log-file", str(log)]


@pytest.mark.parametrize(
    "settings",
    [
        Settings(no_autostart=True),
        Settings(host="0.0.0.0"),
        Settings(host="192.0.2.1"),
        Settings(host="127.evil.example"),
    ],
)
def test_no_start(starts: Path, settings: Settings) -> None:
    with pytest.raises(DaemonUnreachable):
        autostart.ensure_daemon(settings, {}, print)
    assert not starts.exists()
