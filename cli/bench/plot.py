"""Time to first token against load, as an SVG file that needs nothing else. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

# Told apart by people with any colour vision (Okabe and Ito).
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_WIDTH, _HEIGHT = 720, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 20, 50, 60
# An axis that spans more than this factor is logarithmic.
_LOG_FROM = 8.0
_N_TICKS = 6


@dataclass(frozen=True, slots=True)
class Point:
    """`x` users or arrivals a second; times in seconds."""

    x: float
    p50_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class Series:
    """One target's points, in the order of `x`."""

    name: str
    points: tuple[Point, ...]


class Axis:
    """Values ↔ places between `start` and `end` pixels."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        """`values` that are to be seen; zero and negative ones make the axis linear."""
        low, high = min(values, default=0.0), max(values, default=1.0)
        self.is_log = low > 0 and high / low > _LOG_FROM
        if not self.is_log:
            low, high = min(0.0, low), high if high > 0 else 1.0
        self._low, self._high = low, high
        self._start, self._end = start, end

    def place(self, value: float) -> float:
        """Pixels of `value`."""
        low, high = self._low, self._high
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self._start + (value - low) / (high - low) * (self._end - self._start)

    def ticks(self) -> list[float]:
        """Round values on the axis: steps of 1, 2, 5, or doublings, or powers of ten."""
        if not self.is_log:
            step = _round_step((self._high - self._low) / _N_TICKS)
            first = math.ceil(self._low / step)
            return [n * step for n in range(first, math.floor(self._high / step + 1e-9) + 1)]
        base = 2.0 if self._high / self._low <= 300 else 10.0
        first = math.ceil(math.log(self._low, base) - 1e-9)
        last = math.floor(math.log(self._high, base) + 1e-9)
        return [base**power for power in range(first, last + 1)]


def _round_step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * 0.999)


def svg(series: Sequence[Series], *, title: str, x_label: str) -> str:
    """The plot: p99 as a line, p50 dashed, one colour for each of `series`."""
    points = [point for one in series for point in one.points]
    x = Axis([point.x for point in points], _LEFT, _WIDTH - _RIGHT)
    times_s = [value for point in points for value in (point.p50_s, point.p99_s)]
    y = Axis(times_s, _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_LEFT, 20, title, "start", 'font-size="14"'),
        *_grid(x, y),
        _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 12, _scaled(x_label, x), "middle"),
        f'<g transform="translate(16 {(_TOP + _HEIGHT - _BOTTOM) / 2:.0f}) rotate(-90)">',
        _text(0, 0, _scaled("time to first token", y), "middle"),
        "</g>",
    ]
    for number, one in enumerate(series):
        parts += _lines(one, x, y, _COLOURS[number % len(_COLOURS)])
        parts += _legend(one.name, number, _COLOURS[number % len(_COLOURS)])
    if not points:
        parts.append(_text(_WIDTH / 2, _HEIGHT / 2, "nothing was measured", "middle"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _scaled(label: str, axis: Axis) -> str:
    return f"{label} (logarithmic)" if axis.is_log else label


def _grid(x: Axis, y: Axis) -> list[str]:
    left, right, top, bottom = _LEFT, _WIDTH - _RIGHT, _TOP, _HEIGHT - _BOTTOM
    parts = []
    for tick in x.ticks():
        place = x.place(tick)
        parts.append(_line(place, top, place, bottom, "#ddd"))
        parts.append(_text(place, bottom + 18, f"{tick:g}", "middle"))
    for tick in y.ticks():
        place = y.place(tick)
        parts.append(_line(left, place, right, place, "#ddd"))
        parts.append(_text(left - 8, place + 4, _seconds(tick), "end"))
    parts.append(_line(left, bottom, right, bottom, "black"))
    parts.append(_line(left, top, left, bottom, "black"))
    return parts


def _seconds(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:.3g} s" if value >= 1 else f"{value * 1000:.3g} ms"


def _lines(series: Series, x: Axis, y: Axis, colour: str) -> list[str]:
    parts = []
    for is_p99 in (True, False):
        places = [
            (x.place(point.x), y.place(point.p99_s if is_p99 else point.p50_s))
            for point in series.points
        ]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
        dash = "" if is_p99 else ' stroke-dasharray="6 4"'
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
        )
        parts += [
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>' for px, py in places
        ]
    return parts


def _legend(name: str, number: int, colour: str) -> list[str]:
    parts = []
    for column, label in enumerate(("p99", "p50")):
        left, place = _LEFT + 12 + 50 * column, _TOP + 12 + 18 * number
        dash = ' stroke-dasharray="6 4"' if column else ""
        parts.append(_line(left, place, left + 20, place, colour, f' stroke-width="2"{dash}'))
        parts.append(_text(left + 23, place + 4, label, "start"))
    parts.append(_text(_LEFT + 118, _TOP + 16 + 18 * number, name, "start"))
    return parts


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{more}/>'
    )


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    attributes = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}'.rstrip()
    return f"<text {attributes}>{escape(text)}</text>"
