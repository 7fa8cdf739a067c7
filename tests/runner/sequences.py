"""Sequences for tests of decisions, by what they have yet to do."""

from typing import Any

from localrun.core import SamplingParams
from localrun.runner.engine.sequence import Sequence


def make(name: int, n_prompt: int, n_done: int = 0, *, client: str = "", **params: Any) -> Sequence:
    made = Sequence(name, [0] * n_prompt, SamplingParams(**params), n_ctx=10_000, client=client)
    made.n_done = n_done
    return made


def prompt(name: int, n_rows: int, n_done: int = 0, **params: Any) -> Sequence:
    """One with `n_rows` prompt tokens to evaluate."""
    return make(name, n_done + n_rows, n_done, **params)


def stream(name: int, n_cells: int = 10, **params: Any) -> Sequence:
    """One that decodes."""
    return make(name, n_cells + 1, n_cells, **params)
