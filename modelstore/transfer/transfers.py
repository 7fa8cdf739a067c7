"""The transfers of one process: those who want the same blob share one.

Owns who is interested in which transfer. The last one to leave stops it, and what has arrived
stays on disk. Between processes the lock beside the partial file does the same.
"""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from modelstore.blobs import Blobs
from modelstore.transfer.choice import MakeSource
from modelstore.transfer.download import Download, Wanted
from modelstore.transfer.effort import Effort

# With the size: one that somebody is wrong about comes to nothing, and must not for the others.
_Key = tuple[Path, str, int]


class Transfers:
    """Safe to share between threads."""

    def __init__(self, effort: Effort | None = None) -> None:
        self.effort = effort or Effort()
        self.stopping = threading.Event()  # set by `close`; ends other requests too
        self._lock = threading.Lock()
        self._running: dict[_Key, Download] = {}
        self._n_interested: dict[Download, int] = {}

    @contextlib.contextmanager
    def join(self, blobs: Blobs, wanted: Wanted, make_source: MakeSource) -> Iterator[Download]:
        """The transfer of `wanted`, begun if need be; who leaves the block is not interested.

        One that runs already is offered `make_source` as well.
        """
        key = (blobs.folder, wanted.key.hex, wanted.total)
        with self._lock:
            download = self._running.get(key)
            if download is None or download.is_over:
                # One that is being stopped still holds the lock on disk; the new one waits for it.
                download = Download(blobs, wanted, make_source, self.effort)
                self._running[key] = download
                self._n_interested[download] = 0
                download.start()
            else:
                download.offer(wanted.model, make_source)
            self._n_interested[download] += 1
        try:
            yield download
        finally:
            self._leave(key, download)

    def close(self, timeout_s: float) -> None:
        """Stops every transfer, and gives each some time to write its journal."""
        self.stopping.set()
        with self._lock:
            running = list(self._n_interested)
        for download in running:
            download.stop()
        for download in running:
            download.join(timeout_s)

    def _leave(self, key: _Key, download: Download) -> None:
        with self._lock:
            self._n_interested[download] -= 1
            if self._n_interested[download]:
                return
            del self._n_interested[download]
            if self._running.get(key) is download:
                del self._running[key]
            download.stop()
