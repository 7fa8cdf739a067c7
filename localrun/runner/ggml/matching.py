"""Samplers of sequences whose matcher has a say in every token.

A token is drawn as if there were no matcher, and only that one is checked: most are right. If it is
not, another is drawn from the rest of those that the filters had left; after some that were wrong,
from those of them that may come next. So each token has its probability among the filters' choice,
given that it may come. When the filters have left none, they get to choose among all that may come.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from localrun.errors import NO_TOKEN
from localrun.runner.ggml.candidates import Candidates, Ids
from localrun.runner.ggml.logits import Logits
from localrun.runner.ggml.sampler import NEVER, LlamaSampler
from localrun.runner.model import Matcher

# A draw and its check take 40 µs, all that may come next of 262k tokens 450 µs.
_MAX_DRAWS = 6

# Of more candidates than this, taking one out costs as much as the mask.
_FEW = 1024


class GreedyMatched:
    """Takes the likeliest token that may come next; see `Sampler`."""

    def __init__(self, matcher: Matcher, logits: Callable[[int], Logits]) -> None:
        """`logits` of an output row of the last forward."""
        self._matcher = matcher
        self._logits = logits

    def sample(self, row: int) -> int:
        """The token for output `row`."""
        logits = self._logits(row)
        token = int(logits.argmax())
        if self._matcher.take(token):
            return token
        ids = _ids(self._matcher.allowed(), len(logits))
        if not len(ids):
            return NO_TOKEN
        token = int(ids[logits[ids].argmax()])
        return token if self._matcher.take(token) else NO_TOKEN

    def close(self) -> None:
        """Nothing to free."""


class Matched:
    """Draws with a sampler chain among the tokens that may come next; see `Sampler`."""

    def __init__(self, chain: LlamaSampler, matcher: Matcher) -> None:
        self._chain = chain
        self._matcher = matcher

    def sample(self, row: int) -> int:
        """The token for output `row`; the chain remembers no other."""
        candidates = self._chain.filtered(row)
        token = self._by_chance(candidates)
        if token == NO_TOKEN:
            token = self._by_mask(candidates, row)
        if token != NO_TOKEN:
            self._chain.remember([token])
        return token

    def _by_chance(self, candidates: Candidates) -> int:
        """Draws until one may come; what was drawn in vain takes no further part."""
        for _ in range(_MAX_DRAWS):
            token = self._drawn(candidates)
            if token == NO_TOKEN or self._matcher.take(token):
                return token
            if candidates.n > _FEW:
                break
            candidates.drop_selected()
        return NO_TOKEN

    def _by_mask(self, candidates: Candidates, row: int) -> int:
        allowed = _mask(self._matcher.allowed(), self._chain.n_vocab)
        # What a bias bans is not there to be drawn.
        candidates.keep(allowed[candidates.ids()] & (candidates.logits() > NEVER / 2))
        if not candidates.n and allowed.any():
            candidates = self._chain.filtered(row, np.flatnonzero(allowed).astype(np.int32))
        token = self._drawn(candidates)
        return token if token != NO_TOKEN and self._matcher.take(token) else NO_TOKEN

    def _drawn(self, candidates: Candidates) -> int:
        """One of them; NO_TOKEN of none, and of nothing but what a bias bans."""
        if not candidates.n:
            return NO_TOKEN
        candidates.apply(self._chain.draw)
        token, logit = candidates.selected
        return token if logit > NEVER / 2 else NO_TOKEN

    def close(self) -> None:
        """Frees the chain."""
        self._chain.close()


def _mask(bits: bytes, n: int) -> NDArray[np.bool_]:
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=n, bitorder="little").view(np.bool_)


def _ids(bits: bytes, n: int) -> Ids:
    return np.flatnonzero(_mask(bits, n)).astype(np.int32)
