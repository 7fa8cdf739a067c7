"""Blobs that must stay although no manifest names them yet.

Owns the count of holders per digest, and since when something is under way. Whoever makes a model
holds its blobs from before it looks whether they exist until the manifest is written; a removal in
between spares them. Within one process; against other processes, `Store.write_manifest` checks
again that every blob is there.
"""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from modelstore.digest import Digest


class Ongoing:
    """When the operations began that bring blobs right now. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began_s: dict[object, float] = {}

    @property
    def oldest_s(self) -> float | None:
        """When the one that runs longest began, in seconds of `time.time`; None without any."""
        with self._lock:
            return min(self._began_s.values(), default=None)

    def begin(self) -> object:
        """Notes one more; the token is for `end`."""
        token = object()
        with self._lock:
            self._began_s[token] = time.time()
        return token

    def end(self, token: object) -> None:
        """Forgets it. Idempotent."""
        with self._lock:
            self._began_s.pop(token, None)

    @contextlib.contextmanager
    def during(self) -> Iterator[None]:
        """One that lasts as long as the block."""
        token = self.begin()
        try:
            yield
        finally:
            self.end(token)


class Pins:
    """Who holds what, for one store. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_holders: Counter[Digest] = Counter()
        self._spared: set[Digest] = set()

    @property
    def held(self) -> set[Digest]:
        """A copy of the digests that somebody holds at this moment."""
        with self._lock:
            return set(self._n_holders)

    def hold(self, digests: Iterable[Digest]) -> None:
        """Adds one holder to each; every call needs its own `let_go`."""
        with self._lock:
            self._n_holders.update(digests)

    def let_go(self, digests: Iterable[Digest]) -> set[Digest]:
        """Ends one hold of each; returns those whose removal was put off and is now due."""
        digests = list(digests)
        with self._lock:
            self._n_holders.subtract(digests)
            self._n_holders = +self._n_holders
            due = {digest for digest in digests if digest not in self._n_holders} & self._spared
            self._spared -= due
            return due

    def remove_unless_held(self, digest: Digest, remove: Callable[[Digest], None]) -> bool:
        """Calls `remove`, or puts it off; a hold comes wholly before or wholly after."""
        with self._lock:
            if digest in self._n_holders:
                self._spared.add(digest)
                return False
            remove(digest)
            return True


class Keep:
    """What one maker of a model holds; from `Store.keep`, for one thread."""

    def __init__(self, pins: Pins) -> None:
        self._pins = pins
        self._held: list[Digest] = []
        self._made: set[Digest] = set()

    def add(self, *digests: Digest) -> None:
        """Holds these blobs, whether they exist already or not."""
        self._pins.hold(digests)
        self._held += digests

    def made(self, digest: Digest) -> None:
        """Notes a blob as new, to be removed again unless a manifest comes to name it."""
        self._made.add(digest)

    def is_made(self, digest: Digest) -> bool:
        """Tells whether `made` was called for this blob."""
        return digest in self._made

    def end(self) -> set[Digest]:
        """Lets go of everything; returns the blobs that may have to be removed."""
        due = self._pins.let_go(self._held) | self._made
        self._held.clear()
        self._made.clear()
        return due
