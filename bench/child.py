"""A server as a child process, and the few requests that find out about it."""

import http.client
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Loading a model from a cold disk; beyond this something hangs.
_START_LIMIT_S = 300.0
_STOP_LIMIT_S = 15.0

_LISTENING = re.compile(r"listening on (?:\S+ port |http://127\.0\.0\.1:)(\d+)")


class Child:
    """A child process that logs into a file and says where it listens."""

    look_s = 0.05  # between two looks whether it is there

    def __init__(self, command: list[str], env: dict[str, str] | None = None) -> None:
        handle, path = tempfile.mkstemp(prefix="localrun-bench-", suffix=".log")
        self._log = Path(path)
        with os.fdopen(handle, "wb") as log:
            self.process = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def log(self) -> str:
        """What it has printed so far."""
        return self._log.read_text(errors="replace")

    def wait_port(self) -> int:
        """The port it listens on, once it answers there."""
        found = self._wait(lambda: _LISTENING.search(self.log()))
        port = int(found[1])
        self._wait(lambda: _is_healthy(port))
        return port

    def _wait(self, condition: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + _START_LIMIT_S
        while time.monotonic() < deadline:
            if value := condition():
                return value
            if self.process.poll() is not None:
                break
            time.sleep(self.look_s)
        raise RuntimeError(f"{self.process.args!r} does not serve:\n{self.log()[-2000:]}")

    def stop(self) -> None:
        """Ends it: politely, then not."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.unlink()


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health", headers={"Connection": "close"})
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def request(port: int, method: str, path: str, body: Any = None, host: str = "127.0.0.1") -> Any:
    """The parsed answer, which must be JSON."""
    return json.loads(read(port, method, path, body, host))


def read(port: int, method: str, path: str, body: Any = None, host: str = "127.0.0.1") -> bytes:
    """The answer as it is. Raises: RuntimeError when it is a refusal."""
    connection = http.client.HTTPConnection(host, port, timeout=_START_LIMIT_S)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Connection": "close"})
        response = connection.getresponse()
        text = response.read()
        if response.status != 200:
            raise RuntimeError(f"{method} {path}: {response.status} {text!r}")
        return text
    finally:
        connection.close()
