"""The hash of a file while it arrives: a thread that follows the part which has no gaps.

Reads what was just written, so it comes from the page cache, and hashing costs no pass over the
disk. Starts again when the file does.
"""

import hashlib
import threading
from collections.abc import Callable

from modelstore.digest import CHUNK_BYTES, Digest
from modelstore.transfer.partial import Partial

_LOOK_S = 0.01  # how often it looks whether there is more; a look costs microseconds


def hash_partial(partial: Partial, stop: threading.Event) -> Digest | None:
    """The digest of the whole file as it is now; None when `stop` came first."""
    sha, at, buffer = hashlib.sha256(), 0, memoryview(bytearray(CHUNK_BYTES))
    while at < partial.total and not stop.is_set():
        chunk = partial.read_into(at, buffer[: partial.total - at])
        sha.update(chunk)
        at += len(chunk)
    return None if stop.is_set() else Digest(sha.hexdigest())


class Follower:
    """Hashes `partial` from its beginning as far as it is there; a thread of its own."""

    def __init__(
        self, partial: Partial, stop: threading.Event, on_error: Callable[[Exception], None]
    ) -> None:
        self._partial = partial
        self._stop = stop
        self._on_error = on_error
        self._n_restarts = 0
        self._digest: Digest | None = None
        self._thread = threading.Thread(target=self._run, name="hash", daemon=True)
        self._thread.start()

    def restart(self) -> None:
        """The file starts again: what was hashed so far does not count."""
        self._n_restarts += 1

    def join(self) -> None:
        """Waits for its thread."""
        self._thread.join()

    def finish(self) -> Digest | None:
        """The digest, once everything is there; None when it was stopped."""
        self.join()
        return self._digest

    def _run(self) -> None:
        try:
            self._digest = self._follow()
        except Exception as error:  # noqa: BLE001 - it ends the transfer
            self._on_error(error)

    def _follow(self) -> Digest | None:
        buffer = memoryview(bytearray(CHUNK_BYTES))  # one for all: gigabytes pass through it
        while not self._stop.is_set():
            n_restarts, sha, at = self._n_restarts, hashlib.sha256(), 0
            while n_restarts == self._n_restarts:
                if at == self._partial.total:
                    return Digest(sha.hexdigest())
                n_ready = self._partial.prefix_end - at
                if n_ready <= 0:
                    if self._stop.wait(_LOOK_S):
                        return None
                    continue
                chunk = self._partial.read_into(at, buffer[:n_ready])
                sha.update(chunk)
                at += len(chunk)
                if self._stop.is_set():
                    return None
        return None
