"""What tests of the runner share: real models, and engines on scripted ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_bench import SPEC, Bench, MakeBench
from real_engine import load, spec_of

from localrun.runner.llama import LlamaModel


@pytest.fixture(scope="module")
def weights(smollm2_path: Path) -> LlamaModel:
    """Loaded once for each file."""
    return load(smollm2_path)


@pytest.fixture
def model(weights: LlamaModel) -> LlamaModel:
    """The weights; every test makes the context that it needs around them."""
    weights._spec = spec_of(Path(weights._spec.weights_path))
    return weights


@pytest.fixture(scope="module")
def gemma(gemma3_path: Path) -> LlamaModel:
    """A model with a sliding window."""
    return load(gemma3_path)


@pytest.fixture
def make_bench(fake_model: Callable[..., Path]) -> MakeBench:
    def make(*, n_parallel: int = 2, n_ctx: int = 100, **rest: Any) -> Bench:
        spec = {name: rest.pop(name) for name in SPEC & set(rest)}
        return Bench(fake_model(**rest), n_parallel, n_ctx, **spec)

    return make
