"""`python -m bench.footprint`: from nothing to the first token, and memory under load.

Start: for localrun from a request to a daemon without a runner, for llama.cpp's server from the
start of its process; both to the first token of a short answer. Memory: resident bytes of all
processes while 8 streams with contexts of 1,000 tokens decode, in windows of 4,096 tokens, where
localrun has one pool of 8,192 cells for them. Prints Markdown.
"""

import asyncio
import statistics
import time
from collections.abc import Iterable

import psutil

from bench import rig, servers
from bench.child import Child, request
from bench.load import answered
from bench.prompts import prompts
from bench.report import spread, table
from bench.rig import in_turn, model_path, running, say
from bench.servers import LlamaCpp, Localrun, Server, Setup
from cli.bench.answers import Answer, Endpoint, Outcome, Request
from cli.bench.client import ask
from cli.bench.load import closed_loop
from cli.bench.prompts import Prompter

_WINDOW, _N_SLOTS, _N_CELLS = 4096, 8, 8192
_CONTEXT_WORDS, _N_OUTPUT = 920, 8

# Looking twenty times a second for a port would be a tenth of what is measured.
_LOOK_S = 0.005


def main() -> None:
    """Measures and prints."""
    parser = rig.parser("footprint", __doc__)
    parser.add_argument("--rounds", type=int, default=5, help="starts of each server (5)")
    arguments = parser.parse_args()
    setup = Setup(model_path(arguments.model), arguments.threads, _WINDOW)
    program = servers.build_llama_server()
    Child.look_s = _LOOK_S

    ours = Localrun(setup, KV_POOL=_N_CELLS)
    peers: list[Server] = [servers.llama_server(setup, program), servers.xllamacpp(setup)]
    starts: dict[str, list[float]] = {}
    with running(ours, _N_SLOTS) as endpoint:
        for index in range(arguments.rounds):
            for server in in_turn([ours, *peers], index):
                if isinstance(server, LlamaCpp):
                    value = _start_of_peer(server)
                else:
                    value = _start_of_ours(endpoint)
                say(f"  {server.name}: {value:.2f} s")
                starts.setdefault(server.name, []).append(value)
    memory = {server.name: _memory(server) for server in (ours, *peers)}

    rows = []
    for name in starts:
        ratios = [a / b for a, b in zip(starts[ours.name], starts[name], strict=True)]
        is_peer = name != ours.name
        rows.append(
            [
                name,
                spread(starts[name], 2),
                f"{statistics.median(ratios):.2f}" if is_peer else "–",
                f"{memory[name] / 1e6:.0f}",
                f"{memory[ours.name] / memory[name]:.2f}" if is_peer else "–",
            ]
        )
    head = ["server", "to the first token, s", "localrun / it", "MB under load", "localrun / it"]
    print(table(head, rows))


def _start_of_ours(endpoint: Endpoint) -> float:
    """The daemon runs, without a model."""
    request(endpoint.port, "POST", "/api/generate", {"model": endpoint.model, "keep_alive": 0})
    while request(endpoint.port, "GET", "/api/ps")["models"]:
        time.sleep(_LOOK_S)
    return _to_first_text(endpoint)


def _start_of_peer(server: LlamaCpp) -> float:
    began = time.perf_counter()
    with running(server, _N_SLOTS) as endpoint:
        ready_s = time.perf_counter() - began
        return ready_s + _to_first_text(endpoint)


def _to_first_text(endpoint: Endpoint) -> float:
    outcome = asyncio.run(ask(endpoint, Request("Hello", 2)))
    if not isinstance(outcome, Answer):
        raise RuntimeError(outcome.reason)
    return outcome.ttft_s


def _memory(server: Server) -> int:
    """The most that its processes had together while all streams decoded."""
    prompter = Prompter(0, time.time_ns() % 1_000_000)
    requests = [Request(prompter.prompt(_CONTEXT_WORDS), _N_OUTPUT) for _ in range(_N_SLOTS)]
    with running(server, _N_SLOTS) as endpoint:
        asyncio.run(_load(endpoint, [Request(text, 4) for text in prompts(_N_SLOTS, "warm")]))
        outcomes, most = asyncio.run(_watched(endpoint, requests, [*server.processes().values()]))
    n_prompt = max(answer.n_prompt for answer in answered(outcomes))
    say(f"  {server.name}: {most / 1e6:.0f} MB, prompts of {n_prompt} tokens")
    return most


async def _watched(
    endpoint: Endpoint, requests: list[Request], processes: list[psutil.Process]
) -> tuple[list[Outcome], int]:
    load = asyncio.create_task(_load(endpoint, requests))
    most = 0
    while not load.done():
        most = max(most, sum(process.memory_info().rss for process in processes))
        await asyncio.wait([load], timeout=0.2)
    return load.result(), most


async def _load(endpoint: Endpoint, requests: Iterable[Request]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    await closed_loop(endpoint, requests, _N_SLOTS, outcomes.append)
    return outcomes


if __name__ == "__main__":
    main()
