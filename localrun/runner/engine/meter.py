"""What the engine counts, in the terms of `localrun.metrics`."""

from bisect import bisect_left

from localrun.metrics import METRICS
from localrun.spec import Histogram, RunnerStats


class Meter:
    """Counters and histograms since the load. Engine thread only."""

    def __init__(self) -> None:
        self.counts: dict[str, float] = {
            name: 0 for name, metric in METRICS.items() if metric.kind == "counter"
        }
        self._buckets = {name: m.buckets for name, m in METRICS.items() if m.kind == "histogram"}
        self._seen = {name: [0] * (len(b) + 1) for name, b in self._buckets.items()}
        self._sums = dict.fromkeys(self._buckets, 0.0)

    def count(self, name: str, n: float = 1) -> None:
        """Adds to a counter."""
        self.counts[name] += n

    def observe(self, name: str, value: float) -> None:
        """Adds one observation to a histogram."""
        self._seen[name][bisect_left(self._buckets[name], value)] += 1
        self._sums[name] += value

    def stats(self, gauges: dict[str, float], cpu: int | None = None) -> RunnerStats:
        """A copy of everything, with `gauges` and `cpu` as they are now."""
        return RunnerStats(
            {**self.counts, **gauges},
            {name: Histogram(tuple(n), self._sums[name]) for name, n in self._seen.items()},
            cpu,
        )
