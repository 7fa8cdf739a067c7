"""`localrun bench` against a live daemon with the scripted model: figures, and Ctrl-C."""

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from live import LIMIT_S, Daemon, wait_until


def bench(daemon: Daemon, *arguments: str) -> "subprocess.Popen[str]":
    return daemon.start_cli("bench", *arguments)


def test_a_sweep_counts_what_the_daemon_counts(
    start_daemon: Callable[..., Daemon], fake_model: Callable[..., Path], tmp_path: Path
) -> None:
    daemon = start_daemon(NUM_PARALLEL=2)
    daemon.create("m", fake_model(pieces=["la "], endless=True))
    out = tmp_path / "out.json"
    line = ["m", "--concurrency", "1,4", "--requests", "4", "--prompt-tokens", "400"]
    process = bench(daemon, *line, "--output-tokens", "7", "--json", str(out))
    stdout, stderr = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, stderr) == (0, "")
    assert stdout.count("\n") >= 4
    document = json.loads(out.read_text())
    assert document["targets"][0]["window"] == daemon.ps()[0]["context_length"]
    for level, n_users in zip(document["levels"], (1, 4), strict=True):
        assert (level["n_users"], level["figures"]["n_done"]) == (n_users, 4)
        assert {request["n_tokens"] for request in level["requests"]} == {7}
        # Bytes are tokens here, so words are known exactly on average only.
        n_prompt = level["figures"]["n_prompt"] / 4
        assert 340 < n_prompt < 460


def test_ctrl_c_prints_what_was_measured_so_far(
    start_daemon: Callable[..., Daemon], fake_model: Callable[..., Path]
) -> None:
    daemon = start_daemon(NUM_PARALLEL=2)
    daemon.create("m", fake_model(pieces=["la "], endless=True, step_s=0.01))
    line = ["m", "--concurrency", "2", "--output-tokens", "2000", "--prompt-tokens", "400"]
    process = bench(daemon, *line)
    # The two requests that calibrate come one after the other.
    wait_until(lambda: daemon.n_busy() == 2, "the first level")
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, stderr) == (130, "")
    assert "2*" in stdout
    assert "* not finished" in stdout
    wait_until(lambda: daemon.n_busy() == 0, "the cancelled requests to go")
