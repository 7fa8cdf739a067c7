"""`python -m bench.unload`: what a daemon keeps after loading and unloading a model many times.

The first cycle is not counted: what is imported and allocated once stays.
"""

import argparse
import os
import statistics
import time
from dataclasses import dataclass

import psutil

from bench import rig
from bench.child import request
from bench.rig import commit, model_path, say
from bench.servers import Localrun, Setup
from cli.bench.answers import Endpoint

# A model that has not left by then hangs.
_UNLOAD_LIMIT_S = 60.0
_POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Kept:
    """What the daemon holds while no model is loaded."""

    rss_bytes: int
    n_files: int
    n_threads: int
    n_runners: int

    @classmethod
    def of(cls, daemon: psutil.Process) -> "Kept":
        """As it is now."""
        with daemon.oneshot():
            rss_bytes, n_threads = daemon.memory_info().rss, daemon.num_threads()
            return cls(rss_bytes, daemon.num_fds(), n_threads, len(daemon.children()))


def main() -> None:
    """Parses the command line, runs the cycles and prints what is kept."""
    arguments = _parser().parse_args()
    server = Localrun(Setup(model_path(arguments.model), arguments.threads, arguments.window))
    try:
        endpoint = server.start(1)
        daemon = server.processes()["daemon"]
        _unload(endpoint, daemon)
        before = Kept.of(daemon)
        loads_s, unloads_s = [], []
        for number in range(1, arguments.cycles + 1):
            loads_s.append(_load(endpoint))
            unloads_s.append(_unload(endpoint, daemon))
            if number % 10 == 0:
                say(f"{number} of {arguments.cycles} cycles")
        after = Kept.of(daemon)
    finally:
        server.stop()
    print(f"commit {commit()}, {os.cpu_count()} CPUs, {arguments.cycles} cycles")
    print(f"{'':<18}{'before':>10}{'after':>10}")
    for label, one, other in (
        ("daemon's RSS, MiB", before.rss_bytes >> 20, after.rss_bytes >> 20),
        ("open files", before.n_files, after.n_files),
        ("threads", before.n_threads, after.n_threads),
        ("runners left", before.n_runners, after.n_runners),
    ):
        print(f"{label:<18}{one:>10}{other:>10}")
    print(
        f"median of a load with one token {statistics.median(loads_s):.3f} s, "
        f"of an unload {statistics.median(unloads_s):.3f} s"
    )


def _load(endpoint: Endpoint) -> float:
    """Seconds until the first answer."""
    began_s = time.perf_counter()
    body = {"model": endpoint.model, "prompt": "hi", "options": {"num_predict": 1}, "stream": False}
    request(endpoint.port, "POST", "/api/generate", body)
    return time.perf_counter() - began_s


def _unload(endpoint: Endpoint, daemon: psutil.Process) -> float:
    """Seconds until neither `ps` nor the system knows of a runner. Raises RuntimeError."""
    began_s = time.perf_counter()
    request(endpoint.port, "POST", "/api/generate", {"model": endpoint.model, "keep_alive": 0})
    while daemon.children() or request(endpoint.port, "GET", "/api/ps")["models"]:
        if time.perf_counter() - began_s > _UNLOAD_LIMIT_S:
            raise RuntimeError(f"the model is still in memory after {_UNLOAD_LIMIT_S:g} s")
        time.sleep(_POLL_S)
    return time.perf_counter() - began_s


def _parser() -> argparse.ArgumentParser:
    parser = rig.parser("unload", __doc__)
    parser.add_argument("--cycles", type=int, default=50)
    parser.add_argument("--window", type=int, default=2048, help="tokens of a sequence")
    return parser


if __name__ == "__main__":
    main()
