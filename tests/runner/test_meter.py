"""Counters and histograms, by the table that the daemon shows to Prometheus."""

import pytest

from localrun.metrics import METRICS
from localrun.runner.engine.meter import Meter

TTFT = METRICS["ttft_seconds"]


def test_everything_of_the_table_is_there_from_the_start() -> None:
    stats = Meter().stats(dict.fromkeys((n for n, m in METRICS.items() if m.kind == "gauge"), 0.0))
    assert set(stats.values) | set(stats.histograms) == set(METRICS)
    assert not any(stats.values.values())
    for name, histogram in stats.histograms.items():
        assert histogram.counts == (0,) * (len(METRICS[name].buckets) + 1)
        assert histogram.sum == 0


def test_counters_add_up_and_gauges_are_as_they_are_now() -> None:
    meter = Meter()
    meter.count("steps_total")
    meter.count("steps_total", 2)
    stats = meter.stats({"running": 3})
    assert (stats.values["steps_total"], stats.values["running"]) == (3, 3)


def test_an_unknown_name_is_a_bug() -> None:
    with pytest.raises(KeyError):
        Meter().count("stpes_total")


@pytest.mark.parametrize(
    ("value", "bucket"),
    [
        (0.0, 0),
        (TTFT.buckets[0], 0),  # an upper bound belongs to its bucket
        (TTFT.buckets[0] * 1.001, 1),
        (TTFT.buckets[-1], len(TTFT.buckets) - 1),
        (1e9, len(TTFT.buckets)),
    ],
)
def test_an_observation_falls_into_one_bucket(value: float, bucket: int) -> None:
    meter = Meter()
    meter.observe("ttft_seconds", value)
    histogram = meter.stats({}).histograms["ttft_seconds"]
    assert [n for n, count in enumerate(histogram.counts) if count] == [bucket]
    assert histogram.sum == value


def test_stats_are_a_copy() -> None:
    meter = Meter()
    before = meter.stats({})
    meter.count("steps_total")
    meter.observe("ttft_seconds", 1.0)
    assert before.values["steps_total"] == 0
    assert sum(before.histograms["ttft_seconds"].counts) == 0
