"""The results of a comparison as a page of Markdown."""

import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from bench.load import Figures
from bench.results import Point, Results
from cli.bench.machine import cpu_name

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Machine:
    """What was measured and with which common settings."""

    commit: str
    model: str
    n_threads: int
    window: int


def render(
    results: Results, points: Sequence[Point], names: Sequence[str], machine: Machine
) -> str:
    """The whole page."""
    n_rounds = len(results.figures[points[0], names[0]])
    sections = (
        [f"# localrun beside its peers\n\n{_conditions(results, names, machine, n_rounds)}"],
        ["## Against the goals", *_goals(results, points, names)],
        ["## One stream", *_single(results, points, names)],
        ["## Many streams", *_many(results, points, names)],
        ["## The daemon's own cost", *_costs(results, points, names)],
    )
    return "\n\n".join("\n\n".join(section) for section in sections) + "\n"


def _conditions(results: Results, names: Sequence[str], machine: Machine, n_rounds: int) -> str:
    lines = [
        f"* {time.strftime('%Y-%m-%d')}, commit `{machine.commit}`, rounds: {n_rounds}; cells are "
        "medians of rounds, in brackets the least and the most",
        f"* {cpu_name()}, {psutil.cpu_count()} CPUs, "
        f"{psutil.virtual_memory().total / 1024**3:.0f} GiB; {platform.system()} "
        f"{platform.release()}, Python {platform.python_version()}",
        f"* `{machine.model}`, {machine.n_threads} threads, {machine.window} tokens a slot; greedy "
        "chats over `/v1/chat/completions` with prompts that all differ; one client for all",
        "* CPU time that processes outside the comparison took meanwhile: median "
        f"{statistics.median(results.foreign_shares):.1%}, most {max(results.foreign_shares):.1%}",
        *(f"* build of {name}: `{results.builds[name]}`" for name in names if results.builds[name]),
    ]
    return "\n".join(lines)


def _goals(results: Results, points: Sequence[Point], names: Sequence[str]) -> list[str]:
    rows = [
        [
            ratio.what,
            f"{ratio.share:.3f}",
            f"{ratio.least:.3f}–{ratio.most:.3f}",
            f"≥ {ratio.goal:g}",
            "yes" if ratio.is_met else "**no**",
        ]
        for ratio in results.ratios(points, names[1:])
    ]
    return [table(["ours / theirs", "ratio", "spread", "goal", "met"], rows)]


def _single(results: Results, points: Sequence[Point], names: Sequence[str]) -> list[str]:
    rows = [
        [
            name,
            str(point.n_slots),
            _cell(results, point, name, lambda f: f.decode_rate),
            _cell(results, point, name, lambda f: f.whole_rate),
            _cell(results, point, name, lambda f: f.ttft_p50_s * 1000, 0),
            *_counts(results, point, name),
        ]
        for point in points
        if point.n_streams == 1
        for name in names
    ]
    head = ["server", "slots", "decode, tok/s", "end to end, tok/s", "first token, ms"]
    served = table([*head, "tokens of an answer", "of a prompt"], rows)
    if not results.bare:
        return [served]
    bare_rows = [
        [str(bare.n_seq_max), bare.flash_attention, spread(rates)]
        for bare, rates in results.bare.items()
    ]
    head = ["`n_seq_max`", "flash attention", "decode, tok/s"]
    return [served, "The bare loop, in a process of its own:", table(head, bare_rows)]


def _many(results: Results, points: Sequence[Point], names: Sequence[str]) -> list[str]:
    rows = [
        [
            str(point.n_streams),
            name,
            _cell(results, point, name, lambda f: f.total_rate),
            _cell(results, point, name, lambda f: f.decode_rate),
            _cell(results, point, name, lambda f: f.ttft_p50_s * 1000, 0),
            _cell(results, point, name, lambda f: f.ttft_p99_s * 1000, 0),
            _cell(results, point, name, lambda f: f.max_gap_s * 1000, 0),
            *_counts(results, point, name),
        ]
        for point in points
        if point.n_streams > 1
        for name in names
    ]
    head = ["streams", "server", "total, tok/s", "decode of one, tok/s", "first token p50, ms"]
    head += ["p99, ms", "longest gap, ms", "tokens of an answer", "of a prompt"]
    return [table(head, rows)]


def _counts(results: Results, point: Point, name: str) -> list[str]:
    figures = results.figures[point, name]
    fewest, most = min(f.fewest for f in figures), max(f.most for f in figures)
    answered = str(most) if fewest == most else f"**{fewest}–{most}**"
    n_prompts = point.n_answers * len(figures)
    return [answered, f"{sum(f.n_prompt for f in figures) / n_prompts:.1f}"]


def _costs(results: Results, points: Sequence[Point], names: Sequence[str]) -> list[str]:
    cpu_rows = [
        _cpu_row(f"{name}, {role}", point, results.cpu_per_1000(point, name, role))
        for point in points
        for measured, name, role in results.cpu_s
        if measured == point
    ]
    cpu_rows += [
        _cpu_row("this client", point, _client_cpu_per_1000(results.figures[point, names[0]]))
        for point in points
    ]
    memory_rows = [
        [
            f"{name}, {role}",
            str(n_slots) if n_slots else "before any load",
            f"{statistics.median(sizes) / _MIB:.0f}",
        ]
        for (n_slots, name, role), sizes in sorted(results.rss_bytes.items())
    ]
    command_rows = [
        [f"`localrun {command}`", spread([s * 1000 for s in seconds], 0)]
        for command, seconds in results.command_s.items()
    ]
    return [
        table(["process", "streams", "slots", "CPU seconds per 1,000 tokens"], cpu_rows),
        table(["process", "slots", "resident, MiB"], memory_rows),
        table(["command", "wall time, ms"], command_rows),
    ]


def _cpu_row(what: str, point: Point, seconds: float) -> list[str]:
    return [what, str(point.n_streams), str(point.n_slots), f"{seconds:.2f}"]


def _client_cpu_per_1000(figures: Sequence[Figures]) -> float:
    return 1000 * sum(f.client_cpu_s for f in figures) / sum(f.n_tokens for f in figures)


def _cell(
    results: Results, point: Point, name: str, value: Callable[[Figures], float], digits: int = 1
) -> str:
    return spread([value(figure) for figure in results.figures[point, name]], digits)


def spread(values: Sequence[float], digits: int = 1) -> str:
    """The median, in brackets the least and the most."""
    middle = f"{statistics.median(values):.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
