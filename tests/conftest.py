"""What every test may use: real model files, scripted models, and a real daemon on a free port."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from live import Daemon, running, write_fake_model
from real_models import GEMMA3, SMOLLM2, fetch, fetch_minilm
from rpc_server import RpcServer

# A test must not see the settings, the proxies or the daemon of whoever runs it.
_FOREIGN = ("LOCALRUN_", "OLLAMA_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_KEPT = ("LOCALRUN_TEST_", "LOCALRUN_INSTALL_")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.upper().startswith(_FOREIGN) and not name.startswith(_KEPT):
            monkeypatch.delenv(name)
    # Nor does it leave anything behind in the user's cache.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct Q4_1: ChatML template, 49k vocabulary."""
    return fetch(SMOLLM2)


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """The base model gemma3-270m Q4_K_M: no template, 262k vocabulary, sliding window."""
    return fetch(GEMMA3)


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """all-MiniLM-L6-v2 as safetensors: an encoder for sentences, 384 numbers each."""
    return fetch_minilm()


@pytest.fixture
def fake_model(tmp_path: Path) -> Callable[..., Path]:
    """Writes the GGUF of a scripted model: `fake_model(pieces=[...], endless=True)`."""

    def write(**script: Any) -> Path:
        number = len(list(tmp_path.glob("fake-*.gguf")))
        return write_fake_model(tmp_path / f"fake-{number}.gguf", script)

    return write


@pytest.fixture
def start_daemon(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """Starts daemons with settings, `start_daemon(NUM_PARALLEL=2)`, and ends them with the test."""
    daemons: list[Daemon] = []

    def start(**settings: Any) -> Daemon:
        settings.setdefault("MODELS", tmp_path / "models")
        daemon = Daemon(settings, tmp_path / f"daemon-{len(daemons)}.log")
        daemons.append(daemon)
        return daemon.wait_ready()

    yield start
    for daemon in daemons:
        daemon.kill()


@pytest.fixture
def start_rpc_server() -> Iterator[Callable[[], RpcServer]]:
    """Starts RPC servers on loopback, each a GPU to whoever uses it; ends them with the test."""
    servers: list[RpcServer] = []

    def start() -> RpcServer:
        servers.append(RpcServer())
        return servers[-1].wait_ready()

    yield start
    for server in servers:
        server.kill()


@pytest.fixture(scope="module")
def rpc_server() -> Iterator[RpcServer]:
    """One RPC server for a whole file."""
    server = RpcServer()
    try:
        yield server.wait_ready()
    finally:
        server.kill()


@pytest.fixture
def daemon(start_daemon: Callable[..., Daemon]) -> Daemon:
    """A daemon with the default settings and an empty store."""
    return start_daemon()


@pytest.fixture(scope="session")
def smollm2_daemon(
    smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Daemon]:
    """One daemon for the whole session that serves `smollm2:135m`; do not change its models."""
    folder = tmp_path_factory.mktemp("smollm2")
    with running(folder, CONTEXT_LENGTH=2048) as daemon:
        daemon.create("smollm2:135m", smollm2_path)
        yield daemon
