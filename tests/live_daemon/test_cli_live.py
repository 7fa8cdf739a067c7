"""The command line against a live daemon: exit codes, pipes, Ctrl-C, a taken port."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from live import Client, Daemon, wait_until

Start = Callable[..., Daemon]
Fake = Callable[..., Path]


def test_run_prints_the_answer_and_nothing_else(daemon: Daemon, fake_model: Fake) -> None:
    daemon.create("m", fake_model(pieces=["hel", "lo"]))
    assert daemon.cli("run", "m", "hi") == (0, "hello\n", "")
    daemon.create("echo", fake_model(echo=True))
    assert daemon.cli("run", "echo", "world", stdin="hello") == (0, "hello world\n", "")


def test_run_of_a_real_model_answers(smollm2_daemon: Daemon) -> None:
    question = "Name the capital of France."
    code, out, err = smollm2_daemon.cli("run", "smollm2:135m", question)
    assert (code, err) == (0, "")
    assert out.strip()


def test_models_are_made_listed_shown_stopped_and_removed(
    daemon: Daemon, fake_model: Fake, tmp_path: Path
) -> None:
    modelfile = tmp_path / "Modelfile"
    modelfile.write_text(f"FROM {fake_model(echo=True)}\nSYSTEM Be kind\nPARAMETER num_ctx 512\n")
    assert daemon.cli("create", "mine", "-f", str(modelfile))[0] == 0
    assert "mine:latest" in daemon.cli("list")[1]
    assert "Be kind" in daemon.cli("show", "mine", "--system")[1]
    assert daemon.cli("run", "mine", "hi")[1] == "Be kind\n\nhi\n"
    code, out, _ = daemon.cli("ps")
    assert code == 0
    assert "mine:latest" in out
    assert "512" in out
    assert daemon.cli("stop", "mine")[0] == 0
    wait_until(lambda: not daemon.ps(), "the model to be unloaded")
    assert daemon.cli("rm", "mine")[0] == 0
    assert "mine" not in daemon.cli("list")[1]


@pytest.mark.parametrize("in_place", [True, False])
def test_create_from_a_file_makes_a_model_that_runs(
    daemon: Daemon, fake_model: Fake, in_place: bool
) -> None:
    path = fake_model(pieces=["ok"])
    flags = ["--in-place"] if in_place else []
    assert daemon.cli("create", "m", "--from-file", str(path), *flags)[0] == 0
    assert daemon.cli("run", "m", "hi")[1] == "ok\n"


@pytest.mark.parametrize("command", ["run", "show", "stop", "rm"])
def test_a_model_that_is_not_there_has_an_exit_code_of_its_own(
    daemon: Daemon, command: str
) -> None:
    # `run` tries to pull; a host that is not allowed keeps that from going anywhere.
    arguments = ["127.0.0.1:1/x/no-such-model", "hi"] if command == "run" else ["no-such-model"]
    code, out, err = daemon.cli(command, *arguments)
    assert (code, out) == (4, "")
    assert "no-such-model" in err
    assert "Traceback" not in err


def test_input_that_is_refused_is_wrong_usage(
    daemon: Daemon, fake_model: Fake, tmp_path: Path
) -> None:
    path = fake_model(pieces=["ok"])
    bad = tmp_path / "Modelfile"
    bad.write_text(f'FROM {path}\nTEMPLATE """{{{{ bad"""\n')
    for arguments in (
        ["create", "m", "--from-file", str(path), "-q", "wat"],
        ["create", "m", "-f", str(bad)],
    ):
        code, out, err = daemon.cli(*arguments)
        assert (code, out) == (2, ""), err
    daemon.create("m", path)
    code, out, err = daemon.cli("run", "m", "hi", "--format", '{"type": "wat"}')
    assert (code, out) == (2, "")
    assert '"wat" is no type' in err


def test_ctrl_c_stops_the_generation_in_the_daemon(daemon: Daemon, fake_model: Fake) -> None:
    daemon.create("m", fake_model(pieces=["la "], endless=True, step_s=0.01))
    process = subprocess.Popen(
        [sys.executable, "-m", "cli", "run", "m", "sing"],
        env=daemon.environ(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout
    assert process.stdout.read(3) == b"la "
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Traceback" not in err
    wait_until(lambda: daemon.n_busy() == 0, "the slot to be free")


def test_a_second_daemon_says_who_is_there(daemon: Daemon) -> None:
    code, _, err = daemon.cli("serve")
    assert code == 5
    assert "already running" in err
    assert str(daemon.process.pid) in err


@pytest.mark.parametrize("speaks", [True, False], ids=["answers nothing", "hangs up"])
def test_a_port_that_something_else_holds_has_another_exit_code(
    daemon: Daemon, speaks: bool
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        if speaks:
            other.listen()
        port = other.getsockname()[1]
        code, _, err = daemon.cli("serve", LOCALRUN_HOST=f"127.0.0.1:{port}")
    assert code == 6
    assert "Traceback" not in err
    assert str(port) in err


def test_a_daemon_open_to_the_network_has_to_be_asked_for(daemon: Daemon) -> None:
    code, _, err = daemon.cli("serve", LOCALRUN_HOST="0.0.0.0:0")
    assert code not in (0, 5, 6)
    assert "LOCALRUN_INSECURE" in err


def test_without_a_daemon_and_without_autostart_one_sentence_says_what_to_do(
    daemon: Daemon,
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{free.getsockname()[1]}"
    code, out, err = daemon.cli("list", LOCALRUN_HOST=host, LOCALRUN_NO_AUTOSTART="1")
    assert (code, out) == (3, "")
    assert "localrun serve" in err
    assert len(err.strip().splitlines()) == 1


def test_the_daemon_is_started_in_the_background_when_none_answers(
    daemon: Daemon, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "LOCALRUN_HOST": f"127.0.0.1:{port}",
        "LOCALRUN_MODELS": str(tmp_path / "other-models"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    code, out, err = daemon.cli("list", **settings)
    pid = Client(port).json("GET", "/api/version")["pid"]
    try:
        assert code == 0, err
        assert out.startswith("NAME")
        assert list((tmp_path / "state").rglob("daemon.log"))
    finally:
        os.kill(pid, signal.SIGTERM)
