"""A real daemon in a process of its own, and the scripted models it can serve."""

import base64
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import psutil

from localrun.runner.fake_script import SCRIPT_KEY
from localrun.spec import FAKE_ARCHITECTURE

# A hang guard for slow shared machines, not a measurement.
LIMIT_S = 30.0

_LISTENING = re.compile(r"listening on \S+ port (\d+)")


def write_fake_model(path: Path, script: Mapping[str, Any]) -> Path:
    """A GGUF whose runner plays `script` (see `localrun.runner.fake_script.Script`)."""
    ready = dict(script)
    if "pieces" in ready:
        pieces = (p if isinstance(p, bytes) else p.encode() for p in ready["pieces"])
        ready["pieces"] = [base64.b64encode(piece).decode() for piece in pieces]
    if "crash_on" in ready:
        ready["crash_on"] = base64.b64encode(ready["crash_on"]).decode()
    n_ctx = ready.pop("n_ctx_train", 4096)
    writer = gguf.GGUFWriter(path, FAKE_ARCHITECTURE)
    writer.add_uint32(f"{FAKE_ARCHITECTURE}.context_length", n_ctx)
    if "pooling" in ready:  # which makes it a model for vectors only
        numbers = {"mean": 1, "cls": 2, "last": 3, "rank": 4}
        writer.add_uint32(f"{FAKE_ARCHITECTURE}.pooling_type", numbers[ready["pooling"]])
    writer.add_string(SCRIPT_KEY, json.dumps(ready))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of `condition`. Fails the test after the hang guard."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.005)
    raise AssertionError(f"waited {LIMIT_S:g} s in vain for {what}")


def is_gone(process: psutil.Process) -> bool:
    """True once the process has ended, reaped or not."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Client:
    """Requests to the daemon on a port of loopback."""

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> http.client.HTTPConnection:
        """A new connection."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)

    def open(self, method: str, path: str, body: Any = None) -> http.client.HTTPResponse:
        """The response, unread, on a connection of its own that closes with it."""
        connection = self.connect()
        data = body if isinstance(body, bytes) or body is None else json.dumps(body)
        connection.request(method, path, data, {"Connection": "close"})
        return connection.getresponse()

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """Status and whole body."""
        with self.open(method, path, body) as response:
            return response.status, response.read()

    def json(self, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        """The parsed body of a response that must have `status`."""
        got, data = self.request(method, path, body)
        assert got == status, (got, data)
        return json.loads(data) if data else None

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The objects of an NDJSON stream; closing the iterator closes the connection."""
        with self.open("POST", path, body) as response:
            for line in response:
                yield json.loads(line)

    def chat(self, model: str, text: str, **options: Any) -> dict[str, Any]:
        """One answered turn, not streamed."""
        return self.json("POST", "/api/chat", chat_body(model, text, stream=False, **options))

    def run_cli(
        self, *arguments: str, stdin: str = "", **variables: str
    ) -> "subprocess.CompletedProcess[str]":
        """A command of the command line, with this daemon and further variables, to its end."""
        return subprocess.run(
            [sys.executable, "-m", "cli", *arguments],
            env=self.environ(**variables),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=2 * LIMIT_S,
            check=False,
        )

    def cli(self, *arguments: str, stdin: str = "", **variables: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of `run_cli`."""
        done = self.run_cli(*arguments, stdin=stdin, **variables)
        return done.returncode, done.stdout, done.stderr

    def start_cli(self, *arguments: str) -> "subprocess.Popen[str]":
        """A command that runs on."""
        return subprocess.Popen(
            [sys.executable, "-m", "cli", *arguments],
            env=self.environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def environ(self, **variables: str) -> dict[str, str]:
        """What a command needs to find this daemon, and further variables."""
        return {**os.environ, "LOCALRUN_HOST": f"127.0.0.1:{self.port}", **variables}

    def create(self, name: str, path: Path) -> None:
        """Registers a GGUF file in place."""
        body = {"model": name, "path": str(path), "in_place": True, "stream": False}
        self.json("POST", "/api/create", body)

    def ps(self) -> list[dict[str, Any]]:
        """The loaded models."""
        models: list[dict[str, Any]] = self.json("GET", "/api/ps")["models"]
        return models

    def n_busy(self) -> int:
        """Slots in use, over all models."""
        return sum(model["slots"]["busy"] for model in self.ps())


class Daemon(Client):
    """`localrun serve` on a free port of loopback, with settings of its own."""

    def __init__(self, settings: Mapping[str, Any], log_path: Path) -> None:
        super().__init__(port=0)
        self.log_path = log_path
        variables = {f"LOCALRUN_{name}": str(value) for name, value in settings.items()}
        variables.setdefault("LOCALRUN_HOST", "127.0.0.1:0")
        # Also when a fixture of the whole session starts it.
        variables["XDG_CACHE_HOME"] = str(log_path.parent / "cache")
        with log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cli", "serve"],
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_ready(self) -> "Daemon":
        """Returns itself once it answers."""

        def find_port() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(f"the daemon ended: {self.log()}")
            if match := _LISTENING.search(self.log()):
                self.port = int(match[1])
            return bool(self.port) and self._answers()

        wait_until(find_port, "the daemon to listen")
        return self

    def _answers(self) -> bool:
        try:
            return self.request("GET", "/health")[0] == 200
        except OSError:
            return False

    def log(self) -> str:
        """What it has logged."""
        return self.log_path.read_text(errors="replace")

    def kill(self) -> None:
        """Ends it at once, as `kill -9` does."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(LIMIT_S)

    def runners(self) -> list[psutil.Process]:
        """Its runner processes."""
        try:
            children = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return [child for child in children if not is_gone(child)]


def chat_body(model: str, text: str, *, stream: bool = True, **options: Any) -> dict[str, Any]:
    """A body for /api/chat with one user turn."""
    messages = [{"role": "user", "content": text}]
    return {"model": model, "messages": messages, "stream": stream, "options": options}


@contextmanager
def running(folder: Path, **settings: Any) -> Iterator[Daemon]:
    """A daemon with its store and its log in `folder`, ready, as long as the block lasts."""
    daemon = Daemon({"MODELS": folder / "models", **settings}, folder / "daemon.log")
    try:
        yield daemon.wait_ready()
    finally:
        daemon.kill()


@contextmanager
def serving(
    folder: Path, scripts: Mapping[str, Mapping[str, Any]], **settings: Any
) -> Iterator[Daemon]:
    """A daemon that serves scripted models by these names, all of them in memory if need be."""
    with running(folder, **{"MAX_LOADED_MODELS": len(scripts), **settings}) as daemon:
        for name, script in scripts.items():
            daemon.create(name, write_fake_model(folder / f"{name}.gguf", script))
        yield daemon
