"""The real models that tests of the runner share."""

from pathlib import Path

import pytest
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
