"""A daemon with an RPC server of llama.cpp, whose CPU is a GPU to it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from live import Daemon
from rpc_server import RpcServer, free_port

from localrun.placement.fit import default_n_ctx

Start = Callable[..., Daemon]


@pytest.fixture
def rpc_server(start_rpc_server: Callable[[], RpcServer]) -> RpcServer:
    return start_rpc_server()


def devices(daemon: Daemon) -> dict[str, Any]:
    found = daemon.json("GET", "/api/devices")
    return {device["name"]: device for device in found["devices"]} | {"away": found["unreachable"]}


def doctor(daemon: Daemon, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cli", "doctor"],
        env={**environ, "LOCALRUN_HOST": f"127.0.0.1:{daemon.port}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_server_counts_as_a_gpu_also_while_it_serves(
    start_daemon: Start, rpc_server: RpcServer, smollm2_path: Path
) -> None:
    daemon = start_daemon(RPC_SERVERS=rpc_server.endpoint, KV_POOL=512)
    before = devices(daemon)
    assert (before["RPC0"]["kind"], before["away"]) == ("gpu", [])
    assert before["RPC0"]["endpoint"] == rpc_server.endpoint
    daemon.create("m", smollm2_path)
    daemon.chat("m", "hi", num_predict=1, num_ctx=256)
    (row,) = daemon.ps()
    parts = {part["name"]: part["size"] for part in row["devices"]}
    assert parts["RPC0"] == row["size_vram"] > 0
    assert sum(parts.values()) == row["size"]
    during = devices(daemon)
    assert during["away"] == []
    assert during["RPC0"]["free_bytes"] <= before["RPC0"]["total_bytes"] - parts["RPC0"]


def test_a_server_that_does_not_answer_is_named_and_the_rest_goes_on(
    start_daemon: Start, smollm2_path: Path
) -> None:
    server = f"127.0.0.1:{free_port()}"
    daemon = start_daemon(RPC_SERVERS=server, KV_POOL=512)
    assert devices(daemon)["away"] == [server]
    done = doctor(daemon, dict(os.environ))
    assert (done.returncode, done.stderr) == (7, "")
    assert f"the RPC server {server} does not answer" in done.stdout
    daemon.create("m", smollm2_path)
    assert daemon.chat("m", "hi", num_predict=1, num_ctx=256)["done"]
    assert server in daemon.log()


def test_the_default_window_follows_the_memory_of_the_servers(
    start_daemon: Start, rpc_server: RpcServer, fake_model: Callable[..., Path]
) -> None:
    path = fake_model(pieces=["ok"], n_ctx_train=10**6)
    windows = []
    for overhead in ("0", "RPC0=100TiB"):
        daemon = start_daemon(RPC_SERVERS=rpc_server.endpoint, GPU_OVERHEAD=overhead)
        daemon.create("m", path)
        daemon.chat("m", "hi")
        windows.append(daemon.ps()[0]["context_length"])
    total_bytes = devices(daemon)["RPC0"]["total_bytes"]
    assert windows == [default_n_ctx(total_bytes), 4096]
