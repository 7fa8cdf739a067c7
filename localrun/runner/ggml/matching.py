"""Samplers of sequences whose matcher has a say in every token.

A token is drawn as if there were no matcher, and only that one is checked: most are right. If it is
not, another is drawn from the rest of those that the filters had left; after some that were wrong,
from those of them that may come next. So each token has its probability among the filters' choice,
given that it may come. When the filters have left none, they get to choose among all that may come.
"""

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localrun.errors import NO_TOKEN
from localrun.runner.ggml.binding import lib
from localrun.runner.ggml.logits import Logits
from localrun.runner.ggml.sampler import NEVER, LlamaSampler
from localrun.runner.model import Matcher

Ids = NDArray[np.int32]

# A draw and its check take 40 µs, all that may come next of 262k tokens 450 µs.
_MAX_DRAWS = 6

# Of more candidates than this, taking one out costs as much as the mask.
_FEW = 1024

# The layout of `llama_token_data`.
_TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


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

    def __init__(
        self, chain: LlamaSampler, matcher: Matcher, logits: Callable[[int], Logits]
    ) -> None:
        """`logits` of an output row of the last forward."""
        self._chain = chain
        self._matcher = matcher
        self._logits = logits

    def sample(self, row: int) -> int:
        """The token for output `row`; the chain remembers no other."""
        logits = self._logits(row)
        candidates = _Candidates(_all_ids(len(logits)), logits)
        candidates.apply(self._chain.filters)
        token = self._first(candidates)
        if token == NO_TOKEN:
            token = self._by_mask(candidates, logits)
        if token != NO_TOKEN:
            self._chain.remember([token])
        return token

    def _first(self, candidates: "_Candidates") -> int:
        """Draws until one may come: what was drawn in vain does not take part again."""
        for _ in range(_MAX_DRAWS):
            token = candidates.drawn(self._chain.draw)
            if token == NO_TOKEN or self._matcher.take(token):
                return token
            if candidates.n > _FEW:
                break
            candidates.drop_drawn()
        return NO_TOKEN

    def _by_mask(self, candidates: "_Candidates", logits: Logits) -> int:
        allowed = _mask(self._matcher.allowed(), len(logits))
        candidates.keep(allowed)
        if not candidates.n:
            candidates = _Candidates(np.flatnonzero(allowed).astype(np.int32), logits)
            candidates.apply(self._chain.filters)
        token = candidates.drawn(self._chain.draw)
        return token if token != NO_TOKEN and self._matcher.take(token) else NO_TOKEN

    def close(self) -> None:
        """Frees the chain."""
        self._chain.close()


class _Candidates:
    """llama.cpp's array of tokens that a chain narrows down, in memory of ours."""

    def __init__(self, ids: Ids, logits: Logits) -> None:
        self._data = np.empty(len(ids), _TOKEN_DATA)
        self._data["id"] = ids
        self._data["logit"] = logits[ids] if len(ids) < len(logits) else logits
        self._struct = lib.llama_token_data_array(
            data=self._data.ctypes.data_as(ctypes.POINTER(lib.llama_token_data)),
            size=len(ids),
            selected=-1,
            sorted=False,
        )

    @property
    def n(self) -> int:
        """How many there are."""
        return int(self._struct.size)

    def apply(self, sampler: Any) -> None:
        """Narrows them down."""
        if self.n:
            lib.llama_sampler_apply(sampler, ctypes.byref(self._struct))

    def keep(self, allowed: NDArray[np.bool_]) -> None:
        """Leaves those that are `allowed`, in their order; none of those that a bias bans."""
        left = self._data[: self.n]
        left = left[allowed[left["id"]] & (left["logit"] > NEVER / 2)]
        self._data[: len(left)] = left
        self._struct.size = len(left)

    def drop_drawn(self) -> None:
        """Leaves all but the one that was drawn, in their order."""
        at = self._struct.selected
        self._data[at : self.n - 1] = self._data[at + 1 : self.n]
        self._struct.size -= 1

    def drawn(self, draw: Any) -> int:
        """One of them; NO_TOKEN of none, and of nothing but what a bias bans."""
        self.apply(draw)
        if not self.n:
            return NO_TOKEN
        taken = self._data[self._struct.selected]
        return int(taken["id"]) if taken["logit"] > NEVER / 2 else NO_TOKEN


@lru_cache(maxsize=1)  # a runner has one vocabulary
def _all_ids(n: int) -> Ids:
    return np.arange(n, dtype=np.int32)


def _mask(bits: bytes, n: int) -> NDArray[np.bool_]:
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=n, bitorder="little").view(np.bool_)


def _ids(bits: bytes, n: int) -> Ids:
    return np.flatnonzero(_mask(bits, n)).astype(np.int32)
