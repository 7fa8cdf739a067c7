"""`python -m bench.scenarios`: loads that tell serving engines apart, side by side with peers.

As in `bench.compare` the servers take turns and one runs at a time; ratios are taken within a
round. Here the peers keep their prefix caches, and run with flash attention on and off.
"""

import argparse
import asyncio
import dataclasses
import secrets
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import rig, servers
from bench.load import answered
from bench.prompts import prompts
from bench.quantize import as_q4_0
from bench.report import spread, table
from bench.rig import Watch, commit, cpu_s, in_turn, model_path, running, say
from bench.servers import FlashAttention, Localrun, Server, Setup
from cli.bench.answers import Answer, Endpoint, Outcome, Request
from cli.bench.figures import figures
from cli.bench.load import beside_long, closed_loop
from cli.bench.machine import this_machine
from cli.bench.prompts import Prompter
from cli.bench.sweep import calibrate
from cli.errors import CliError


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large everything is; `*_words` and `*_tokens` are of one prompt or answer."""

    n_sharing: int = 16
    shared_words: int = 800
    shared_answer_tokens: int = 24
    n_streams: int = 4
    stream_tokens: int = 200
    long_tokens: int = 2600
    loop_users: tuple[int, ...] = (1, 8, 16)
    loop_tokens: int = 64
    loop_requests: int = 12  # at least: of fewer by one user the figure moves by 10 %
    busy_users: tuple[int, ...] = (1, 8)
    n_contexts: int = 8
    context_tokens: int = 1000
    decode_tokens: int = 128
    warms_all_slots: bool = True


_TINY = Sizes(
    n_sharing=3,
    shared_words=80,
    shared_answer_tokens=4,
    n_streams=2,
    stream_tokens=24,
    long_tokens=300,
    loop_users=(1, 2),
    busy_users=(1, 2),
    loop_tokens=8,
    loop_requests=3,
    n_contexts=2,
    context_tokens=100,
    decode_tokens=16,
    warms_all_slots=False,
)


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a scenario."""

    name: str
    unit: str
    is_better_low: bool


_TTFT_P99 = Metric("TTFT p99", "s", is_better_low=True)
_TOTAL = Metric("total time", "s", is_better_low=True)
_GAP = Metric("longest gap of the streams", "s", is_better_low=True)
_LONG_TTFT = Metric("TTFT of the long prompt", "s", is_better_low=True)
_DECODE = Metric("decode", "tok/s", is_better_low=False)

# Until a server that looks at the CPUs now and then has seen a process come or go.
_NOTICED_S = 2.0

# A figure is None when the load had no moment at which it could be measured.
Found = dict[Metric, float | None]
Measure = Callable[[Endpoint, Sizes, int], Awaitable[Found]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One load on servers with `n_slots` slots of `window` tokens."""

    title: str
    n_slots: int
    window: int
    measure: Measure
    has_q4_0: bool = False


def _prompter(index: int) -> Prompter:
    """The words of round `index`, with numbers that no server has seen."""
    return Prompter(index, secrets.randbelow(1_000_000))


async def _shared(endpoint: Endpoint, sizes: Sizes, index: int) -> Found:
    prompter = _prompter(index)
    system = prompter.text(sizes.shared_words)
    n, n_tokens = sizes.n_sharing, sizes.shared_answer_tokens
    requests = [Request(prompter.prompt(20), n_tokens, system) for _ in range(n)]
    found = figures(await _closed(endpoint, requests, n))
    return {_TTFT_P99: found.ttft_p99_s, _TOTAL: found.wall_s}


async def _long(endpoint: Endpoint, sizes: Sizes, index: int) -> Found:
    fit = await calibrate(endpoint, "the server")
    prompter = _prompter(index)
    streams = (Request(prompter.prompt(30), sizes.stream_tokens) for _ in range(1000))
    long = Request(prompter.prompt(fit.n_words(sizes.long_tokens)), 16)
    outcomes: list[Outcome] = []
    outcome = await beside_long(endpoint, streams, sizes.n_streams, long, outcomes.append)
    gap_s = figures(answered(outcomes)).gap_max_s
    return {_GAP: gap_s, _LONG_TTFT: answered([outcome])[0].ttft_s}


async def _loop(endpoint: Endpoint, sizes: Sizes, index: int) -> Found:
    found: Found = {}
    for n_users in sizes.loop_users:
        n_requests = max(sizes.loop_requests, 2 * n_users)
        texts = prompts(n_requests, f"{index} {n_users} {secrets.token_hex(4)}")
        requests = [Request(text, sizes.loop_tokens) for text in texts]
        name = f"{n_users} user{'s' * (n_users != 1)}"
        metric = Metric(name, "tok/s", is_better_low=False)
        found[metric] = figures(await _closed(endpoint, requests, n_users)).output_rate
    return found


async def _contexts(endpoint: Endpoint, sizes: Sizes, index: int) -> Found:
    """The prompts are asked twice, so that a server with a prefix cache only decodes."""
    fit = await calibrate(endpoint, "the server")
    prompter = _prompter(index)
    n_words, n = fit.n_words(sizes.context_tokens), sizes.n_contexts
    texts = [prompter.prompt(n_words) for _ in range(n)]
    await _closed(endpoint, [Request(text, 4) for text in texts], n)
    answers = await _closed(endpoint, [Request(text, sizes.decode_tokens) for text in texts], n)
    return {_DECODE: rate_together(answers)}


async def _beside_process(endpoint: Endpoint, sizes: Sizes, index: int) -> Found:
    """The closed loop while another process keeps one CPU busy, of the loop before and after."""
    sizes = dataclasses.replace(sizes, loop_users=sizes.busy_users)
    idle = await _loop(endpoint, sizes, index)
    busy_process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        await asyncio.sleep(_NOTICED_S)
        busy = await _loop(endpoint, sizes, index)
    finally:
        busy_process.kill()
        busy_process.wait()
    await asyncio.sleep(_NOTICED_S)
    again = await _loop(endpoint, sizes, index)
    found: Found = {}
    for metric, value in busy.items():
        both = (idle[metric], again[metric])
        shown = Metric(f"{metric.name}, part of the idle rate", "", is_better_low=False)
        found[shown] = value * 2 / sum(b for b in both if b) if value and all(both) else None
    return found


async def _closed(endpoint: Endpoint, requests: Sequence[Request], n_users: int) -> list[Answer]:
    outcomes: list[Outcome] = []
    await closed_loop(endpoint, requests, n_users, outcomes.append)
    return answered(outcomes)


def rate_together(answers: Sequence[Answer]) -> float | None:
    """Tokens a second from when all `answers` have begun to when the first one ends."""
    begin = max(answer.times[0] for answer in answers)
    end = min(answer.times[-1] for answer in answers)
    if end <= begin:
        return None
    # A piece of text may have several tokens.
    n_tokens = sum(
        sum(begin < moment <= end for moment in answer.times) * answer.n_tokens / len(answer.times)
        for answer in answers
    )
    return n_tokens / (end - begin)


SCENARIOS = {
    "a": Scenario("requests at once with one system prompt", 16, 2048, _shared),
    "b": Scenario("a long prompt beside streams", 8, 4096, _long),
    "c": Scenario("closed loop", 16, 2048, _loop, has_q4_0=True),
    "d": Scenario("streams with long contexts", 8, 2048, _contexts),
    "e": Scenario("a busy process on one CPU", 8, 2048, _beside_process),
}

# (title, metric) → server → round → figure, where there is one
Results = dict[tuple[str, Metric], dict[str, dict[int, float]]]


def main() -> None:
    """Parses the command line, measures, prints and perhaps writes the tables."""
    arguments = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped
    model = model_path(arguments.model)
    program = arguments.llama_server or servers.build_llama_server()
    sizes = _TINY if arguments.tiny else Sizes()
    results: Results = defaultdict(lambda: defaultdict(dict))
    shares: list[float] = []
    for index in range(arguments.rounds):
        for letter in arguments.only:
            scenario = SCENARIOS[letter]
            for path in (model, as_q4_0(model)) if scenario.has_q4_0 else (model,):
                say(f"round {index + 1} of {arguments.rounds}: {letter}, {path.name}")
                title = f"({letter}) {scenario.title}, `{path.name}`"
                setup = Setup(path, arguments.threads, scenario.window)
                for server in in_turn(_contestants(setup, program), index):
                    found, share = _measure(server, scenario, sizes, index)
                    shares.append(share)
                    for metric, value in found.items():
                        by_round = results[title, metric][server.name]
                        if value is not None:
                            by_round[index] = value
    text = render(results, arguments.rounds, sizes, shares)
    print(text)
    if arguments.out:
        arguments.out.write_text(text)


def _parser() -> argparse.ArgumentParser:
    parser = rig.parser("scenarios", __doc__)
    parser.add_argument("--only", type=_letters, default=[*SCENARIOS], help="of a,b,c,d,e")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (3)")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes: does it work at all")
    parser.add_argument("--llama-server", help="another llama-server program")
    parser.add_argument("--out", type=Path, help="file for the tables, besides stdout")
    return parser


def _letters(text: str) -> list[str]:
    letters = text.split(",")
    if unknown := set(letters) - SCENARIOS.keys():
        raise argparse.ArgumentTypeError(f"no scenario {', '.join(sorted(unknown))}")
    return letters


def _contestants(setup: Setup, program: str) -> list[Server]:
    found: list[Server] = [Localrun(setup)]
    variants: tuple[FlashAttention, ...] = ("on", "off")
    for variant in variants:
        found.append(servers.llama_server(setup, program, variant, keeps_prompts=True))
        found.append(servers.xllamacpp(setup, variant, keeps_prompts=True))
    return found


def _measure(server: Server, scenario: Scenario, sizes: Sizes, index: int) -> tuple[Found, float]:
    """The figures, none when the server failed, and the CPU share of processes beside it."""
    with running(server, scenario.n_slots) as endpoint:
        asyncio.run(_warm(endpoint, scenario.n_slots if sizes.warms_all_slots else 1, index))
        processes = [*server.processes().values()]
        watch, before_s = Watch(), time.process_time() + sum(map(cpu_s, processes))
        try:
            found = asyncio.run(_awaited(scenario.measure(endpoint, sizes, index)))
        except (RuntimeError, CliError) as error:
            say(f"  {server.name}: {error}")
            found = {}
        share = watch.foreign_share(time.process_time() + sum(map(cpu_s, processes)) - before_s)
    shown = ", ".join(f"{m.name} {_number(v)} {m.unit}" for m, v in found.items())
    say(f"  {server.name}: {shown}; others' CPU {share:.1%}")
    return found, share


async def _awaited(found: Awaitable[Found]) -> Found:
    return await found


async def _warm(endpoint: Endpoint, n: int, index: int) -> None:
    texts = prompts(n, f"warm {index} {secrets.token_hex(4)}")
    await _closed(endpoint, [Request(text, 8) for text in texts], n)


def render(results: Results, n_rounds: int, sizes: Sizes, shares: Sequence[float]) -> str:
    """The whole page, Markdown."""
    parts = [
        "# Scenarios beside peers",
        f"* {time.strftime('%Y-%m-%d')}, commit `{commit()}`, rounds: {n_rounds}; cells are "
        "medians of rounds, in brackets the least and the most\n"
        f"* {this_machine()}\n* `{sizes}`\n"
        "* CPU time that processes outside the comparison took meanwhile: median "
        f"{statistics.median(shares):.1%}, most {max(shares):.1%}",
    ]
    titles = dict.fromkeys(title for title, _ in results)
    for title in titles:
        head = ["figure", "server", "value", "localrun / server", "better"]
        rows = [
            row
            for (found, metric), by_server in results.items()
            if found == title
            for row in _rows(metric, by_server)
        ]
        parts += [f"## {title}", table(head, rows)]
    return "\n\n".join(parts) + "\n"


def _rows(metric: Metric, by_server: dict[str, dict[int, float]]) -> list[list[str]]:
    ours = by_server["localrun"]
    rows = []
    for name, values in by_server.items():
        rounds = (ours.keys() & values.keys()) if name != "localrun" else ()
        ratios = [ours[index] / values[index] for index in rounds]
        is_ours = bool(ratios) and (statistics.median(ratios) < 1) == metric.is_better_low
        rows.append(
            [
                f"{metric.name}, {metric.unit}".rstrip(", "),
                name,
                spread([*values.values()], 2) if values else "–",
                spread(ratios, 2) if ratios else "–",
                ("localrun" if is_ours else name) if ratios else "–",
            ]
        )
    return rows


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    main()
