"""What the comparisons have in common: the model, servers in turns, and who else used the CPU."""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import platformdirs
import psutil

from bench.servers import Server
from cli.bench.answers import Endpoint
from localrun.placement.machine import n_cpus

ROOT = Path(__file__).resolve().parent.parent
_MODEL_FILE = "smollm2-135m-instruct-q4_1.gguf"


def parser(name: str, about: str | None) -> argparse.ArgumentParser:
    """That of `python -m bench.NAME`, with the options that all comparisons have."""
    made = argparse.ArgumentParser(prog=f"bench.{name}", description=about)
    made.add_argument("--model", type=Path, help="GGUF (the tests' SmolLM2 from their cache)")
    made.add_argument("--threads", type=int, default=n_cpus(), help="CPU threads of each server")
    return made


def model_path(wanted: Path | None) -> Path:
    """`wanted`, else the tests' SmolLM2 from their cache. Raises: SystemExit when it is missing."""
    folder = os.environ.get("LOCALRUN_TEST_MODELS")
    path = wanted or (Path(folder) if folder else cache_folder() / "test-models") / _MODEL_FILE
    if not path.exists():
        raise SystemExit(f"{path} is missing: run the tests once, or name a file with --model")
    return path.resolve()


def cache_folder() -> Path:
    """Where things are kept that are made or fetched once."""
    return Path(platformdirs.user_cache_dir("localrun", appauthor=False))


def in_turn(servers: Sequence[Server], index: int) -> list[Server]:
    """`servers`, another one first in each round."""
    start = index % len(servers)
    return [*servers[start:], *servers[:start]]


@contextmanager
def running(server: Server, n_slots: int) -> Iterator[Endpoint]:
    """Where `server` answers with `n_slots`, until the block ends."""
    try:
        yield server.start(n_slots)
    finally:
        server.stop()


class Watch:
    """How much of the machine others use meanwhile: a disturbed round proves nothing."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._busy_s = self._busy()

    def foreign_share(self, ours_s: float) -> float:
        """The share of all CPU time since the start that went to nobody of us."""
        machine_s = (time.perf_counter() - self._began) * (psutil.cpu_count() or 1)
        return max(0.0, (self._busy() - self._busy_s - ours_s) / machine_s)

    def _busy(self) -> float:
        times = psutil.cpu_times()
        return float(times.user + times.system + times.nice)


def cpu_s(process: psutil.Process) -> float:
    """Processor seconds of `process` so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def commit() -> str:
    """What is measured, and whether it is changed."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True)
    return head.stdout.strip() + (" with changes" if changed.stdout.strip() else "")


def say(text: str) -> None:
    """A line for who waits; results go to standard output."""
    print(text, file=sys.stderr, flush=True)
