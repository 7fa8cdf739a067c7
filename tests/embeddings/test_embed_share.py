"""Vectors beside answers of the same model: the engine's time is shared."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from localrun.core import SamplingParams
from localrun.runner.engine.embedder import EmbedJob
from localrun.runner.engine.engine import Engine
from localrun.runner.engine.sequence import Sequence
from localrun.runner.fake import FakeModel
from localrun.spec import LoadSpec

# What a forward takes on the clock of these tests.
_TEXT_MS, _VECTORS_MS = 10, 50


def test_vectors_leave_half_of_the_time_to_answers(fake_model: Callable[..., Path]) -> None:
    spec = LoadSpec(
        str(fake_model(n_ctx_train=4096, pieces=["x"], endless=True)),
        "digest",
        n_ctx=4096,
        n_parallel=1,
        n_threads=1,
    )
    model = FakeModel(spec, lambda _fraction: None)
    now_ms = 0
    spent: list[int] = []

    def timed(forward: Callable[..., int], cost_ms: int) -> Callable[..., int]:
        def run(*rows: Any) -> int:
            nonlocal now_ms
            now_ms += cost_ms
            spent.append(cost_ms)
            return forward(*rows)

        return run

    context = model.embeddings(spec.n_ctx)
    context.forward = timed(context.forward, _VECTORS_MS)  # type: ignore[method-assign]
    model.forward = timed(model.forward, _TEXT_MS)  # type: ignore[method-assign]
    engine = Engine(model, spec, lambda _output: None, clock_ns=lambda: now_ms * 1_000_000)
    engine.inbox.put(Sequence(1, [1], SamplingParams(temperature=0, num_predict=100), spec.n_ctx))
    engine.inbox.put(EmbedJob(2, [[5] * 500 for _ in range(20)], list(range(20)), spec.n_ctx))
    while engine.step() and engine.running:
        pass
    n_text, n_vectors = spent.count(_TEXT_MS), spent.count(_VECTORS_MS)
    assert n_text == 100
    assert abs(n_vectors * _VECTORS_MS - n_text * _TEXT_MS) <= 2 * _VECTORS_MS
    # Alone they have all of it.
    spent.clear()
    while not engine.is_idle:
        engine.step()
    assert set(spent) == {_VECTORS_MS}
