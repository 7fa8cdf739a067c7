"""What `ps` says a model takes is what its process takes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from live import Daemon

# A runner without a model: Python, numpy and llama.cpp's own code.
BARE_RUNNER_BYTES = 110_000_000


def shown_and_real(daemon: Daemon, n_ctx: int) -> tuple[dict[str, Any], int]:
    """The row of `ps`, and the resident bytes of the only runner, which has just answered."""
    daemon.chat("m", "hi " * 200, num_predict=4, num_ctx=n_ctx)
    (row,) = daemon.ps()
    (runner,) = daemon.runners()
    return row, runner.memory_info().rss


@pytest.mark.parametrize("kv_cache_type", ["f16", "q8_0"])
@pytest.mark.parametrize("n_slots", [1, 4])
def test_the_size_shown_is_the_size_taken(
    start_daemon: Callable[..., Daemon], smollm2_path: Path, kv_cache_type: str, n_slots: int
) -> None:
    daemon = start_daemon(KV_CACHE_TYPE=kv_cache_type, NUM_PARALLEL=n_slots)
    daemon.create("m", smollm2_path)
    small, small_bytes = shown_and_real(daemon, 512)
    daemon.json("POST", "/api/generate", {"model": "m", "keep_alive": 0, "stream": False})
    large, large_bytes = shown_and_real(daemon, 8192)
    for row in (small, large):
        (part,) = row["devices"]
        assert part["size"] == part["weights"] + part["kv"] + part["compute"] == row["size"]
        # The header is read and gone; what is mapped are the tensors.
        assert part["weights"] == pytest.approx(smollm2_path.stat().st_size, rel=0.03)
    assert large["devices"][0]["kv"] == 16 * small["devices"][0]["kv"]
    assert 0 < small_bytes - small["size"] < BARE_RUNNER_BYTES
    # What the process has beside its model is the same in both.
    grown_bytes = large["size"] - small["size"]
    assert large_bytes - small_bytes == pytest.approx(grown_bytes, rel=0.15)
