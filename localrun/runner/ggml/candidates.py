"""llama.cpp's array of tokens that a chain narrows down, in memory of ours.

The chain's own array would be read and written anew by every sequence of a step: 3 MB each with
262k tokens, beyond every cache. Ours is freed before the next one is made, which gets the same
memory while it is still near (a draw takes 0.25 ms instead of 1).
"""

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localrun.runner.ggml.binding import lib
from localrun.runner.ggml.logits import Logits

Ids = NDArray[np.int32]

# The layout of `llama_token_data`.
_TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])

_DATA_POINTER = ctypes.POINTER(lib.llama_token_data)


class Candidates:
    """The tokens that may be drawn; all of them at first, or those that are given."""

    def __init__(self, logits: Logits, ids: Ids | None = None) -> None:
        """`logits`: (n_vocab,) float32; `ids`: (n,) int32."""
        if ids is None:
            ids = _all_ids(len(logits))
        else:
            logits = logits[ids]
        self._data = np.empty(len(ids), _TOKEN_DATA)
        self._data["id"] = ids
        self._data["logit"] = logits
        self._struct = lib.llama_token_data_array(
            data=ctypes.cast(self._data.ctypes.data, _DATA_POINTER),
            size=len(ids),
            selected=-1,
            sorted=False,
        )

    @property
    def n(self) -> int:
        """How many there are."""
        return int(self._struct.size)

    @property
    def selected(self) -> tuple[int, float]:
        """What was drawn last, and its logit after all filters."""
        taken = self._data[self._struct.selected]
        return int(taken["id"]), float(taken["logit"])

    def apply(self, sampler: Any) -> None:
        """Narrows them down, or draws one of them. There must be one."""
        lib.llama_sampler_apply(sampler, ctypes.byref(self._struct))

    def keep(self, those: NDArray[np.bool_]) -> None:
        """Leaves the ones at which `those`, one for each candidate, is true, in their order."""
        left = self._data[: self.n][those]
        self._data[: len(left)] = left
        self._struct.size = len(left)

    def drop_selected(self) -> None:
        """Leaves all but the one that was drawn last, in their order."""
        at = self._struct.selected
        self._data[at : self.n - 1] = self._data[at + 1 : self.n]
        self._struct.size -= 1

    def ids(self) -> Ids:
        """(n,) int32."""
        ids: Ids = self._data["id"][: self.n]
        return ids

    def logits(self) -> Logits:
        """(n,) float32, after the filters so far."""
        logits: Logits = self._data["logit"][: self.n]
        return logits


@lru_cache(maxsize=1)  # a runner has one vocabulary
def _all_ids(n: int) -> Ids:
    return np.arange(n, dtype=np.int32)
