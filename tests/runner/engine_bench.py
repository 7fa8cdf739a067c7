"""An engine on a scripted model, and the specs that tests may ask for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localrun.core import SamplingParams
from localrun.runner.engine.engine import Engine
from localrun.runner.engine.sequence import Sequence
from localrun.runner.engine.traffic import StepOutput
from localrun.runner.fake import FakeModel
from localrun.spec import LoadSpec


class Bench:
    """An engine on a scripted model, stepped by hand."""

    def __init__(self, path: Path, n_parallel: int, n_ctx: int, **spec: Any) -> None:
        self.spec = LoadSpec(
            str(path), "digest", n_ctx=n_ctx, n_parallel=n_parallel, n_threads=8, **spec
        )
        self.model = FakeModel(self.spec, lambda _fraction: None)
        self.outputs: list[StepOutput] = []
        self.engine = Engine(self.model, self.spec, self.outputs.append)
        self.n_ctx = n_ctx
        self.n_running_max = 0
        self.texts: dict[int, bytes] = {}

    def submit(self, number: int, text: str, **params: Any) -> Sequence:
        n_ctx = params.pop("n_ctx", self.n_ctx)
        scope = params.pop("scope", "")
        tokens = self.model.vocab.tokenize(text)
        sampling = SamplingParams(temperature=0, **params)
        sequence = Sequence(number, tokens, sampling, n_ctx, scope=scope)
        self.engine.inbox.put(sequence)
        return sequence

    def step(self) -> StepOutput | None:
        """All that a step told, as one; None when it could do nothing."""
        self.outputs.clear()
        has_done = self.engine.step()
        self.n_running_max = max(self.n_running_max, len(self.engine.running))
        for out in (out for output in self.outputs for out in output.tokens):
            piece = b"" if out.token is None else self.model.vocab.token_bytes(out.token)
            self.texts[out.sequence.id] = self.texts.get(out.sequence.id, b"") + piece
        assert has_done or not self.outputs
        return self._told() if has_done else None

    def _told(self) -> StepOutput:
        told = StepOutput((), (), (), len(self.engine.running))
        for output in self.outputs:
            told = StepOutput(
                told.admitted + output.admitted,
                told.tokens + output.tokens,
                told.failed + output.failed,
                output.n_running,
                output.stats or told.stats,
                output.info or told.info,
                output.verdict or told.verdict,
                told.vectors + output.vectors,
            )
        return told

    def finish(self) -> dict[int, bytes]:
        """Steps until nothing happens; the text of every sequence so far by id."""
        while output := self.step():
            assert not output.failed
        return self.texts

    def count(self, name: str) -> float:
        return self.engine.stats().values[name]


MakeBench = Callable[..., Bench]
SPEC = {"kv_layout", "kv_pool", "host_tier_bytes", "admission", "tpot_target_ms"}


BOTH = pytest.mark.parametrize("kv_layout", ["unified", "split"])
