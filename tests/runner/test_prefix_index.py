"""Common prefixes: exact at every length, and the holder that is cheapest to use."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localrun.runner.engine.prefix_index import Candidate, Match, common_prefix, longest_match


@pytest.mark.parametrize("n", [0, 1, 2, 254, 255, 256, 257, 511, 512, 513, 1000])
@pytest.mark.parametrize("n_behind", [0, 1, 300])
def test_lists_that_part_after_n_tokens(n: int, n_behind: int) -> None:
    head = list(range(n))
    a, b = head + [-1] * n_behind, head + [-2] * n_behind
    assert common_prefix(a, b, 10_000) == n
    assert common_prefix(a, head, 10_000) == n
    assert common_prefix(head, b, 10_000) == n


@pytest.mark.parametrize("limit", [0, 1, 255, 256, 257, 600])
def test_the_limit_bounds_what_is_common(limit: int) -> None:
    tokens = list(range(600))
    assert common_prefix(tokens, list(tokens), limit) == limit


def test_what_agrees_again_behind_a_difference_does_not_count() -> None:
    a = list(range(600))
    b = list(a)
    b[256] = -1
    assert common_prefix(a, b, 600) == 256


@given(
    st.lists(st.integers(0, 1), max_size=12).map(
        lambda bits: [bit for bit in bits for _ in "x" * 90]
    ),
    st.lists(st.integers(0, 1), max_size=12).map(
        lambda bits: [bit for bit in bits for _ in "x" * 90]
    ),
    st.integers(0, 1200),
)
def test_it_is_what_a_loop_over_tokens_finds(a: list[int], b: list[int], limit: int) -> None:
    n = 0
    while n < min(len(a), len(b), limit) and a[n] == b[n]:
        n += 1
    assert common_prefix(a, b, limit) == n


WANTED = list(range(10))


def held(holder: str, n_common: int, n_more: int = 0, *, is_idle: bool = True) -> Candidate[str]:
    """A candidate with `n_common` of WANTED's tokens and others behind them."""
    tokens = WANTED[:n_common] + [-1] * n_more
    return Candidate(tokens, len(tokens), holder, is_idle)


@pytest.mark.parametrize(
    ("candidates", "expected"),
    [
        pytest.param([], None, id="nobody"),
        pytest.param([held("a", 0, 5)], None, id="nothing in common"),
        pytest.param([held("a", 3), held("b", 5, 2), held("c", 4)], ("b", 5), id="the longest"),
        pytest.param([held("a", 5), held("b", 5)], ("a", 5), id="the first of equals"),
        pytest.param(
            [held("a", 5, 3), held("b", 5)], ("b", 5), id="one that is used up before one cut"
        ),
        pytest.param([held("a", 5), held("b", 5, 3)], ("a", 5), id="whatever their order"),
        pytest.param(
            [held("a", 5, is_idle=False), held("b", 5)], ("b", 5), id="an idle one before a running"
        ),
        pytest.param(
            [held("a", 5), held("b", 6, 9, is_idle=False)], ("b", 6), id="more tokens count most"
        ),
        pytest.param([held("a", 10)], ("a", 9), id="the last token is evaluated for its logits"),
    ],
)
def test_the_holder_that_saves_most(
    candidates: list[Candidate[str]], expected: tuple[str, int] | None
) -> None:
    match = longest_match(WANTED, candidates)
    assert (None if match is None else (match.holder, match.n)) == expected


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        (held("a", 5), Match("a", 5, is_idle=True, is_whole=True)),
        (held("a", 9), Match("a", 9, is_idle=True, is_whole=True)),
        (held("a", 5, 1), None),
        (held("a", 10), None),
        (held("a", 5, is_idle=False), None),
    ],
)
def test_exact_takes_only_what_is_used_up_whole_and_idle(
    candidate: Candidate[str], expected: Match[str] | None
) -> None:
    assert longest_match(WANTED, [candidate], exact=True) == expected


def test_exact_looks_for_the_longest_whole_one() -> None:
    candidates = [held("a", 8, 1), held("b", 3), held("c", 6), held("d", 7, is_idle=False)]
    match = longest_match(WANTED, candidates, exact=True)
    assert match is not None
    assert (match.holder, match.n) == ("c", 6)


def test_tokens_of_a_running_holder_count_as_far_as_they_have_cells() -> None:
    match = longest_match(WANTED, [Candidate(list(WANTED), 4, "a")])
    assert match == Match("a", 4, is_idle=False, is_whole=True)


def test_a_prompt_of_one_token_has_no_prefix() -> None:
    assert longest_match(WANTED[:1], [held("a", 5)]) is None
