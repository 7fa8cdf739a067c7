"""`python -m bench.soak`: is a stream as fast after minutes of traffic as on a fresh runner?

One daemon gets chats of all lengths from more users than it has slots, some of whom leave in the
middle; then its single stream is measured in turns with that of a daemon that was just started.
"""

import asyncio
import random
import secrets
import statistics
import time
from collections.abc import Iterator

import psutil

from bench import rig
from bench.load import measure
from bench.prompts import prompts
from bench.rig import cpu_s, model_path, running, say
from bench.servers import Localrun, Setup
from cli.bench.answers import Answer, Endpoint, Outcome, Request
from cli.bench.client import ask
from cli.bench.lengths import chat_lengths, clipped
from cli.bench.prompts import Fit, Prompter

_WINDOW, _N_SLOTS, _N_USERS = 2048, 8, 12
_STREAM_TOKENS, _N_STREAMS = 128, 3

# Of ten users, this many leave before their answer ends.
_N_LEAVING = 2


def main() -> None:
    """Puts the traffic on, measures and prints."""
    parser = rig.parser("soak", __doc__)
    parser.add_argument("--minutes", type=float, default=5, help="minutes of traffic (5)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of the comparison (5)")
    arguments = parser.parse_args()
    setup = Setup(model_path(arguments.model), arguments.threads, _WINDOW)
    old, fresh = Localrun(setup), Localrun(setup)
    with running(old, _N_SLOTS) as endpoint:
        _stream_rate(endpoint, "warm up")
        before = {name: _memory(process) for name, process in old.processes().items()}
        outcomes = asyncio.run(_traffic(endpoint, arguments.minutes * 60))
        ended = sum(isinstance(outcome, Answer) for outcome in outcomes)
        say(f"{len(outcomes)} requests, {ended} answered")
        ratios = []
        for index in range(arguments.rounds):
            with running(fresh, _N_SLOTS) as other:
                _stream_rate(other, "warm up")
                rates = {}
                pair = [("old", endpoint), ("fresh", other)]
                for name, server in pair if index % 2 else pair[::-1]:
                    _settle([*old.processes().values(), *fresh.processes().values()])
                    rates[name] = _stream_rate(server, secrets.token_hex(4))
                ratios.append(rates["old"] / rates["fresh"])
                say(f"  old {rates['old']:.1f}, fresh {rates['fresh']:.1f} tok/s")
        for name, process in old.processes().items():
            print(f"{name}: {before[name] / 1e6:.0f} MB before, {_memory(process) / 1e6:.0f} after")
    print(
        f"{len(outcomes)} requests in {arguments.minutes:g} minutes, {ended} answered; then one "
        f"stream has {statistics.median(ratios):.2f} of a fresh runner's rate "
        f"({min(ratios):.2f} to {max(ratios):.2f})"
    )


def _memory(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


def _settle(processes: list[psutil.Process]) -> None:
    """Returns when none of them computes any more: a self-test may still run."""
    while True:
        before_s = sum(map(cpu_s, processes))
        time.sleep(2)
        if sum(map(cpu_s, processes)) - before_s < 0.1:
            return


def _stream_rate(endpoint: Endpoint, seed: str) -> float:
    texts = prompts(_N_STREAMS, f"soak {seed}")
    return measure(endpoint, texts, n_clients=1, n_tokens=_STREAM_TOKENS).decode_rate


async def _traffic(endpoint: Endpoint, duration_s: float) -> list[Outcome]:
    requests = _requests()
    outcomes: list[Outcome] = []
    end_s = time.perf_counter() + duration_s
    chosen = random.Random("leaving")

    async def user() -> None:
        while time.perf_counter() < end_s:
            patience_s = chosen.uniform(0.1, 5) if chosen.randrange(10) < _N_LEAVING else None
            try:
                async with asyncio.timeout(patience_s):
                    outcomes.append(await ask(endpoint, next(requests)))
            except TimeoutError:
                pass  # this user has left

    async with asyncio.TaskGroup() as group:
        for _ in range(_N_USERS):
            group.create_task(user())
    return outcomes


def _requests() -> Iterator[Request]:
    """Chats; every fourth one goes on where another one began."""
    prompter, fit = Prompter(0, secrets.randbelow(1_000_000)), Fit()
    systems = [prompter.text(300) for _ in range(3)]
    for number, length in enumerate(chat_lengths(0)):
        fitted = clipped(length, _WINDOW // 2)
        system = systems[number % 3] if number % 4 == 0 else ""
        yield Request(prompter.prompt(fit.n_words(fitted.n_prompt)), fitted.n_output, system)


if __name__ == "__main__":
    main()
