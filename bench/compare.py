"""`python -m bench.compare`: localrun, its peers and a bare loop, measured side by side.

The servers take turns (A B C, B C A, …) and only one runs at a time, so that whatever else the
machine does hits all of them alike. Ratios are taken within a round.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

from bench import load, rig, servers
from bench.prompts import prompts
from bench.report import Machine, render
from bench.results import Bare, Point, Results
from bench.rig import Watch, commit, cpu_s, in_turn, model_path, running, say
from bench.servers import Localrun, Remote, Server, Setup
from cli.bench.answers import Endpoint

POINTS = (
    Point(n_slots=1, n_streams=1, n_tokens=200, n_answers=3),
    Point(n_slots=8, n_streams=1, n_tokens=200, n_answers=3),
    Point(n_slots=8, n_streams=8, n_tokens=64, n_answers=16),
    Point(n_slots=16, n_streams=16, n_tokens=64, n_answers=32),
)
QUICK_POINTS = (
    Point(n_slots=1, n_streams=1, n_tokens=100, n_answers=1),
    Point(n_slots=8, n_streams=1, n_tokens=100, n_answers=1),
    Point(n_slots=8, n_streams=8, n_tokens=64, n_answers=8),
    Point(n_slots=16, n_streams=16, n_tokens=64, n_answers=16),
)
_COMMANDS = ("ps", "--version")
_COMMAND_RUNS = 10
# The slots at which memory and commands are looked at: localrun's default.
_USUAL_SLOTS = 8


def main() -> None:
    """Parses the command line, measures, prints and perhaps writes the table."""
    arguments = _parser().parse_args()
    # So that the servers are stopped on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    setup = Setup(model_path(arguments.model), arguments.threads, arguments.window)
    ours = Localrun(setup)
    contestants: list[Server] = [ours, *_peers(setup, arguments)]
    points = QUICK_POINTS if arguments.quick else POINTS
    rounds = arguments.rounds or (1 if arguments.quick else 5)
    results = Results()
    for index in range(rounds):
        say(f"round {index + 1} of {rounds}")
        _measure_round(results, points, contestants, index)
        if not arguments.no_bare:
            _measure_bare(results, points, setup)
    machine = Machine(
        commit=commit(), model=setup.model.name, n_threads=setup.n_threads, window=setup.window
    )
    text = render(results, points, [server.name for server in contestants], machine)
    print(text)
    if arguments.out:
        arguments.out.write_text(text)


def _parser() -> argparse.ArgumentParser:
    parser = rig.parser("compare", __doc__)
    parser.add_argument("--quick", action="store_true", help="one short round: does it work at all")
    parser.add_argument("--rounds", type=int, help="rounds (5, with --quick 1)")
    parser.add_argument("--window", type=int, default=2048, help="tokens of one slot")
    parser.add_argument("--no-xllamacpp", action="store_true", help="without the wheel's server")
    parser.add_argument("--no-llama-server", action="store_true", help="without our build's server")
    parser.add_argument("--llama-server", help="another llama-server program")
    parser.add_argument("--no-bare", action="store_true", help="without the bare loop")
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="[NAME=]URL",
        help="a running OpenAI-compatible server; may be repeated",
    )
    parser.add_argument("--out", type=Path, help="file for the table, besides stdout")
    return parser


def _peers(setup: Setup, arguments: argparse.Namespace) -> list[Server]:
    found: list[Server] = []
    if not arguments.no_xllamacpp:
        if find_spec("xllamacpp") is None:
            raise SystemExit("xllamacpp is missing: pip install '.[bench]', or --no-xllamacpp")
        found.append(servers.xllamacpp(setup))
    if not arguments.no_llama_server:
        program = arguments.llama_server or servers.build_llama_server()
        found.append(servers.llama_server(setup, program))
    for peer in arguments.peer:
        name, separator, url = peer.partition("=")
        found.append(Remote(name, url) if separator and "/" not in name else Remote(peer, peer))
    return found


# ---- one round


def _measure_round(
    results: Results, points: Sequence[Point], contestants: Sequence[Server], index: int
) -> None:
    order = in_turn(contestants, index)
    for n_slots, group in groupby(points, key=lambda point: point.n_slots):
        same_slots = list(group)
        for server in order:
            with running(server, n_slots) as endpoint:
                _warm(endpoint, n_slots, index)
                for point in same_slots:
                    _measure_point(results, point, server, endpoint, index)
                _look_around(results, server, n_slots)


def _warm(endpoint: Endpoint, n_slots: int, index: int) -> None:
    texts = prompts(n_slots, f"warm {index}")
    load.measure(endpoint, texts, n_clients=n_slots, n_tokens=8)


def _measure_point(
    results: Results, point: Point, server: Server, endpoint: Endpoint, index: int
) -> None:
    texts = prompts(point.n_answers, f"{index} {point}")
    processes = server.processes()
    before_s = {role: cpu_s(process) for role, process in processes.items()}
    watch = Watch()
    figure = load.measure(endpoint, texts, n_clients=point.n_streams, n_tokens=point.n_tokens)
    ours_s = figure.client_cpu_s
    for role, process in processes.items():
        spent_s = cpu_s(process) - before_s[role]
        ours_s += spent_s
        results.cpu_s[point, server.name, role] += spent_s
    results.figures[point, server.name].append(figure)
    share = watch.foreign_share(ours_s)
    results.foreign_shares.append(share)
    say(
        f"  {server.name}, {point.n_slots} slots, {point.n_streams} streams: total "
        f"{figure.total_rate:.1f}, decode {figure.decode_rate:.1f} tok/s; others' CPU {share:.1%}"
    )


def _look_around(results: Results, server: Server, n_slots: int) -> None:
    for role, process in server.processes().items():
        results.rss_bytes[n_slots, server.name, role].append(process.memory_info().rss)
    results.builds[server.name] = server.about()
    if isinstance(server, Localrun) and n_slots == _USUAL_SLOTS:
        results.rss_bytes[0, server.name, "daemon"].append(server.idle_rss_bytes)
        for command in _COMMANDS:
            results.command_s.setdefault(command, []).extend(_command_s(command, server.url))


def _command_s(command: str, url: str) -> Iterator[float]:
    """Wall times of the installed program, as a shell would start it."""
    env = {**servers.clean_environment(), "LOCALRUN_HOST": url}
    program = Path(sys.executable).with_name("localrun")
    for _ in range(_COMMAND_RUNS):
        began = time.perf_counter()
        subprocess.run([program, command], env=env, stdout=subprocess.DEVNULL, check=True)
        yield time.perf_counter() - began


def _measure_bare(results: Results, points: Sequence[Point], setup: Setup) -> None:
    single = [point for point in points if point.n_streams == 1]
    command = [sys.executable, "-m", "bench.bare", str(setup.model)]
    command += ["--prompt", prompts(1, "bare")[0], "--tokens", str(single[0].n_tokens)]
    command += ["--threads", str(setup.n_threads), "--window", str(setup.window)]
    command += ["--n-seq-max", *(str(point.n_slots) for point in single)]
    command += ["--flash-attention", "off", "auto"]
    watch, before_s = Watch(), _children_cpu_s()
    env = servers.clean_environment()
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True)
    share = watch.foreign_share(_children_cpu_s() - before_s)
    results.foreign_shares.append(share)
    found = json.loads(done.stdout)
    results.builds["localrun"] = found["system_info"].strip(" |")
    for row in found["rates"]:
        bare = Bare(row["n_seq_max"], row["flash_attention"])
        results.bare[bare].append(row["rate"])
        say(f"  {bare}: decode {row['rate']:.1f} tok/s; others' CPU {share:.1%}")


def _children_cpu_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


if __name__ == "__main__":
    main()
