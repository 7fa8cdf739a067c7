"""`serve` when it cannot start: who holds the port, and which address is refused."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from cli_stub import Reply, Shell, Stub

from cli.commands.serve import occupant
from cli.errors import AlreadyRunning, CliError, PortTaken, exit_code
from localrun.settings import Settings


@pytest.mark.parametrize(
    ("reply", "error", "code", "part"),
    [
        (
            Reply(body={"version": "0.30.0", "localrun": "0.1.0", "pid": 42}),
            AlreadyRunning,
            5,
            "localrun 0.1.0 is already running on http://127.0.0.1:{port} (pid 42)",
        ),
        (Reply(body={"version": "0.12.3"}), PortTaken, 6, "taken by Ollama 0.12.3"),
        (Reply(404, {"detail": "x"}), PortTaken, 6, "taken by another program"),
        (Reply(body=[1]), PortTaken, 6, "taken by another program"),
        (Reply(403, {"error": "no"}), PortTaken, 6, "taken by another program"),
    ],
)
def test_who_holds_the_port(
    stub: Stub, reply: Reply, error: type[CliError], code: int, part: str
) -> None:
    stub.on("GET", "/api/version", reply)
    found = occupant(Settings(port=stub.port))
    assert isinstance(found, error)
    assert exit_code(found) == code
    assert part.format(port=stub.port) in str(found)


def test_serve_explains_why_it_did_not_start(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = pytest.importorskip("localrun.app")
    monkeypatch.setattr(app, "Daemon", lambda _: pytest.fail("must not get this far"))
    monkeypatch.setattr(app, "_set_up_logging", lambda *_: None)
    models = {"LOCALRUN_MODELS": str(tmp_path)}
    taken = shell("serve", **models)
    assert (taken.code, "localrun 0.1.0 is already running" in taken.err) == (5, True)
    open_host = shell("serve", **models, LOCALRUN_HOST="0.0.0.0:0")
    assert (open_host.code, "LOCALRUN_INSECURE" in open_host.err) == (2, True)
    no_log = shell("serve", "--log-file", str(tmp_path), **models)
    assert (no_log.code, no_log.err) == (
        2,
        f"Error: --log-file: `{tmp_path}` cannot be written: Is a directory\n",
    )
    no_host = shell("serve", **models, LOCALRUN_HOST="no such host:1")
    assert (no_host.code, no_host.err.startswith("Error: cannot listen")) == (1, True)


def test_a_folder_that_cannot_hold_models_is_a_wrong_setting(
    shell: Shell, free_port: int, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    host = f"127.0.0.1:{free_port}"
    models = str(tmp_path / "file/models")
    result = subprocess.run(
        [sys.executable, "-m", "cli", "serve"],
        env=shell.environ | {"LOCALRUN_HOST": host, "LOCALRUN_MODELS": models},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 2
    assert result.stderr.startswith("Error: LOCALRUN_MODELS: user ")
    assert f" cannot keep models in {models}: " in result.stderr


def test_a_port_whose_owner_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = occupant(Settings(port=silent.getsockname()[1]))
    assert isinstance(found, PortTaken)
