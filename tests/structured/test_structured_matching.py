"""Sampling under a matcher: each token has its share of what the filters left and may come."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from localrun.core import SamplingParams
from localrun.errors import NO_TOKEN
from localrun.runner.ggml.matching import GreedyMatched, Matched
from localrun.runner.ggml.sampler import LlamaSampler

N = 32
LOGITS = np.linspace(4, 0, N, dtype=np.float32)[np.random.default_rng(7).permutation(N)]


class Fixed:
    """Allows the same tokens for ever, and counts the masks that were made."""

    is_finished = False
    problem = ""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = set(tokens)
        self.taken: list[int] = []
        self.n_masks = 0

    def take(self, token: int) -> bool:
        if token in self.tokens:
            self.taken.append(token)
        return token in self.tokens

    def allowed(self) -> bytes:
        self.n_masks += 1
        return sum(1 << token for token in self.tokens).to_bytes(N // 8, "little")


@contextmanager
def drawing(matcher: Fixed, **params: Any) -> Iterator[Matched]:
    chain = LlamaSampler(SamplingParams(**params), n_vocab=N, n_ctx=64, logits=lambda _row: LOGITS)
    sampler = Matched(chain, matcher)
    yield sampler
    sampler.close()


def shares(keep: Sequence[int], temperature: float = 1.0) -> dict[int, float]:
    """The share of each token of `keep` in a draw among them."""
    weights = np.exp(LOGITS[list(keep)].astype(np.float64) / temperature)
    return dict(zip(keep, weights / weights.sum(), strict=True))


def likeliest(n: int) -> list[int]:
    return np.argsort(-LOGITS)[:n].tolist()


def assert_drawn(matcher: Fixed, expected: dict[int, float], **params: Any) -> None:
    n = 6000
    with drawing(matcher, seed=11, **params) as sampler:
        counts = Counter(sampler.sample(0) for _ in range(n))
    assert set(counts) <= set(expected)
    for token, share in expected.items():
        # Five standard deviations of a count, which the fixed seed makes a yes or no.
        assert abs(counts[token] - n * share) < 5 * (n * share * (1 - share)) ** 0.5 + 1, token


BARE = {"top_k": 0, "top_p": 1.0, "temperature": 1.0}
SOME = sorted(likeliest(N)[1::3])


def test_without_filters_a_draw_is_that_of_the_allowed_tokens() -> None:
    assert_drawn(Fixed(SOME), shares(SOME), **BARE)


@pytest.mark.parametrize("temperature", [0.5, 1.5])
def test_temperature_counts(temperature: float) -> None:
    params = {**BARE, "temperature": temperature}
    assert_drawn(Fixed(SOME), shares(SOME, temperature), **params)


def test_filters_choose_first_and_the_matcher_among_what_they_leave() -> None:
    left = [token for token in likeliest(12) if token in SOME]
    assert_drawn(Fixed(SOME), shares(left), **{**BARE, "top_k": 12})


def test_filters_choose_among_the_allowed_where_they_had_left_none() -> None:
    rare = likeliest(N)[20:]
    assert_drawn(Fixed(rare), shares(rare[:4]), **{**BARE, "top_k": 4})


def test_a_mask_is_made_only_where_the_first_draw_may_not_come() -> None:
    matcher = Fixed(range(N))
    with drawing(matcher, seed=1, **BARE) as sampler:
        for _ in range(50):
            sampler.sample(0)
    assert (len(matcher.taken), matcher.n_masks) == (50, 0)


def test_a_draw_in_vain_is_followed_by_another_of_the_rest_without_a_mask() -> None:
    first, *rest = likeliest(8)
    matcher = Fixed(rest)
    with drawing(matcher, seed=1, **{**BARE, "top_k": 8, "logit_bias": {first: 5.0}}) as sampler:
        drawn = {sampler.sample(0) for _ in range(50)}
    assert matcher.n_masks == 0
    assert len(drawn) > 1


def test_after_some_draws_in_vain_there_is_one_mask() -> None:
    matcher = Fixed(likeliest(N)[20:])
    with drawing(matcher, temperature=0.0) as sampler:
        assert sampler.sample(0) == likeliest(N)[20]
    assert matcher.n_masks == 1


def test_the_same_seed_draws_the_same_tokens() -> None:
    runs = []
    for _ in range(2):
        with drawing(Fixed(SOME), seed=5, **BARE) as sampler:
            runs.append([sampler.sample(0) for _ in range(40)])
    assert runs[0] == runs[1]
    assert len(set(runs[0])) > 3


def test_penalties_know_what_was_taken_and_nothing_else() -> None:
    """Each token comes once, the likeliest first: those that may not come are never counted."""
    order = sorted(SOME, key=lambda token: -LOGITS[token])
    matcher = Fixed(SOME)
    with drawing(matcher, temperature=0.0, presence_penalty=50.0, repeat_last_n=64) as sampler:
        assert [sampler.sample(0) for _ in order] == order
        matcher.tokens = set(range(N))
        others = [token for token in likeliest(N) if token not in SOME]
        assert [sampler.sample(0) for _ in others] == others


def test_biases_count_and_bans_hold() -> None:
    wanted, banned = SOME[0], SOME[1]
    with drawing(Fixed(SOME), **BARE, logit_bias={wanted: 100}) as sampler:
        assert {sampler.sample(0) for _ in range(20)} == {wanted}
    left = [token for token in SOME if token != banned]
    assert_drawn(Fixed(SOME), shares(left), **BARE, logit_bias={banned: -100})


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_there_is_no_token_where_all_that_may_come_are_banned(temperature: float) -> None:
    params = {**BARE, "temperature": temperature, "logit_bias": {3: -100, 5: -100}}
    with drawing(Fixed([3, 5]), **params) as sampler:
        assert sampler.sample(0) == NO_TOKEN
    with drawing(Fixed([]), **{**BARE, "temperature": temperature}) as sampler:
        assert sampler.sample(0) == NO_TOKEN


def test_a_greedy_row_takes_the_likeliest_token_that_may_come() -> None:
    matcher = Fixed(SOME)
    sampler = GreedyMatched(matcher, lambda _row: LOGITS)
    assert sampler.sample(0) == max(SOME, key=lambda token: LOGITS[token])
    matcher.tokens = set(range(N))
    assert sampler.sample(0) == int(LOGITS.argmax())
    assert matcher.n_masks == 1
    matcher.tokens = set()
    assert sampler.sample(0) == NO_TOKEN
