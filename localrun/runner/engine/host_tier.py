"""KV states that wait in ordinary memory, outside the context, under one limit of bytes.

Kept are sequences that had to leave the cells: some for their prefix (the least recently used
goes first when room is needed), some because they were preempted and will come back (these stay).
"""

import itertools
from dataclasses import dataclass, field

from localrun.runner.model import State

# Part of the bytes of the KV cache that the tier may have where nobody says how much. What is
# kept for its prefix is a convenience: it should never surprise by its size.
_KV_SHARE = 0.125

# Enough for one long chat of a small model, however small the pool.
_LEAST_BYTES = 24 << 20


def default_limit_bytes(kv_bytes: int, most_bytes: int) -> int:
    """Bytes for a context whose KV cache has `kv_bytes`, where memory allows `most_bytes`."""
    return min(most_bytes, max(_LEAST_BYTES, int(kv_bytes * _KV_SHARE)))


@dataclass(slots=True, eq=False)
class Saved:
    """One sequence's state: `data` holds the KV of all its `tokens`."""

    tokens: list[int]
    scope: str
    data: State
    is_pinned: bool
    used_at: int = field(default=0)


class HostTier:
    """Owns the saved states. `limit_bytes` 0 keeps nothing."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.n_bytes = 0
        self._saved: set[Saved] = set()
        self._clock = itertools.count(1)

    def could_hold(self, n_bytes: int) -> bool:
        """True when so much fits after dropping what is not pinned."""
        pinned = sum(len(saved.data) for saved in self._saved if saved.is_pinned)
        return pinned + n_bytes <= self.limit_bytes

    def make_room(self, n_bytes: int) -> bool:
        """Drops what is not pinned, least recently used first, until so much fits; else nothing.

        To be called before a state is saved, so that both never take memory at once.
        """
        if not self.could_hold(n_bytes):
            return False
        for saved in sorted(self.unpinned(), key=lambda saved: saved.used_at):
            if self.n_bytes + n_bytes <= self.limit_bytes:
                break
            self.drop(saved)
        return True

    def put(self, tokens: list[int], scope: str, data: State, *, pin: bool = False) -> Saved | None:
        """Keeps a state; None when it does not fit whatever is dropped for it."""
        if not self.make_room(len(data)):
            return None
        saved = Saved(tokens, scope, data, is_pinned=pin, used_at=next(self._clock))
        self._saved.add(saved)
        self.n_bytes += len(data)
        return saved

    def unpinned(self) -> list[Saved]:
        """States that are kept for their prefix."""
        return [saved for saved in self._saved if not saved.is_pinned]

    def touch(self, saved: Saved) -> None:
        """It has just been used."""
        saved.used_at = next(self._clock)

    def drop(self, saved: Saved) -> None:
        """Gives its bytes back. Idempotent."""
        if saved in self._saved:
            self._saved.remove(saved)
            self.n_bytes -= len(saved.data)
