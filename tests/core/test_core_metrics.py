"""The text for Prometheus, read back by the rules of its format."""

import math
import re

from localrun.metrics import METRICS, exposition
from localrun.spec import Histogram, Resident, RunnerStats

_HELP = re.compile(r"# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) (.+)")
_TYPE = re.compile(r"# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge|histogram)")
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')

Labels = tuple[tuple[str, str], ...]
Samples = dict[tuple[str, Labels], float]


def parse(text: str) -> tuple[dict[str, str], Samples]:
    """(family → type, (name, labels) → value); fails for whatever the format does not allow."""
    assert text.endswith("\n")
    types: dict[str, str] = {}
    samples: Samples = {}
    family = helped = ""
    for line in text.splitlines():
        if found := _HELP.fullmatch(line):
            helped = found[1]
        elif found := _TYPE.fullmatch(line):
            family = found[1]
            assert family == helped, "HELP stands before TYPE"
            assert family not in types, "all lines of a family stand together"
            types[family] = found[2]
        else:
            found = _SAMPLE.fullmatch(line)
            assert found, line
            suffix = r"(_bucket|_sum|_count)" if types[family] == "histogram" else ""
            assert re.fullmatch(family + suffix, found[1]), line
            labels = found[2] or ""
            assert _LABEL.sub("", labels) == "", line
            key = (found[1], tuple(_LABEL.findall(labels)))
            assert key not in samples, "a label set appears once"
            samples[key] = float(found[3])
    return types, samples


def of(model: str, *more: tuple[str, str]) -> Labels:
    return (("model", model), *more)


def test_every_metric_has_a_family_even_without_a_model() -> None:
    types, samples = parse(exposition(()))
    assert types.keys() >= {f"localrun_{name}" for name in METRICS}
    assert samples == {("localrun_loaded_models", ()): 0}


def test_counters_end_in_total_and_buckets_grow() -> None:
    for metric in METRICS.values():
        assert metric.name.endswith("_total") is (metric.kind == "counter"), metric.name
        assert bool(metric.buckets) is (metric.kind == "histogram"), metric.name
        assert list(metric.buckets) == sorted(set(metric.buckets)), metric.name


def test_a_model_has_every_metric_and_what_it_has_not_counted_is_0() -> None:
    stats = RunnerStats({"steps_total": 12_345_678_901, "step_host_seconds_total": 0.125})
    types, samples = parse(exposition([Resident("k", "m:1", "ready", math.inf, stats=stats)]))
    assert samples["localrun_steps_total", of("m:1")] == 12_345_678_901
    assert samples["localrun_step_host_seconds_total", of("m:1")] == 0.125
    assert samples["localrun_kv_cells", of("m:1")] == 0
    assert samples["localrun_loaded_models", ()] == 1
    seen = {name for name, _ in samples}
    for family, kind in types.items():
        assert (f"{family}_count" if kind == "histogram" else family) in seen


def test_buckets_are_cumulative_and_the_last_one_is_the_count() -> None:
    buckets = METRICS["ttft_seconds"].buckets
    counts = tuple(range(1, len(buckets) + 2))
    stats = RunnerStats({}, {"ttft_seconds": Histogram(counts, 42.5)})
    text = exposition([Resident("k", "m", "ready", math.inf, stats=stats)])
    _, samples = parse(text)
    bounds = [*map(str, buckets), "+Inf"]
    values = [samples["localrun_ttft_seconds_bucket", of("m", ("le", le))] for le in bounds]
    assert values == [sum(counts[: n + 1]) for n in range(len(counts))]
    assert values[-1] == samples["localrun_ttft_seconds_count", of("m")] == sum(counts)
    assert samples["localrun_ttft_seconds_sum", of("m")] == 42.5
    assert samples["localrun_itl_seconds_bucket", of("m", ("le", "+Inf"))] == 0


def test_several_models_stand_under_one_head_and_names_are_escaped() -> None:
    odd = 'a"b\\c\nd'
    residents = [
        Resident("1", "one", "ready", math.inf, n_queued=2),
        Resident("2", odd, "stopping", math.inf),
        Resident("3", "three", "loading", math.inf, n_queued=5),
        Resident("4", "one", "ready", math.inf, n_queued=1),
    ]
    _, samples = parse(exposition(residents))
    assert samples["localrun_queued", of("one")] == 1
    assert samples["localrun_queued", of("three")] == 5
    assert samples["localrun_running", of('a\\"b\\\\c\\nd')] == 0
    assert ("localrun_running", of("three")) not in samples
    assert samples["localrun_loaded_models", ()] == 2
