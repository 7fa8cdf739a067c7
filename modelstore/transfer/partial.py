"""A blob in the making on disk: its data, the journal that says what of it is good, and its lock.

Owns the three files `sha256-<hex>-partial`, `….json` and `….lock` of the `blobs/` folder. The data
file is sparse and has its full length from the start. The journal never names a byte that has not
reached the disk, so a transfer goes on after a crash from what it says. Whoever transfers holds the
lock; it is removed only together with the others, when the blob is complete.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from modelstore.blobs import Blobs
from modelstore.digest import Digest
from modelstore.files import check_room, make_folders, write_atomically, writing
from modelstore.transfer.ranges import Range, RangeSet

PARTIAL_SUFFIX = "-partial"
JOURNAL_SUFFIX = "-partial.json"
LOCK_SUFFIX = "-partial.lock"

# A journal lists some hundred ranges; anything longer is not ours.
_JOURNAL_LIMIT_BYTES = 1 << 20


class Journal(msgspec.Struct, frozen=True):
    """What is known to be on disk of `total` bytes; `model` is the name that they are for."""

    total: int
    model: str = ""
    completed: tuple[Range, ...] = ()


def read_journal(path: Path) -> Journal | None:
    """The journal in a file; None when there is none, or it cannot be understood."""
    try:
        with path.open("rb") as file:
            journal = msgspec.json.decode(file.read(_JOURNAL_LIMIT_BYTES), type=Journal)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None
    is_sound = all(0 <= start < end <= journal.total for start, end in journal.completed)
    return journal if is_sound else None


def n_bytes_there(blobs: Blobs, key: Digest, total: int) -> int:
    """How much of a blob of this size an interrupted transfer has left."""
    journal = read_journal(blobs.folder / (key.file_name + JOURNAL_SUFFIX))
    if journal is None or journal.total != total:
        return 0
    return RangeSet(journal.completed).n_bytes


class Partial:
    """One blob in the making, open for writing. Safe to share between threads.

    Methods that touch the disk raise DiskFull, StoreNotWritable.
    """

    def __init__(self, blobs: Blobs, key: Digest, total: int, model: str) -> None:
        """Opens what is there, or makes it. The caller holds the lock of `key` (see `locked`)."""
        self.total = total
        self._blobs = blobs
        self._model = model
        self._lock = threading.Lock()
        self._path = blobs.folder / (key.file_name + PARTIAL_SUFFIX)
        self._journal_path = blobs.folder / (key.file_name + JOURNAL_SUFFIX)
        self._completed = self._resumable()
        needed = total - self._completed.n_bytes
        check_room(blobs.folder, needed)
        with self._writing():
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.ftruncate(self._fd, total)
                self.checkpoint()
            except BaseException:
                os.close(self._fd)
                raise

    @property
    def completed(self) -> RangeSet:
        """A copy of what is there, also where it has not reached the disk yet."""
        with self._lock:
            return RangeSet(self._completed.ranges)

    @property
    def n_bytes(self) -> int:
        """How many bytes are there."""
        with self._lock:
            return self._completed.n_bytes

    @property
    def prefix_end(self) -> int:
        """Everything before this offset is there."""
        with self._lock:
            return self._completed.prefix_end

    def write(self, at: int, chunk: bytes) -> None:
        """Puts bytes into their place and counts them as there."""
        with self._writing():
            view = memoryview(chunk)
            done = 0
            while done < len(view):
                done += os.pwrite(self._fd, view[done:], at + done)
        with self._lock:
            self._completed.add(at, at + len(chunk))

    def read(self, at: int, n_bytes: int) -> bytes:
        """Bytes that are there."""
        return os.pread(self._fd, n_bytes, at)

    def read_into(self, at: int, buffer: memoryview) -> memoryview:
        """The part of `buffer` that was filled with bytes that are there."""
        return buffer[: os.preadv(self._fd, [buffer], at)]

    def forget(self) -> None:
        """Counts nothing as there any more; the bytes stay until they are written again."""
        with self._lock:
            self._completed.clear()

    def checkpoint(self) -> None:
        """Lets the journal say what is on disk, after it has got there."""
        with self._lock:
            ranges = self._completed.ranges
        with self._writing():
            if ranges:
                os.fsync(self._fd)
            journal = Journal(self.total, self._model, ranges)
            write_atomically(self._journal_path, msgspec.json.encode(journal))

    def close(self) -> None:
        """Closes the file; harmless twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def publish(self, digest: Digest) -> None:
        """Makes the file the blob `digest`, which it must be."""
        with self._writing():
            os.fsync(self._fd)
            self.close()
            self._blobs.publish(self._path, digest)
        self._journal_path.unlink(missing_ok=True)

    def drop(self) -> None:
        """Removes data and journal."""
        self.close()
        for path in (self._journal_path, self._path):
            path.unlink(missing_ok=True)

    def _resumable(self) -> RangeSet:
        journal = read_journal(self._journal_path)
        if journal is None or journal.total != self.total or not self._path.is_file():
            return RangeSet()
        return RangeSet(journal.completed)

    def _writing(self) -> contextlib.AbstractContextManager[None]:
        # What has arrived stays, so it is the rest that has no room.
        return writing(self._blobs.folder, self.total - self._completed.n_bytes)


@contextlib.contextmanager
def locked(blobs: Blobs, key: Digest) -> Iterator[bool]:
    """Tries to hold the lock of a partial blob for the block; False when somebody else has it.

    Raises: StoreNotWritable, DiskFull.
    """
    lock = FileLock(blobs.folder / (key.file_name + LOCK_SUFFIX), thread_local=False)
    if not _acquired(lock, blobs.folder):
        yield False
        return
    try:
        yield True
    finally:
        if not (blobs.folder / (key.file_name + JOURNAL_SUFFIX)).exists():
            # While it is held: whoever waits for it finds the blob when it is his turn.
            Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def _acquired(lock: FileLock, folder: Path) -> bool:
    with writing(folder):
        make_folders(folder)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return False
        return True
