"""What a runner counts, and how Prometheus wants to read it. Pure.

One table for both sides: the runner counts under these names, the daemon adds `localrun_`, the
model and the words. Source of the format: Prometheus' text exposition format 0.0.4; names and
histograms follow vLLM's where they mean the same.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from localrun.spec import Histogram, Resident, RunnerStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Seconds from one cache hit to a long prompt on a busy CPU, about a factor of two apart.
_TIMES_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One row: `buckets` are upper bounds and make a histogram."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    buckets: tuple[float, ...] = ()


METRICS: dict[str, Metric] = {
    row.name: row
    for row in (
        Metric("waiting", "gauge", "sequences without a slot"),
        Metric("running", "gauge", "sequences with a slot"),
        Metric("preempted", "gauge", "sequences that gave up their cells and will resume"),
        Metric("paused", "gauge", "sequences whose readers are too far behind"),
        Metric("kv_cells", "gauge", "cells of the KV cache"),
        Metric("kv_cells_used", "gauge", "cells that hold a token, shared ones once"),
        Metric("kv_cells_retained", "gauge", "cells kept only for requests with the same prefix"),
        Metric("kv_cells_free", "gauge", "cells without a token"),
        Metric("kv_cells_used_max", "gauge", "most cells ever used at once"),
        Metric("host_tier_bytes", "gauge", "bytes of KV that wait in RAM outside the pool"),
        Metric("threads", "gauge", "compute threads, fewer while others use the CPUs"),
        Metric("steps_total", "counter", "scheduling decisions with at least one forward"),
        Metric("step_host_seconds_total", "counter", "time of steps outside of forwards"),
        Metric("prompt_tokens_total", "counter", "tokens of admitted prompts"),
        Metric("prefix_hit_tokens_total", "counter", "prompt tokens that were in the KV cache"),
        Metric("prefill_tokens_total", "counter", "rows evaluated to fill the KV cache"),
        Metric("decode_tokens_total", "counter", "rows evaluated to get the next token"),
        Metric("recomputed_tokens_total", "counter", "rows evaluated again after a preemption"),
        Metric("preemptions_swap_total", "counter", "preemptions that kept the KV in RAM"),
        Metric("preemptions_recompute_total", "counter", "preemptions that dropped the KV"),
        Metric("window_shifts_total", "counter", "windows whose middle was dropped"),
        Metric("pauses_total", "counter", "times that a reader was too far behind"),
        Metric("donors_dropped_total", "counter", "retained sequences dropped for their cells"),
        Metric("context_rebuilds_total", "counter", "contexts built anew around the weights"),
        Metric("forward_errors_total", "counter", "forwards that did not return 0"),
        Metric("ledger_drift_total", "counter", "steps in which ledger and KV cache disagreed"),
        Metric("requests_finished_total", "counter", "sequences that ended with an answer"),
        Metric("requests_cancelled_total", "counter", "sequences whose reader had left"),
        Metric("requests_failed_total", "counter", "sequences that ended with an error"),
        Metric("embed_texts_total", "counter", "texts whose vector was made"),
        Metric("embed_tokens_total", "counter", "rows evaluated for vectors"),
        Metric("embed_seconds", "histogram", "time of a forward for vectors", _TIMES_S),
        Metric("prefill_seconds", "histogram", "time of a forward with prompt rows", _TIMES_S),
        Metric("decode_seconds", "histogram", "time of a forward with decodes only", _TIMES_S),
        Metric("queue_seconds", "histogram", "from arrival in the engine to a slot", _TIMES_S),
        Metric("ttft_seconds", "histogram", "from arrival in the engine to a token", _TIMES_S),
        Metric("tpot_seconds", "histogram", "mean time per token after the first", _TIMES_S),
        Metric("itl_seconds", "histogram", "time between two tokens of a sequence", _TIMES_S),
    )
}


# What the daemon itself knows; it counts nothing beside its runners.
_LOADED = Metric("loaded_models", "gauge", "models in memory")
_QUEUED = Metric("queued", "gauge", "requests without a slot: in the line for a load, or waiting")


def exposition(residents: Iterable[Resident]) -> str:
    """The text that Prometheus scrapes, for every model in memory.

    A label may appear once only: of two models with one name, an older version and a newer one,
    the later in `residents` counts. A runner that has not said anything yet has counted nothing.
    """
    by_model = {resident.model: resident for resident in residents}
    ready = {
        _label(model): one.stats or RunnerStats()
        for model, one in by_model.items()
        if one.state != "loading"
    }
    lines = [*_head(_LOADED), f"localrun_{_LOADED.name} {len(ready)}", *_head(_QUEUED)]
    lines += (
        f"localrun_{_QUEUED.name}{{{_label(model)}}} {one.n_queued}"
        for model, one in by_model.items()
    )
    for metric in METRICS.values():
        lines += _head(metric)
        for label, stats in ready.items():
            lines += _samples(metric, label, stats)
    return "\n".join(lines) + "\n"


def _head(metric: Metric) -> tuple[str, str]:
    name = f"localrun_{metric.name}"
    return f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}"


def _samples(metric: Metric, label: str, stats: RunnerStats) -> Iterable[str]:
    name = f"localrun_{metric.name}"
    if metric.kind == "histogram":
        return _histogram(name, label, metric, stats.histograms.get(metric.name))
    return (f"{name}{{{label}}} {stats.values.get(metric.name, 0):.15g}",)


def _histogram(name: str, label: str, metric: Metric, seen: Histogram | None) -> Iterable[str]:
    counts = seen.counts if seen else (0,) * (len(metric.buckets) + 1)
    total = 0
    for bound, count in zip((*map(str, metric.buckets), "+Inf"), counts, strict=True):
        total += count
        yield f'{name}_bucket{{{label},le="{bound}"}} {total}'
    yield f"{name}_sum{{{label}}} {seen.sum if seen else 0:.15g}"
    yield f"{name}_count{{{label}}} {total}"


def _label(model: str) -> str:
    text = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'model="{text}"'
