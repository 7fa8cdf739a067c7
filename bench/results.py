"""What one comparison has measured, and the figures drawn from it. No I/O."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.load import Figures


@dataclass(frozen=True, slots=True)
class Point:
    """One load: `n_streams` at once on servers with `n_slots`, `n_answers` of `n_tokens`."""

    n_slots: int
    n_streams: int
    n_tokens: int
    n_answers: int


@dataclass(frozen=True, slots=True)
class Bare:
    """One way to run the bare loop."""

    n_seq_max: int
    flash_attention: str


@dataclass(frozen=True, slots=True)
class Ratio:
    """`share` is the median over rounds of ours / theirs; `least` and `most` its spread."""

    what: str
    share: float
    least: float
    most: float
    goal: float

    @property
    def is_met(self) -> bool:
        """Whether the goal is reached."""
        return self.share >= self.goal


@dataclass(slots=True)
class Results:
    """Lists hold one entry a round, in the order of the rounds."""

    figures: dict[tuple[Point, str], list[Figures]] = field(
        default_factory=lambda: defaultdict(list)
    )
    bare: dict[Bare, list[float]] = field(default_factory=lambda: defaultdict(list))
    # Processor seconds per (point, server, role), summed over rounds: one round is too short.
    cpu_s: dict[tuple[Point, str, str], float] = field(default_factory=lambda: defaultdict(float))
    # Resident bytes per (slots, server, role).
    rss_bytes: dict[tuple[int, str, str], list[int]] = field(
        default_factory=lambda: defaultdict(list)
    )
    command_s: dict[str, list[float]] = field(default_factory=dict)
    builds: dict[str, str] = field(default_factory=dict)
    # Of every measurement: the share of the machine's CPU time that went to other processes.
    foreign_shares: list[float] = field(default_factory=list)

    def cpu_per_1000(self, point: Point, server: str, role: str) -> float:
        """Processor seconds of one process per 1,000 streamed tokens."""
        n_tokens = sum(figure.n_tokens for figure in self.figures[point, server])
        return 1000 * self.cpu_s[point, server, role] / n_tokens

    def ratios(self, points: Sequence[Point], peers: Sequence[str]) -> list[Ratio]:
        """Ours against the bare loop and against the better peer, with the goals."""
        found: list[Ratio] = []
        for point in points:
            ours = self.figures[point, "localrun"]
            name = _name(point)
            if point.n_streams == 1:
                rates = [figure.decode_rate for figure in ours]
                found += self._bare_ratios(name, rates, point.n_slots)
            if not peers:
                continue
            by_peer = {
                peer: [_rate(point, figure) for figure in self.figures[point, peer]]
                for peer in peers
            }
            best = max(by_peer, key=lambda peer: statistics.median(by_peer[peer]))
            goal = 0.97 if point.n_streams == 1 else 0.9
            rates = [_rate(point, figure) for figure in ours]
            found.append(_ratio(f"{name} / {best}, the better peer", rates, by_peer[best], goal))
        return found

    def _bare_ratios(self, name: str, rates: list[float], n_slots: int) -> list[Ratio]:
        same = {b: r for b, r in self.bare.items() if b.n_seq_max == n_slots}
        if not same:
            return []
        best = max(same, key=lambda bare: statistics.median(same[bare]))
        what = f"{name} / bare loop, flash attention {best.flash_attention}"
        return [_ratio(what, rates, same[best], 0.95)]


def _name(point: Point) -> str:
    if point.n_streams == 1:
        return f"1 stream ({point.n_slots} slots), decode"
    return f"{point.n_streams} streams, total"


def _rate(point: Point, figure: Figures) -> float:
    return figure.decode_rate if point.n_streams == 1 else figure.total_rate


def _ratio(what: str, ours: list[float], theirs: list[float], goal: float) -> Ratio:
    shares = [a / b for a, b in zip(ours, theirs, strict=True)]
    return Ratio(what, statistics.median(shares), min(shares), max(shares), goal)
