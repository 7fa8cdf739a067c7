"""`python -m bench.http`: what HTTP and the daemon cost, without a model.

Requests per second of small answers over 16 connections that stay open. Then 16 streams of a
scripted model with a fixed step: how much later than in the engine a client sees its first token
and the time between two, and the daemon's CPU time for 1,000 tokens. Client, daemon and runner
share the machine's cores. Prints Markdown.
"""

import argparse
import asyncio
import base64
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import gguf
import psutil

from bench import rig
from bench.child import Child, read, request
from bench.report import table
from bench.rig import commit, say
from bench.servers import clean_environment
from cli.bench.answers import Answer, Endpoint, Request
from cli.bench.client import ask
from localrun.runner.fake_script import SCRIPT_KEY
from localrun.spec import FAKE_ARCHITECTURE

_PATHS = ("/api/version", "/api/tags", "/v1/models")
_N_CONNECTIONS = 16
_N_STREAMS = 16
_N_ALONE = 50
_WARM_S = 0.5


@dataclass(frozen=True, slots=True)
class Added:
    """Milliseconds that a client sees beyond what the engine needed, and CPU seconds.

    `alone_ms` is a first token with nothing beside it. Of streams that begin at once most wait for
    the end of a step that is under way, before the engine's clock runs.
    """

    alone_ms: list[float]
    first_ms: list[float]
    between_ms: list[float]
    cpu_s_per_1000: float


def main() -> None:
    """Measures and prints."""
    arguments = _parser().parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="localrun-bench-") as folder,
        _daemon(Path(folder)) as (
            port,
            process,
        ),
    ):
        for number in range(arguments.models):
            _create(Path(folder), port, f"m{number}", arguments.step_ms / 1000)
        rates = []
        for path in _PATHS:
            say(f"requests of {path}")
            rates.append((path, asyncio.run(_rate(port, path, arguments.seconds))))
        say(f"{_N_STREAMS} streams")
        added = asyncio.run(_streams(port, process, arguments.tokens, arguments.rounds))
    print(
        f"commit {commit()}, {os.cpu_count()} CPUs, {arguments.models} models in the store, "
        f"a step of {arguments.step_ms:g} ms, {_N_STREAMS} streams of {arguments.tokens} tokens\n"
    )
    print(table(["answer", "requests/s, 16 connections"], [(p, f"{r:.0f}") for p, r in rates]))
    print()
    rows = [
        ("added to the first token, one stream, ms", *_shares(added.alone_ms)),
        ("added to the first token, 16 at once, ms", *_shares(added.first_ms)),
        ("added between two tokens, ms", *_shares(added.between_ms)),
    ]
    print(table(["", "p50", "p99"], rows))
    print(f"\nCPU of the daemon: {added.cpu_s_per_1000:.3f} s for 1,000 tokens")


def _parser() -> argparse.ArgumentParser:
    parser = rig.parser("http", __doc__)
    parser.add_argument("--models", type=int, default=10, help="models in the store (10)")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each kind of request (3)")
    parser.add_argument("--step-ms", type=float, default=20.0, help="a step of the script (20)")
    parser.add_argument("--tokens", type=int, default=200, help="of each stream (200)")
    parser.add_argument("--rounds", type=int, default=3, help="of all streams at once (3)")
    return parser


def _shares(values: Sequence[float]) -> tuple[str, str]:
    ordered = sorted(values)
    return f"{statistics.median(ordered):.2f}", f"{ordered[int(len(ordered) * 0.99)]:.2f}"


# ---- small requests


async def _rate(port: int, path: str, seconds: float) -> float:
    """Requests per second over connections that each wait for their answer."""
    await _hammer(port, path, _WARM_S)
    began = time.perf_counter()
    counts = await _hammer(port, path, seconds)
    return counts / (time.perf_counter() - began)


async def _hammer(port: int, path: str, seconds: float) -> int:
    stop_at = time.perf_counter() + seconds
    counts = await asyncio.gather(*(_one(port, path, stop_at) for _ in range(_N_CONNECTIONS)))
    return sum(counts)


async def _one(port: int, path: str, stop_at: float) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    n = 0
    while time.perf_counter() < stop_at:
        writer.write(head)
        reply = await reader.readuntil(b"\r\n\r\n")
        assert reply.startswith(b"HTTP/1.1 200"), reply
        length = next(
            int(line.partition(b":")[2])
            for line in reply.split(b"\r\n")
            if line.lower().startswith(b"content-length:")
        )
        await reader.readexactly(length)
        n += 1
    writer.close()
    await writer.wait_closed()
    return n


# ---- streams


async def _streams(port: int, process: psutil.Process, n_tokens: int, n_rounds: int) -> Added:
    endpoint = Endpoint("127.0.0.1", port, "m0", path="/v1/completions")
    await ask(endpoint, Request("warm", 2))
    alone_ms = []
    for number in range(_N_ALONE):
        before = _engine(port)
        answer = await ask(endpoint, Request(f"alone {number}", 2))
        assert isinstance(answer, Answer), answer
        engine_ms, _ = _means_ms(before, _engine(port))
        alone_ms.append((answer.times[0] - answer.began) * 1000 - engine_ms)
    first_ms: list[float] = []
    between_ms: list[float] = []
    cpu_s = 0.0
    for number in range(n_rounds):
        before, cpu_before = _engine(port), _cpu_s(process)
        outcomes = await asyncio.gather(
            *(
                ask(endpoint, Request(f"{number} {stream}", n_tokens))
                for stream in range(_N_STREAMS)
            )
        )
        cpu_s += _cpu_s(process) - cpu_before
        engine_first_ms, engine_between_ms = _means_ms(before, _engine(port))
        for answer in outcomes:
            assert isinstance(answer, Answer), answer
            first_ms.append((answer.times[0] - answer.began) * 1000 - engine_first_ms)
            between_ms += [
                (later - earlier) * 1000 - engine_between_ms
                for earlier, later in zip(answer.times, answer.times[1:], strict=False)
            ]
    n_all = n_rounds * _N_STREAMS * n_tokens
    return Added(alone_ms, first_ms, between_ms, 1000 * cpu_s / n_all)


def _engine(port: int) -> dict[str, float]:
    """Sums and counts of the runner's own times, from the metrics."""
    text = read(port, "GET", "/metrics")
    found = {}
    for line in text.decode().splitlines():
        name, _, value = line.rpartition(" ")
        if 'model="m0' in name and name.startswith(("localrun_ttft", "localrun_itl")):
            found[name.partition("{")[0].removeprefix("localrun_")] = float(value)
    return found


def _means_ms(before: dict[str, float], after: dict[str, float]) -> tuple[float, float]:
    first, between = (
        1000
        * (after[f"{name}_sum"] - before.get(f"{name}_sum", 0.0))
        / (after[f"{name}_count"] - before.get(f"{name}_count", 0.0))
        for name in ("ttft_seconds", "itl_seconds")
    )
    return first, between


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


# ---- the daemon


def _create(folder: Path, port: int, name: str, step_s: float) -> None:
    path = folder / f"{name}.gguf"
    writer = gguf.GGUFWriter(path, FAKE_ARCHITECTURE)
    writer.add_uint32(f"{FAKE_ARCHITECTURE}.context_length", 4096)
    piece = base64.b64encode(f"{name} ".encode()).decode()
    script = {"pieces": [piece], "endless": True, "step_s": step_s}
    writer.add_string(SCRIPT_KEY, json.dumps(script))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    body = {"model": name, "path": str(path), "in_place": True, "stream": False}
    request(port, "POST", "/api/create", body)


@contextmanager
def _daemon(folder: Path) -> Iterator[tuple[int, psutil.Process]]:
    settings = {
        "LOCALRUN_MODELS": str(folder / "models"),
        "LOCALRUN_HOST": "127.0.0.1:0",
        "LOCALRUN_NUM_PARALLEL": str(_N_STREAMS),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    child = Child([sys.executable, "-m", "cli", "serve"], {**clean_environment(), **settings})
    try:
        yield child.wait_port(), psutil.Process(child.process.pid)
    finally:
        child.stop()


if __name__ == "__main__":
    main()
