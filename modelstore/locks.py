"""One lock for one store folder, between threads and between processes.

Owns the file `.lock`; used around changes of manifests and around every removal, never around
reading or the copying of large files. Re-entrant within a thread.
"""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from modelstore.errors import StoreBusy
from modelstore.files import writing

# Changes under the lock take milliseconds; half a minute means that a process is stuck.
DEFAULT_TIMEOUT_S = 30.0
_POLL_S = 0.02


class StoreLock:
    """Exclusive access to one store. Safe to share between threads."""

    def __init__(self, root: Path, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._root = root
        self._timeout_s = timeout_s
        # Threads queue here first: the file lock alone would make them poll each other.
        self._threads = threading.RLock()
        self._file = FileLock(root / ".lock", thread_local=False)
        self._depth = 0

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Holds the lock for the block. Raises: StoreBusy, StoreNotWritable."""
        if not self._threads.acquire(timeout=self._timeout_s):
            raise StoreBusy(self._timeout_s)
        try:
            if self._depth == 0:
                self._acquire_file()
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._file.release()
        finally:
            self._threads.release()

    def _acquire_file(self) -> None:
        try:
            with writing(self._root):
                self._file.acquire(timeout=self._timeout_s, poll_interval=_POLL_S)
        except Timeout as error:
            raise StoreBusy(self._timeout_s) from error
