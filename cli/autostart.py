"""Starts the daemon in the background when a command finds none.

Owns the place of the child's log file and the lock that makes two commands at once end with one
daemon. Only for a loopback address: what listens for other machines is somebody's deliberate
decision.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from cli.client import Client
from cli.errors import DaemonUnreachable
from localrun.loopback import is_loopback
from localrun.settings import Settings

START_TIMEOUT_S = 15.0
_POLL_S = 0.05
_SHOWN_LOG_LINES = 5


def state_folder() -> Path:
    """The user's folder for logs, locks and history; made when missing."""
    from platformdirs import user_state_path

    folder = user_state_path("localrun", appauthor=False)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def ensure_daemon(
    settings: Settings, environ: Mapping[str, str], note: Callable[[str], None]
) -> None:
    """Returns when a daemon answers at the settings' address, started by us if need be.

    Raises: DaemonUnreachable, with the child's last log lines when it died early.
    """
    if settings.no_autostart or not is_loopback(settings.host):
        raise DaemonUnreachable(settings.url)
    from filelock import FileLock, Timeout

    folder = state_folder()
    lock = FileLock(folder / f"start-{settings.port}.lock", timeout=START_TIMEOUT_S + 5)
    try:
        with lock:
            if not answers(settings.url):
                _start(settings.url, folder / "daemon.log", environ)
                note(f"started the localrun daemon; its log is {folder / 'daemon.log'}")
    except Timeout as error:
        raise DaemonUnreachable(settings.url, "another start of it does not end") from error


def answers(url: str) -> bool:
    """True when a daemon of ours is ready at `url`."""
    client = Client(url, timeout_s=1.0)
    try:
        return client.is_healthy()
    finally:
        client.close()


def daemon_command(log_path: Path) -> list[str]:
    """The command line of the child. `-P`: the current folder must not offer its own `cli`."""
    return [sys.executable, "-P", "-m", "cli", "serve", "--log-file", str(log_path)]


def _start(url: str, log_path: Path, environ: Mapping[str, str]) -> None:
    # The daemon logs into the file by itself, and rotates it; this is for what it says before.
    with log_path.open("ab") as log:
        log_start = log.tell()  # before the child has the file too: they share the position
        child = subprocess.Popen(
            daemon_command(log_path),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=dict(environ),
            start_new_session=True,
        )
    deadline = time.monotonic() + START_TIMEOUT_S
    while not answers(url):
        if child.poll() is not None:
            raise DaemonUnreachable(url, _early_end(child.returncode, log_path, log_start))
        if time.monotonic() > deadline:
            child.terminate()
            raise DaemonUnreachable(
                url, f"it was started but did not answer in {START_TIMEOUT_S:g} s; see {log_path}"
            )
        time.sleep(_POLL_S)
    child.returncode = 0  # it outlives us on purpose: Popen need not warn that it still runs


def _early_end(code: int, log_path: Path, log_start: int) -> str:
    with log_path.open("rb") as log:
        is_same_file = log.seek(0, 2) >= log_start  # else it was rotated since
        log.seek(log_start if is_same_file else 0)
        lines = log.read().decode("utf-8", "replace").split("\n")
    tail = [line for line in lines if line.strip()][-_SHOWN_LOG_LINES:]
    return "\n".join([f"it ended with code {code} right after its start", *tail])
