"""Rows for one forward as llama.cpp reads them."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localrun.runner.ggml.binding import lib


def pointer(array: NDArray[Any], ctype: Any) -> Any:
    """The array's memory, which must outlive the pointer."""
    return array.ctypes.data_as(ctypes.POINTER(ctype))


class Batch:
    """One `llama_batch` for the life of the model, written through numpy views.

    Filling it field by field costs 306 µs for 512 rows, through views 2 µs.
    """

    def __init__(self, n_rows: int) -> None:
        self.tokens = np.zeros(n_rows, np.int32)
        self.positions = np.zeros(n_rows, np.int32)
        self.seq_ids = np.zeros(n_rows, np.int32)
        self.outputs = np.zeros(n_rows, np.int8)
        self._n_seq_ids = np.ones(n_rows, np.int32)
        # Row i's list of sequence ids is the i-th entry of `seq_ids`, fixed once.
        step = self.seq_ids.itemsize
        base = self.seq_ids.ctypes.data
        self._seq_id_pointers = np.arange(base, base + n_rows * step, step, dtype=np.uint64)
        self.struct = lib.llama_batch(
            n_tokens=0,
            token=pointer(self.tokens, lib.llama_token),
            embd=None,
            pos=pointer(self.positions, lib.llama_pos),
            n_seq_id=pointer(self._n_seq_ids, ctypes.c_int32),
            seq_id=pointer(self._seq_id_pointers, ctypes.POINTER(lib.llama_seq_id)),
            logits=pointer(self.outputs, ctypes.c_int8),
        )

    def fill(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        outputs: Sequence[bool],
    ) -> None:
        """Rows of token, position, sequence id and "give logits", equally many of each."""
        n_rows = self.struct.n_tokens = len(tokens)
        if n_rows == 1:
            # Numpy would make an array of each list first, which takes as long as all the rest.
            self.tokens[0], self.positions[0] = tokens[0], positions[0]
            self.seq_ids[0], self.outputs[0] = slots[0], outputs[0]
            return
        self.tokens[:n_rows] = tokens
        self.positions[:n_rows] = positions
        self.seq_ids[:n_rows] = slots
        self.outputs[:n_rows] = outputs
