"""Vectors of a scripted model: how often each number occurs in a text, so that order is no matter.

Checks what the engine must never do, as `fake` does for text.
"""

import math
import struct
import time
from collections import Counter
from collections.abc import Sequence

from localrun.runner.engine.layout import EmbeddingShape

N_DIMS = 8


class FakeEmbeddings:
    """See `model.Embeddings`. A token counts at the place of its last three bits."""

    n_dims = N_DIMS

    def __init__(self, shape: EmbeddingShape, step_s: float, fail_on: int = -1) -> None:
        """A forward takes `step_s`, and fails when it has the token `fail_on`."""
        self.shape = shape
        self._step_s = step_s
        self._fail_on = fail_on
        self._seen: dict[int, list[int]] = {}
        self._last: set[int] = set()
        # Rows and texts of each forward.
        self.forwards: list[tuple[int, int]] = []

    def use_threads(self, n: int) -> None:
        """Nothing is computed."""

    def forward(self, tokens: Sequence[int], positions: Sequence[int], ids: Sequence[int]) -> int:
        """Reads the rows; see `Embeddings.forward`."""
        if not 0 < len(tokens) <= self.shape.n_rows:
            raise ValueError(f"{len(tokens)} rows do not fit {self.shape.n_rows}")
        self.forwards.append((len(tokens), len(set(ids))))
        time.sleep(self._step_s)
        if self._fail_on in tokens:
            return -3
        for token, position, number in zip(tokens, positions, ids, strict=True):
            if not self.shape.can_split and not position:
                self._seen[number] = []
            seen = self._seen.setdefault(number, [])
            if position != len(seen):
                raise ValueError(f"row at position {position} of text {number} leaves a gap")
            seen.append(token)
        if not self.shape.can_split and sum(len(self._seen[n]) for n in set(ids)) != len(tokens):
            raise ValueError("a text is split")
        self._last = set(ids)
        return 0

    def vector(self, number: int, n_dims: int) -> bytes:
        """See `Embeddings.vector`."""
        if number not in self._last:
            raise ValueError(f"the last forward had no text {number}")
        counts = Counter(token % N_DIMS for token in self._seen[number])
        numbers = [float(counts[place]) for place in range(N_DIMS)][: n_dims or None]
        length = 1.0 if self.shape.pooling == "rank" else math.hypot(*numbers) or 1.0
        return struct.pack(f"<{len(numbers)}f", *(number / length for number in numbers))

    def forget(self, number: int) -> None:
        """See `Embeddings.forget`."""
        self._seen.pop(number, None)
