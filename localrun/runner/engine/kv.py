"""Who owns which cell of the KV cache: the books beside llama.cpp's own, which nobody sees. Pure.

A cell holds one token of one or several sequences. Sequences share only what stands in front, so
a run of cells that is shared from its first to its last is one `_Extent`, and a sequence is a
short list of them. That keeps every question cheap, and the number of cells in use exact.
"""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class _Extent:
    """`n` cells in a row that the same `refs` sequences own."""

    n: int
    refs: int = 1


class Ledger:
    """The cells of one context: `n_ids` sequence ids, `n_cells` cells.

    `window` is None in the unified layout, where any cell may be anybody's. In the split layout
    it is the number of cells that each id has for itself, and nothing can be shared.
    """

    def __init__(self, n_ids: int, n_cells: int, window: int | None = None) -> None:
        self.n_ids = n_ids
        self.n_cells = n_cells
        self.window = window
        self.n_used = 0
        self.n_used_max = 0
        self._extents: list[list[_Extent]] = [[] for _ in range(n_ids)]
        self._lengths = [0] * n_ids

    @property
    def is_unified(self) -> bool:
        """True when one pool serves everybody, so that one sequence can lack what another has."""
        return self.window is None

    @property
    def n_free(self) -> int:
        """Cells without a token."""
        return self.n_cells - self.n_used

    def length(self, seq_id: int) -> int:
        """Cells of the sequence, shared ones included."""
        return self._lengths[seq_id]

    def room(self, seq_id: int) -> int:
        """How far the sequence could grow now."""
        return self.n_free if self.window is None else self.window - self._lengths[seq_id]

    def own(self, seq_id: int) -> int:
        """Cells that nobody else has: what dropping the sequence would free."""
        return sum(extent.n for extent in self._extents[seq_id] if extent.refs == 1)

    def held_only_by(self, seq_ids: Collection[int]) -> int:
        """Cells that would be free if all of these sequences went."""
        shares: dict[int, int] = {}
        n_cells = 0
        for seq_id in seq_ids:
            for extent in self._extents[seq_id]:
                seen = shares[id(extent)] = shares.get(id(extent), 0) + 1
                if seen == extent.refs:
                    n_cells += extent.n
        return n_cells

    def grow(self, seq_id: int, n: int) -> None:
        """The sequence has written `n` more tokens. Raises ValueError without room for them."""
        if n > self.room(seq_id):
            raise ValueError(f"{n} more cells for sequence {seq_id}, room for {self.room(seq_id)}")
        extents = self._extents[seq_id]
        if extents and extents[-1].refs == 1:
            extents[-1].n += n
        elif n:
            extents.append(_Extent(n))
        self._lengths[seq_id] += n
        self.n_used += n
        self.n_used_max = max(self.n_used_max, self.n_used)

    def fork(self, source: int, target: int, n: int) -> None:
        """The empty `target` shares the first `n` cells of `source`. Unified layout only."""
        if self.window is not None or self._lengths[target] or n > self._lengths[source]:
            raise ValueError(f"sequence {target} cannot share {n} cells of {source}")
        self._cut(source, n)
        n_shared = 0
        for extent in self._extents[source]:
            if n_shared == n:
                break
            extent.refs += 1
            n_shared += extent.n
            self._extents[target].append(extent)
        self._lengths[target] = n

    def trim(self, seq_id: int, n: int) -> None:
        """The sequence keeps its first `n` cells; 0 drops it."""
        if n >= self._lengths[seq_id]:
            return
        self._cut(seq_id, n)
        extents = self._extents[seq_id]
        while self._lengths[seq_id] > n:
            extent = extents.pop()
            extent.refs -= 1
            self._lengths[seq_id] -= extent.n
            if extent.refs == 0:
                self.n_used -= extent.n

    def _cut(self, seq_id: int, n: int) -> None:
        """Makes a border between extents after the first `n` cells, for all who share them."""
        start = 0
        for index, extent in enumerate(self._extents[seq_id]):
            if start < n < start + extent.n:
                head, tail = _Extent(n - start, extent.refs), extent
                tail.n -= head.n
                # Whoever shares an extent shares all that stands before it: the index is the same.
                for extents in self._extents:
                    if len(extents) > index and extents[index] is tail:
                        extents.insert(index, head)
                return
            start += extent.n
