"""Which sequence has the longest common prefix with a new one. Pure.

A linear scan is exact for every partial match, and fast enough: it happens once for each request,
and most sequences differ within their first tokens.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

H = TypeVar("H")

# Lists are compared in slices: C speed where they agree, few tokens one by one where they do not.
_SLICE = 256


@dataclass(frozen=True, slots=True)
class Candidate(Generic[H]):
    """The first `n` of `tokens` have their KV in `holder`; `is_idle` when nobody runs on it."""

    tokens: list[int]
    n: int
    holder: H
    is_idle: bool = False


@dataclass(frozen=True, slots=True)
class Match(Generic[H]):
    """The first `n` tokens can come from `holder`; `is_whole` when that is all it has."""

    holder: H
    n: int
    is_idle: bool
    is_whole: bool


def common_prefix(a: list[int], b: list[int], limit: int) -> int:
    """How many tokens `a` and `b` share from the start, at most `limit`."""
    n = min(len(a), len(b), limit)
    start = 0
    while start < n:
        end = min(start + _SLICE, n)
        if a[start:end] != b[start:end]:
            while a[start] == b[start]:
                start += 1
            return start
        start = end
    return n


def longest_match(
    tokens: list[int], candidates: Iterable[Candidate[H]], *, exact: bool = False
) -> Match[H] | None:
    """The candidate that saves most; an idle one that is used up whole before another equal one.

    At least the last token is left over: its logits are what the sequence needs first. `exact`
    takes only candidates whose whole content is a prefix, and that nobody runs on.
    """
    best: Match[H] | None = None
    for candidate in candidates:
        n = common_prefix(tokens, candidate.tokens, min(candidate.n, len(tokens) - 1))
        is_whole = n == candidate.n
        if n == 0 or (exact and not (is_whole and candidate.is_idle)):
            continue
        if best is None or (n, is_whole and candidate.is_idle) > (
            best.n,
            best.is_whole and best.is_idle,
        ):
            best = Match(candidate.holder, n, candidate.is_idle, is_whole)
    return best
