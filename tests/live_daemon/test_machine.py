"""What the daemon makes of the machine that it runs on: devices, and CPUs that models share."""

import re
from collections.abc import Callable
from pathlib import Path

from live import Daemon, chat_body, wait_until

Start = Callable[..., Daemon]
Fake = Callable[..., Path]


def threads(daemon: Daemon) -> dict[str, int]:
    """Compute threads of each model that has said so."""
    _, data = daemon.request("GET", "/metrics")
    found = re.findall(r'^localrun_threads\{model="([^:"]+)[^}]*\} (\d+)$', data.decode(), re.M)
    return {name: int(n) for name, n in found}


def test_models_that_compute_at_the_same_time_share_the_cpus(
    start_daemon: Start, fake_model: Fake
) -> None:
    # Other programs take threads too, up to this machine's cores: far from half of so many.
    daemon = start_daemon(NUM_THREAD=4096)
    daemon.create("sings", fake_model(pieces=["la "], endless=True, step_s=0.01))
    # A single step: a model that sleeps rather than computes soon has all threads again.
    daemon.create("nods", fake_model(pieces=[]))
    song = daemon.stream("/api/chat", chat_body("sings", "sing"))
    next(song)
    daemon.chat("nods", "hi")
    assert threads(daemon)["nods"] <= 2048
    song.close()
    wait_until(lambda: daemon.n_busy() == 0, "the song to end")
    daemon.chat("nods", "hi")
    assert threads(daemon)["nods"] > 2048


def test_the_devices_are_told(daemon: Daemon) -> None:
    found = daemon.json("GET", "/api/devices")
    assert found["devices_problem"] == ""
    assert found["n_threads"] >= 1
    wait_until(lambda: not daemon.runners(), "the runner that looked to be gone")
