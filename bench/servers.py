"""The servers that are compared: how each is started, found and stopped.

One server runs at a time, because an idle one can still spin on a core. Each gets the same model
file, number of threads, slots and window, and its own defaults for everything else.
"""

import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol
from urllib.parse import urlsplit

import psutil

from bench.child import Child, request
from cli.bench.answers import Endpoint

_HERE = Path(__file__).resolve().parent
_SYSTEM_INFO = re.compile(r"system_info: .*?((?:CPU|CUDA|Metal)\b.*)")

# Where prompts differ anyway, the peers' prefix caches are switched off.
_PEER_EXTRA = {"cache_prompt": False}


@dataclass(frozen=True, slots=True)
class Setup:
    """What all servers have in common."""

    model: Path
    n_threads: int
    window: int


class Server(Protocol):
    """A server under test. `start` may be called again after `stop`."""

    @property
    def name(self) -> str: ...

    def start(self, n_parallel: int) -> Endpoint:
        """Starts it with `n_parallel` slots, the model loaded."""
        ...

    def stop(self) -> None: ...

    def processes(self) -> dict[str, psutil.Process]:
        """Its processes on this machine by role; none for a server that somebody else runs."""
        ...

    def about(self) -> str:
        """What it says about its build, if anything."""
        ...


class Localrun:
    """Our daemon on a store of its own, with the model registered in place."""

    name = "localrun"
    _MODEL = "bench"

    def __init__(
        self, setup: Setup, *, load_path: str = "/api/generate", **settings: object
    ) -> None:
        """`settings` such as `KV_POOL=8192` besides those that all servers have in common.

        A request without anything to do at `load_path` loads the model.
        """
        self._setup = setup
        self._load_path = load_path
        self._settings = settings
        self._child: Child | None = None
        self._store: tempfile.TemporaryDirectory[str] | None = None
        self.idle_rss_bytes = 0
        self.url = ""

    def start(self, n_parallel: int) -> Endpoint:
        """See Server. Raises RuntimeError when the model got fewer slots than asked for."""
        self._store = tempfile.TemporaryDirectory(prefix="localrun-bench-")
        settings = {
            "MODELS": self._store.name,
            "HOST": "127.0.0.1:0",
            "NUM_PARALLEL": n_parallel,
            "NUM_THREAD": self._setup.n_threads,
            "CONTEXT_LENGTH": self._setup.window,
            "KEEP_ALIVE": -1,
            **self._settings,
        }
        env = {**clean_environment(), **{f"LOCALRUN_{k}": str(v) for k, v in settings.items()}}
        self._child = Child([sys.executable, "-m", "cli", "serve"], env)
        port = self._child.wait_port()
        self.url = f"http://127.0.0.1:{port}"
        self.idle_rss_bytes = self.processes()["daemon"].memory_info().rss
        path = str(self._setup.model)
        body = {"model": self._MODEL, "path": path, "in_place": True, "stream": False}
        request(port, "POST", "/api/create", body)
        request(port, "POST", self._load_path, {"model": self._MODEL})
        n_slots = request(port, "GET", "/api/ps")["models"][0]["slots"]["total"]
        if n_slots != n_parallel:
            raise RuntimeError(f"the model has {n_slots} slots instead of {n_parallel}")
        return Endpoint("127.0.0.1", port, self._MODEL)

    def stop(self) -> None:
        """See Server."""
        if self._child is not None:
            self._child.stop()
        if self._store is not None:
            self._store.cleanup()

    def processes(self) -> dict[str, psutil.Process]:
        """`daemon`, and `runner` once a model is loaded."""
        assert self._child is not None
        daemon = psutil.Process(self._child.process.pid)
        found = {"daemon": daemon}
        found.update(("runner", child) for child in daemon.children())
        return found

    def about(self) -> str:
        """See Server."""
        return ""  # the bare loop runs on the same library and says it


class LlamaCpp:
    """llama.cpp's server as a child: `command` is completed with model, slots, window, threads."""

    def __init__(
        self,
        name: str,
        command: Callable[[int], list[str]],
        about: str = "",
        *,
        keeps_prompts: bool = False,
    ) -> None:
        self.name = name
        self._command = command
        self._about = about
        self._extra = {} if keeps_prompts else _PEER_EXTRA
        self._child: Child | None = None

    def start(self, n_parallel: int) -> Endpoint:
        """See Server."""
        self._child = Child(self._command(n_parallel))
        port = self._child.wait_port()
        if found := _SYSTEM_INFO.search(self._child.log()):
            self._about = found[1].strip(" |")
        return Endpoint("127.0.0.1", port, "bench", self._extra)

    def stop(self) -> None:
        """See Server."""
        if self._child is not None:
            self._child.stop()

    def processes(self) -> dict[str, psutil.Process]:
        """`server`."""
        assert self._child is not None
        return {"server": psutil.Process(self._child.process.pid)}

    def about(self) -> str:
        """See Server."""
        return self._about


class Remote:
    """Any OpenAI-compatible server that somebody has started with the right number of slots."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80

    def start(self, n_parallel: int) -> Endpoint:
        """See Server; only looks which model it offers."""
        models = request(self._port, "GET", "/v1/models", host=self._host)["data"]
        return Endpoint(self._host, self._port, models[0]["id"], _PEER_EXTRA)

    def stop(self) -> None:
        """It is not ours to stop."""

    def processes(self) -> dict[str, psutil.Process]:
        """None that we know."""
        return {}

    def about(self) -> str:
        """See Server."""
        return ""


# Flash attention as llama.cpp spells it; `auto` is its own default.
FlashAttention = Literal["auto", "on", "off"]


def xllamacpp(
    setup: Setup, flash_attention: FlashAttention = "auto", *, keeps_prompts: bool = False
) -> LlamaCpp:
    """The server in the wheel (extra `bench`). `keeps_prompts` leaves its prefix cache on."""
    module = [sys.executable, "-m", "bench.xllamacpp_server", str(setup.model)]
    more = [str(setup.window), str(setup.n_threads), flash_attention]
    return LlamaCpp(
        _variant("xllamacpp", flash_attention),
        lambda n: [*module, str(n), *more],
        keeps_prompts=keeps_prompts,
    )


def llama_server(
    setup: Setup,
    program: str,
    flash_attention: FlashAttention = "auto",
    *,
    keeps_prompts: bool = False,
) -> LlamaCpp:
    """The program that `bench/build_peer.sh` builds, or another build of it."""

    def command(n_parallel: int) -> list[str]:
        values = {
            "--port": free_port(),
            "-np": n_parallel,
            "-c": n_parallel * setup.window,
            "-t": setup.n_threads,
            "-fa": flash_attention,
        }
        flags = [text for flag, value in values.items() for text in (flag, str(value))]
        return [program, "-m", str(setup.model), "--host", "127.0.0.1", *flags]

    flags = Path(program).with_name("flags")
    return LlamaCpp(
        _variant("llama-server", flash_attention),
        command,
        flags.read_text().strip() if flags.exists() else "",
        keeps_prompts=keeps_prompts,
    )


def _variant(name: str, flash_attention: FlashAttention) -> str:
    return name if flash_attention == "auto" else f"{name}, FA {flash_attention}"


def build_llama_server() -> str:
    """The path of our own build of llama-server; building it takes minutes, once."""
    script = str(_HERE / "build_peer.sh")
    env = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run([script], env=env, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()[-1]


def clean_environment() -> dict[str, str]:
    """Ours without anybody's settings of localrun."""
    bare = {"NUM_PARALLEL", "KEEP_ALIVE", "MAX_QUEUE", "MAX_LOADED_MODELS"}
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LOCALRUN_", "OLLAMA_")) and name not in bare
    }


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])
