"""A stub daemon and a shell for every test of the command line."""

import socket
from collections.abc import Iterator

import pytest
from cli_stub import Shell, Stub


@pytest.fixture
def stub() -> Iterator[Stub]:
    server = Stub()
    yield server
    server.close()


@pytest.fixture
def shell(stub: Stub) -> Shell:
    """Commands that find the stub; none of them may start a daemon."""
    return Shell(
        {"LOCALRUN_HOST": f"127.0.0.1:{stub.port}", "LOCALRUN_NO_AUTOSTART": "1"},
    )


@pytest.fixture
def free_port() -> int:
    """A port of loopback on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
