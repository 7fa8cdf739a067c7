"""Log-probabilities of rows of logits, against the definition."""

import math

import numpy as np
import pytest

from localrun.runner.ggml.logits import LEAST_LOGPROB, likeliest, likelihoods
from localrun.runner.model import Wanted


def definition(row: list[float]) -> list[float]:
    peak = max(row)
    norm = peak + math.log(math.fsum(math.exp(value - peak) for value in row))
    return [value - norm for value in row]


def test_each_row_gets_what_it_asks_for() -> None:
    rng = np.random.default_rng(1)
    logits = (rng.normal(size=(5, 3000)) * 8).astype(np.float32)
    wanted = [Wanted(4, 17, 3), Wanted(1, 0, 0), Wanted(2, 2999, 20)]
    before = logits.copy()
    for found, (row, token, n_top) in zip(likelihoods(logits, wanted), wanted, strict=True):
        expected = definition(logits[row].tolist())
        assert found.taken == pytest.approx(expected[token], abs=1e-4)
        best = sorted(range(3000), key=lambda i, e=expected: -e[i])[:n_top]
        assert [token for token, _ in found.top] == best
        assert [p for _, p in found.top] == pytest.approx([expected[i] for i in best], abs=1e-4)
    assert (logits == before).all(), "others sample from these rows"


@pytest.mark.parametrize("shift", [0, 1e4, -1e4])
def test_large_logits_neither_overflow_nor_vanish(shift: float) -> None:
    logits = np.array([[3, 2, -80]], np.float32) + np.float32(shift)
    (found,) = likelihoods(logits, [Wanted(0, 0, 3)])
    assert found.taken == pytest.approx(definition(logits[0].tolist())[0], abs=1e-3)
    assert found.top[0] == (0, found.taken)


def test_a_certain_token_has_probability_one_at_most() -> None:
    logits = np.array([[1000, 0, 0]], np.float32)
    assert likelihoods(logits, [Wanted(0, 0, 1)])[0] == (0.0, ((0, 0.0),))


def test_what_cannot_come_has_a_number_that_json_can_write() -> None:
    logits = np.array([[1, -np.inf, 1]], np.float32)
    (found,) = likelihoods(logits, [Wanted(0, 1, 3)])
    assert found.taken == LEAST_LOGPROB
    assert found.top[2] == (1, LEAST_LOGPROB)


def test_of_equal_tokens_the_lower_id_comes_first_as_in_a_greedy_choice() -> None:
    logits = np.array([[1, 7, 7, 7, 0]], np.float32)
    assert [token for token, _ in likelihoods(logits, [Wanted(0, 1, 2)])[0].top] == [1, 2]
    assert likeliest(logits) == [1]


def test_no_more_tokens_than_there_are() -> None:
    logits = np.array([[1, 2]], np.float32)
    assert len(likelihoods(logits, [Wanted(0, 1, 20)])[0].top) == 2
