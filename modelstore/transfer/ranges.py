"""Which bytes of a file are there, and in which pieces the rest is fetched. Pure values.

A range is (start, end) with the end exclusive.
"""

from bisect import bisect_left
from collections.abc import Iterable

Range = tuple[int, int]


class RangeSet:
    """Disjoint ranges in order; neighbours are joined. Not for two threads at once."""

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._ranges: list[Range] = []
        for start, end in ranges:
            self.add(start, end)

    def add(self, start: int, end: int) -> None:
        """Adds the bytes from `start` up to `end`."""
        if start >= end:
            return
        first = bisect_left(self._ranges, start, key=lambda item: item[1])
        last = first
        while last < len(self._ranges) and self._ranges[last][0] <= end:
            last += 1
        if last > first:
            start = min(start, self._ranges[first][0])
            end = max(end, self._ranges[last - 1][1])
        self._ranges[first:last] = [(start, end)]

    def clear(self) -> None:
        """Forgets everything."""
        self._ranges.clear()

    @property
    def ranges(self) -> tuple[Range, ...]:
        """A copy."""
        return tuple(self._ranges)

    @property
    def n_bytes(self) -> int:
        """How many bytes are there."""
        return sum(end - start for start, end in self._ranges)

    @property
    def prefix_end(self) -> int:
        """Everything before this offset is there."""
        return self._ranges[0][1] if self._ranges and self._ranges[0][0] == 0 else 0

    def gaps(self, total: int) -> list[Range]:
        """What is missing of `total` bytes, in order."""
        missing, at = [], 0
        for start, end in self._ranges:
            if start > at:
                missing.append((at, start))
            at = end
        if at < total:
            missing.append((at, total))
        return missing


def pieces(ranges: Iterable[Range], size_bytes: int) -> list[Range]:
    """The ranges cut into pieces of at most `size_bytes`, in order."""
    return [
        (at, min(at + size_bytes, end))
        for start, end in ranges
        for at in range(start, end, size_bytes)
    ]


def repair_order(total: int, n_pieces: int, least_bytes: int) -> list[Range]:
    """All of a file in the order in which it is fetched again to find what is wrong.

    The end first: connections break near it more often than elsewhere, and then only the piece
    before it would have cost as much as the whole file.
    """
    found = pieces([(0, total)], max(least_bytes, -(-total // n_pieces)))
    return [*found[-1:], *found[:-1]]
