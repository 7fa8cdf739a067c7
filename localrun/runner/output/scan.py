"""Markers in text that arrives in pieces. Pure."""

from collections.abc import Iterable


def first(text: str, markers: Iterable[str]) -> tuple[int, str] | None:
    """(place, marker) of the one that begins first in `text`; of several there, the longest."""
    found = [(place, marker) for marker in markers if (place := text.find(marker)) >= 0]
    return min(found, key=lambda one: (one[0], -len(one[1])), default=None)


def n_begun(text: str, markers: Iterable[str]) -> int:
    """Length of the longest end of `text` that is a beginning, but not all, of a marker."""
    return max((_n_overlap(text, marker) for marker in markers), default=0)


def _n_overlap(text: str, marker: str) -> int:
    longest = min(len(text), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(marker[:n])), 0)


def agree(text: str, other: str) -> bool:
    """Whether one of them begins with the other: the shorter may still become the longer."""
    return text.startswith(other) or other.startswith(text)


class Collected:
    """Text that is gathered in pieces and searched once, for a marker that ends it.

    Every character is looked at once, but for a few at the seams.
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._tail = ""
        self.n_chars = 0

    def add(self, text: str, markers: tuple[str, ...]) -> tuple[int, str] | None:
        """(place in everything gathered, marker) of the first marker that has become whole."""
        seam = self._tail + text
        found = first(seam, markers)
        place = self.n_chars - len(self._tail)
        self._pieces.append(text)
        self.n_chars += len(text)
        n_tail = max(map(len, markers), default=1) - 1
        self._tail = seam[max(0, len(seam) - n_tail) :] if n_tail else ""
        return (place + found[0], found[1]) if found else None

    def text(self) -> str:
        """Everything gathered."""
        whole = "".join(self._pieces)
        self._pieces = [whole]
        return whole
