"""Objectives for the figures of a level, and the search for the most users within them. No I/O."""

from collections.abc import Mapping
from dataclasses import dataclass

from cli.bench.figures import Figures
from localrun.units import FOREVER, parse_duration_s

# name → field of `Figures`, in seconds
KEYS = {
    "ttft_p50": "ttft_p50_s",
    "ttft_p99": "ttft_p99_s",
    "tpot_p50": "tpot_p50_s",
    "tpot_p99": "tpot_p99_s",
    "gap_max": "gap_max_s",
}


@dataclass(frozen=True, slots=True)
class Slo:
    """Upper limits in seconds by the names in `KEYS`; `text` is how they were written."""

    limits_s: Mapping[str, float]
    text: str

    def broken(self, figures: Figures) -> list[str]:
        """The limits that `figures` exceed; an error breaks every objective."""
        found = ["errors"] if figures.n_errors or not figures.n_done else []
        for key, limit_s in self.limits_s.items():
            value_s: float | None = getattr(figures, KEYS[key])
            if value_s is not None and value_s > limit_s:
                found.append(key)
        return found

    def __str__(self) -> str:
        return self.text


def parse_slo(text: str) -> Slo:
    """`ttft_p99=2s,tpot_p99=50ms`. Raises ValueError, which names the part that is wrong."""
    limits_s: dict[str, float] = {}
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        key, separator, value = (word.strip() for word in part.partition("="))
        if not separator:
            raise ValueError(f"`{part}` is not of the form name=duration, such as ttft_p99=2s")
        if key not in KEYS:
            raise ValueError(f"`{key}` in `{part}` is none of {', '.join(KEYS)}")
        if key in limits_s:
            raise ValueError(f"`{key}` is there twice")
        if value.replace(".", "", 1).isdigit():
            raise ValueError(f"`{part}` has no unit; write {key}={value}ms or {key}={value}s")
        try:
            limit_s = parse_duration_s(value)
        except ValueError as error:
            raise ValueError(f"`{part}`: {error}") from None
        if limit_s <= 0 or limit_s == FOREVER:
            raise ValueError(f"`{part}` has to be above zero")
        limits_s[key] = limit_s
    return Slo(limits_s, ", ".join(f"{part.replace('=', ' ≤ ')}" for part in parts))


@dataclass(frozen=True, slots=True)
class Verdict:
    """`n_users` met the objectives and one more did not, or `is_at_least`: no more were tried."""

    n_users: int
    is_at_least: bool = False


def next_level(met: Mapping[int, bool], most: int) -> int | Verdict:
    """How many users to try next, or the verdict, from what is known: users → objectives met.

    Doubles from 1 until the objectives are broken or `most` is reached, then bisects between the
    highest good number and the lowest bad one above it.
    """
    bad = min((n for n, is_met in met.items() if not is_met), default=None)
    good = max((n for n, is_met in met.items() if is_met and (bad is None or n < bad)), default=0)
    if bad is None:
        return Verdict(good, is_at_least=True) if good >= most else min(max(1, good * 2), most)
    if bad - good > 1:
        return (good + bad) // 2
    return Verdict(good)


def sentence(verdict: Verdict, who: str, model: str, slo: Slo) -> str:
    """What the search has found: how many users of `model` `who`, a machine or server, carries."""
    n = verdict.n_users
    if n == 0:
        return f"{who} carries fewer than 1 user of {model} within {slo}"
    count = f"{'at least ' if verdict.is_at_least else ''}{n} user{'s' * (n != 1)}"
    tail = " (--max-concurrency was reached)" if verdict.is_at_least else ""
    return f"{who} carries {count} of {model} within {slo}{tail}"
