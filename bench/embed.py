"""`python -m bench.embed MODEL.gguf`: vectors a second, beside llama-server with --embedding.

256 short texts, one by one from 32 clients and all in one request, three times each; and how far
the servers' vectors are from each other. Servers take turns, one runs at a time; ratios are taken
within a round, with the peer that is the better one over all rounds. Prints Markdown.
"""

import argparse
import asyncio
import json
import math
import os
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from bench import rig, servers
from bench.report import spread, table
from bench.rig import Watch, commit, cpu_s, in_turn, running, say
from bench.servers import LlamaCpp, Localrun, Server, Setup
from cli.bench.answers import Endpoint

_N_TEXTS, _N_CLIENTS, _N_TIMES = 256, 32, 3
_WORDS = ("quick", "brown", "fox", "over", "lazy", "dog", "river", "seven", "small", "ships")
_N_SLOTS = (8, 32)

Vectors = list[list[float]]


def main() -> None:
    """Measures and prints."""
    arguments = _parser().parse_args()
    setup = Setup(arguments.gguf.resolve(), arguments.threads, 512)
    program = arguments.llama_server or servers.build_llama_server()
    contestants: list[tuple[Server, int]] = [(Localrun(setup, load_path="/api/embed"), 8)]
    contestants += [(_peer(setup, program, n), n) for n in _N_SLOTS]
    slots = {server.name: n for server, n in contestants}
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    found: dict[str, Vectors] = {}
    for index in range(arguments.rounds):
        for server in in_turn([server for server, _ in contestants], index):
            with running(server, slots[server.name]) as endpoint:
                watch, before_s = Watch(), time.process_time() + _cpu_s(server)
                single, batch, vectors = asyncio.run(_measure(endpoint, index))
                share = watch.foreign_share(time.process_time() + _cpu_s(server) - before_s)
            rates[server.name, _LOADS[0]].append(single)
            rates[server.name, _LOADS[1]].append(batch)
            found[server.name] = vectors
            say(
                f"round {index + 1}, {server.name}: {single:.0f} and {batch:.0f} texts/s; "
                f"others' CPU {share:.1%}"
            )
    print(
        f"commit {commit()}, {os.cpu_count()} CPUs, `{setup.model.name}`, {_N_TEXTS} texts of "
        f"6 to 24 words, rounds: {arguments.rounds}\n"
    )
    print(_page(rates))
    ours, *others = (found[server.name] for server, _ in contestants)
    least = min(_cosine(a, b) for other in others for a, b in zip(ours, other, strict=True))
    print(f"\nLeast cosine of a text's two vectors: {least:.7f}")


_LOADS = ("one by one from 32 clients", "all in one request")


def _parser() -> argparse.ArgumentParser:
    parser = rig.parser("embed", __doc__)
    parser.add_argument("gguf", type=Path, help="a model for vectors")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (5)")
    parser.add_argument("--llama-server", help="another llama-server program")
    return parser


def _peer(setup: Setup, program: str, n: int) -> LlamaCpp:
    def command(n_parallel: int) -> list[str]:
        values = {
            "-m": setup.model,
            "--host": "127.0.0.1",
            "--port": servers.free_port(),
            "-np": n_parallel,
            "-c": n_parallel * setup.window,
            "-t": setup.n_threads,
        }
        flags = [text for flag, value in values.items() for text in (flag, str(value))]
        return [program, "--embedding", *flags]

    return LlamaCpp(f"llama-server, {n} slots", command)


def _cpu_s(server: Server) -> float:
    return sum(map(cpu_s, server.processes().values()))


async def _measure(endpoint: Endpoint, index: int) -> tuple[float, float, Vectors]:
    """(texts/s one by one, texts/s in one request, the vectors)."""
    chance = random.Random(index)
    texts = [" ".join(chance.choices(_WORDS, k=chance.randint(6, 24))) for _ in range(_N_TEXTS)]
    await _one_by_one(endpoint, texts[:_N_CLIENTS])
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    single_s, batch_s = [], []
    for _ in range(_N_TIMES):
        began = time.perf_counter()
        await _one_by_one(endpoint, texts)
        single_s.append(time.perf_counter() - began)
        began = time.perf_counter()
        reply = await _embed(endpoint, reader, writer, texts)
        batch_s.append(time.perf_counter() - began)
    writer.close()
    rows = sorted(json.loads(reply)["data"], key=lambda row: row["index"])
    n = len(texts)
    vectors = [row["embedding"] for row in rows]
    return n / statistics.median(single_s), n / statistics.median(batch_s), vectors


async def _one_by_one(endpoint: Endpoint, texts: Sequence[str]) -> None:
    waiting = iter(texts)

    async def client() -> None:
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        for text in waiting:
            await _embed(endpoint, reader, writer, text)
        writer.close()

    await asyncio.gather(*(client() for _ in range(_N_CLIENTS)))


async def _embed(
    endpoint: Endpoint,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    given: object,
) -> bytes:
    """The reply's body. A client of our own, since a library's costs as much as a short text."""
    body = json.dumps({"model": endpoint.model, "input": given}).encode()
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
    reply = await reader.readuntil(b"\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 200"), reply
    lengths = [
        int(line.partition(b":")[2])
        for line in reply.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    ]
    return await reader.readexactly(lengths[0])


def _page(rates: dict[tuple[str, str], list[float]]) -> str:
    names = list(dict.fromkeys(name for name, _ in rates))
    rows = []
    for load in _LOADS:
        ours = rates[names[0], load]
        best = max((rates[name, load] for name in names[1:]), key=statistics.median)
        for name in names:
            rows.append([load, name, spread(rates[name, load], 0), ""])
        ratio = statistics.median(a / b for a, b in zip(ours, best, strict=True))
        rows.append([load, "localrun / the better peer", "", f"{ratio:.2f}"])
    return table(["load", "server", "texts/s", "ratio"], rows)


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    dot = sum(a * b for a, b in zip(one, other, strict=True))
    return dot / (math.hypot(*one) * math.hypot(*other))


if __name__ == "__main__":
    main()
