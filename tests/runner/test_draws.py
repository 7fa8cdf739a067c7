"""A chain that is shown an array of ours draws what llama.cpp draws with it."""

from pathlib import Path
from typing import Any

import pytest

from localrun.core import SamplingParams
from localrun.runner.engine.layout import Shape
from localrun.runner.ggml.binding import lib
from localrun.runner.ggml.sampler import LlamaSampler
from localrun.runner.llama import LlamaModel
from localrun.spec import LoadSpec

PROMPT = "Once upon a time there was"


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> LlamaModel:
    spec = LoadSpec(str(smollm2_path), "digest", n_ctx=256, n_parallel=2, n_threads=2)
    model = LlamaModel(spec, lambda _fraction: None)
    model.open(Shape("unified", 256, 2, 2, 256, None))
    tokens = model.vocab.tokenize(PROMPT)
    n = len(tokens)
    # Two output rows: an inner one and the last.
    outputs = [at in (2, n - 1) for at in range(n)]
    assert model.forward(tokens, list(range(n)), [0] * n, outputs) == 0
    return model


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"top_k": 0, "top_p": 1.0},
        {"top_k": 0, "min_p": 0.01, "temperature": 2.0},
        {"typical_p": 0.99},
        {"repeat_penalty": 1.3, "presence_penalty": 1.0},
        {"temperature": 0.0, "frequency_penalty": 3.0},
        {"logit_bias": {260: 2.0, 28: -100.0}},
    ],
)
def test_the_same_seed_draws_the_same_tokens(
    model: LlamaModel, params: dict[str, Any], row: int
) -> None:
    ours, theirs = (model.sampler(SamplingParams(seed=3, **params), []) for _ in range(2))
    assert isinstance(ours, LlamaSampler)
    assert isinstance(theirs, LlamaSampler)
    drawn = [ours.sample(row) for _ in range(30)]
    assert drawn == [
        lib.llama_sampler_sample(theirs._chain, model._ctx, row - 2) for _ in range(30)
    ]
    assert len(set(drawn)) > 1


@pytest.mark.parametrize("seed", [0, 2**32 - 1, 2**32, 2**63 - 1])
def test_every_seed_repeats_its_draws(model: LlamaModel, seed: int) -> None:
    runs = []
    for _ in range(2):
        sampler = model.sampler(SamplingParams(seed=seed, temperature=2.0), [])
        runs.append([sampler.sample(0) for _ in range(30)])
    assert runs[0] == runs[1]
