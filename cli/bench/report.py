"""The results of a run as a table for people and as JSON for programs. No I/O."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from cli.bench.answers import Answer, Outcome
from cli.bench.figures import Figures
from cli.bench.machine import Machine
from cli.bench.plan import Plan, described
from cli.bench.plot import Point, Series
from cli.bench.slo import Verdict
from cli.bench.sweep import Measured, Target

_NONE = "–"


@dataclass(frozen=True, slots=True)
class Result:
    """A whole run: what was asked for, where, and what was measured."""

    plan: Plan
    machine: Machine
    version: str
    targets: Sequence[Target]
    measured: Sequence[Measured]
    verdicts: dict[str, Verdict]
    is_interrupted: bool = False


def heading(result: Result) -> str:
    """What was measured, and on which machine."""
    models = ", ".join(dict.fromkeys(target.model for target in result.targets))
    abouts = ", ".join(dict.fromkeys(target.about for target in result.targets if target.about))
    with_about = f"{models} ({abouts})" if abouts else models
    return f"{with_about}: {described(result.plan)}\n{result.machine}"


def series(result: Result) -> list[Series]:
    """What a plot shows: the levels of each target that have answers."""
    found = []
    for name in dict.fromkeys(measured.target for measured in result.measured):
        points = [
            Point(measured.level.strength, figures.ttft_p50_s, figures.ttft_p99_s)
            for measured in result.measured
            if measured.target == name
            and (figures := measured.figures).ttft_p50_s is not None
            and figures.ttft_p99_s is not None
        ]
        found.append(Series(name, tuple(sorted(points, key=lambda point: point.x))))
    return found


class Table:
    """Lines for the levels, each as soon as it is over: hence widths that are known before."""

    def __init__(self, plan: Plan, names: Sequence[str]) -> None:
        self._has_long = plan.scenario == "long-prompt"
        head = ["SERVER", "RATE" if plan.has_rates else "USERS", "DONE", "ERRORS"]
        head += ["TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "GAP max"]
        head += ["LONG TTFT"] * self._has_long
        head += ["OUT tok/s", "PROMPT tok/s", "CACHED", "KV"]
        self._widths = [max(map(len, (head[0], *names))), *(max(len(one), 5) for one in head[1:])]
        self.head = _line(head, self._widths)

    def row(self, measured: Measured) -> str:
        """The line of a level, with a star when it is not finished."""
        return _line(_row(measured, has_long=self._has_long), self._widths)


def notes(result: Result) -> str:
    """What stands below the table, beginning with an empty line: ratios, why requests failed."""
    text = _ratios(result.measured)
    if not all(measured.is_whole for measured in result.measured):
        text += "\n* not finished\n"
    failures = [
        f"{measured.target}, {measured.level}: {n} failed: {reason}\n"
        for measured in result.measured
        for reason, n in Counter(measured.reasons).most_common()
    ]
    return text + ("\n" + "".join(failures) if failures else "")


def _row(measured: Measured, *, has_long: bool) -> list[str]:
    found = measured.figures
    row = [measured.target, f"{measured.level}{'' if measured.is_whole else '*'}"]
    row += [str(found.n_done), str(found.n_errors)]
    row += map(
        duration,
        (
            found.ttft_p50_s,
            found.ttft_p99_s,
            found.tpot_p50_s,
            found.tpot_p99_s,
            found.gap_max_s,
        ),
    )
    if has_long:
        row.append(duration(measured.long.ttft_s if isinstance(measured.long, Answer) else None))
    row += [f"{found.output_rate:.1f}", f"{found.prompt_rate:.0f}"]
    row.append(f"{found.n_cached / found.n_prompt:.0%}" if found.n_prompt else _NONE)
    row.append(f"{measured.kv.share:.0%}" if measured.kv and measured.kv.n_cells else _NONE)
    return row


def duration(seconds: float | None) -> str:
    """`4.2 ms`, `123 ms`, `1.23 s`, `12.3 s`."""
    if seconds is None:
        return _NONE
    if seconds < 0.9995:
        ms = seconds * 1000
        return f"{ms:.1f} ms" if ms < 9.95 else f"{ms:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"


def _ratios(measured: Sequence[Measured]) -> str:
    """Each further target divided by the first one, level by level."""
    first = measured[0].target if measured else ""
    whole = [one for one in measured if one.is_whole]
    base = {one.level: one.figures for one in whole if one.target == first}
    rows = [
        [one.target, str(one.level), *_shares(one.figures, base[one.level])]
        for one in whole
        if one.target != first and one.level in base
    ]
    if not rows:
        return ""
    head = [f"RATIO TO {first}", "LEVEL", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99"]
    return "\n" + _aligned([[*head, "GAP max", "OUT tok/s"], *rows])


def _shares(ours: Figures, base: Figures) -> list[str]:
    pairs = (
        (ours.ttft_p50_s, base.ttft_p50_s),
        (ours.ttft_p99_s, base.ttft_p99_s),
        (ours.tpot_p50_s, base.tpot_p50_s),
        (ours.tpot_p99_s, base.tpot_p99_s),
        (ours.gap_max_s, base.gap_max_s),
        (ours.output_rate, base.output_rate),
    )
    return [f"{a / b:.2f}" if a is not None and b else _NONE for a, b in pairs]


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join(_line(row, widths) + "\n" for row in rows)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    """Columns two spaces apart, the first to the left and numbers to the right."""
    return f"{row[0]:<{widths[0]}}  " + "  ".join(map(str.rjust, row[1:], widths[1:]))


def as_json(result: Result) -> bytes:
    """Everything, down to the time of each piece; times of a level count from its first request."""
    plan = msgspec.to_builtins(result.plan)
    document = {
        "localrun": result.version,
        "machine": result.machine,
        "plan": plan,
        "targets": [
            {
                "name": target.name,
                "about": target.about,
                "model": target.model,
                "path": target.endpoint.path,
                "window": target.window or None,
            }
            for target in result.targets
        ],
        "levels": [_level(measured) for measured in result.measured],
        "verdicts": result.verdicts,
        "is_interrupted": result.is_interrupted,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def _level(measured: Measured) -> dict[str, Any]:
    everything = [*measured.outcomes, *([measured.long] if measured.long else [])]
    start = min((outcome.began for outcome in everything), default=0.0)
    return {
        "target": measured.target,
        "n_users": measured.level.n_users or None,
        "rate": measured.level.rate or None,
        "is_whole": measured.is_whole,
        "figures": measured.figures,
        "kv": measured.kv,
        "long": measured.long and _request(measured.long, start),
        "requests": [_request(outcome, start) for outcome in measured.outcomes],
    }


def _request(outcome: Outcome, start: float) -> dict[str, Any]:
    def since(moment: float) -> float:
        return round(moment - start, 6)

    times = {"began_s": since(outcome.began), "ended_s": since(outcome.ended)}
    if not isinstance(outcome, Answer):
        return times | {"error": outcome.reason}
    return times | {
        "n_prompt": outcome.n_prompt,
        "n_tokens": outcome.n_tokens,
        "n_cached": outcome.n_cached,
        "times_s": [since(moment) for moment in outcome.times],
    }
