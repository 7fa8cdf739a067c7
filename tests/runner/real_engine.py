"""An engine on a real model, and what tests ask of both."""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localrun.core import SamplingParams
from localrun.runner.engine.engine import Engine
from localrun.runner.engine.layout import Shape
from localrun.runner.engine.sequence import Sequence
from localrun.runner.engine.traffic import StepOutput
from localrun.runner.llama import LlamaModel
from localrun.spec import LoadSpec

N_CTX = 256

# Two logits that are closer than this may change places with the shape of a batch.
NEAR_TIE = 0.5

BOTH = pytest.mark.parametrize("kv_layout", ["unified", "split"])


def spec_of(path: Path, **fields: Any) -> LoadSpec:
    fields = {"n_ctx": N_CTX, "n_parallel": 4, "n_threads": 2, **fields}
    return LoadSpec(str(path), "digest", **fields)


def load(path: Path, **fields: Any) -> LlamaModel:
    return LlamaModel(spec_of(path, **fields), lambda _fraction: None)


class Bench:
    """An engine on a real model, stepped by hand; what it says is kept as tokens."""

    def __init__(self, model: LlamaModel, **fields: Any) -> None:
        # The weights are loaded once for all specs; llama.cpp's log has one receiver, too.
        model._spec = spec = spec_of(Path(model._spec.weights_path), **fields)
        self.model = model
        model.host_tier_bytes = 1 << 30 if spec.host_tier_bytes is None else spec.host_tier_bytes
        self.outputs: list[StepOutput] = []
        self.n_ctx = spec.n_ctx
        self.engine = Engine(model, spec, self.outputs.append)
        self.sequences: list[Sequence] = []
        self.failed: dict[int, Exception] = {}

    def submit(self, tokens: list[int], **params: Any) -> Sequence:
        params = {"temperature": 0, **params}
        number = len(self.sequences)
        sequence = Sequence(number, list(tokens), SamplingParams(**params), self.n_ctx)
        self.sequences.append(sequence)
        self.engine.inbox.put(sequence)
        return sequence

    def step(self) -> None:
        self.outputs.clear()
        self.engine.step()
        self.failed |= {s.id: error for output in self.outputs for s, error in output.failed}

    def finish(self) -> list[list[int]]:
        """Steps until nobody is left; the completion of every sequence so far."""
        self.step()
        while not self.engine.is_idle:
            self.step()
        return [s.tokens[s.n_prompt :] for s in self.sequences]

    def count(self, name: str) -> float:
        return self.engine.stats().values[name]


def generate(model: LlamaModel, prompts: list[str], **params: Any) -> list[str]:
    """The texts of prompts that run together."""
    bench = Bench(model)
    for prompt in prompts:
        bench.submit(model.vocab.tokenize(prompt), **params)
    completions = bench.finish()
    assert not bench.failed
    return [text_of(model, tokens) for tokens in completions]


def text_of(model: LlamaModel, tokens: Iterable[int]) -> str:
    return b"".join(model.vocab.token_bytes(token) for token in tokens).decode("utf-8", "replace")


def open_pool(model: LlamaModel, n_cells: int, n_ids: int = 4, n_ctx: int = N_CTX) -> None:
    model.open(Shape("unified", n_ctx, n_ids, n_ids, n_cells, None))


def prefill(model: LlamaModel, kv_id: int, tokens: Seq[int], start: int = 0) -> int:
    """Evaluates `tokens` behind the `start` that the sequence has; logits of the last one."""
    n = len(tokens)
    positions = range(start, start + n)
    return model.forward(tokens, positions, [kv_id] * n, [False] * (n - 1) + [True])


def greedy(model: LlamaModel, kv_id: int, n: int) -> list[int]:
    """The next `n` tokens of a sequence whose logits are there."""
    said = [model.greedy()[0]]
    while len(said) < n:
        assert prefill(model, kv_id, said[-1:], model.n_positions(kv_id)) == 0
        said.append(model.greedy()[0])
    return said


def logits_gap(model: LlamaModel, tokens: list[int]) -> float:
    """How far the likeliest next token is ahead of the second, computed alone."""
    open_pool(model, 2048, n_ids=1, n_ctx=2048)
    for start in range(0, len(tokens), model.n_batch):
        assert prefill(model, 0, tokens[start : start + model.n_batch], start) == 0
    second, first = np.sort(model._logits()[0])[-2:]
    return float(first - second)


def assert_equal_to_near_ties(
    model: LlamaModel, prompts: list[list[int]], got: list[list[int]], want: list[list[int]]
) -> None:
    """Where two completions part, the two likeliest tokens were about equally likely."""
    for prompt, one, other in zip(prompts, got, want, strict=True):
        if one == other:
            continue
        n = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
        assert n is not None, "one of them ended early"
        assert logits_gap(model, prompt + one[:n]) < NEAR_TIE


REPETITIVE = "red green red green red green red green red"

PROMPTS = [
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "The first ten numbers are one, two, three, four, five,",
    "def fibonacci(n):\n",
]


def long_prompts(model: LlamaModel, n: int, n_tokens: int = 150) -> list[list[int]]:
    """Prompts that differ from their first token on."""
    words = "The river ran past the old mill, and the miller's daughter counted the boats. "
    return [
        model.vocab.tokenize(f"{number} {'is where it began. ' * number}{words * 20}")[:n_tokens]
        for number in range(1, n + 1)
    ]
