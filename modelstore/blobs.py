"""The content-addressed half of the store: `blobs/sha256-<hex>`.

Owns how bytes become a blob (temporary file, hash while writing, flush, rename), files that are
used in place, the setting aside of what turned out corrupt, and removal. A blob is visible only
after its hash was right. Knows nothing of manifests or formats, so it cannot tell which blobs are
still needed.
Source: Ollama's `blobs/` folder; the `.in-place` sidecar is an addition of this project.
"""

import contextlib
import os
import stat
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from modelstore.digest import CHUNK_BYTES, Digest, HashingWriter, hash_file
from modelstore.errors import BlobNotFound, ChangedFile, DigestMismatch, InvalidDigest
from modelstore.files import (
    check_room,
    commit,
    create_file,
    make_folders,
    sync_folder,
    temp_beside,
    write_atomically,
    writing,
)
from modelstore.in_place import SIDECAR_SUFFIX, as_record, check_link, look
from modelstore.keep import Ongoing

# Added to the name of a blob that has not the content which the name promises.
CORRUPT_SUFFIX = "-corrupt"

# Larger pieces let a copying file system share whole extents; a piece is hashed before the next.
_COPY_BYTES = 8 << 20

# A stream of unknown length leaves so much of the disk free, and is looked at so often: whoever
# fills the last block takes it from every other program.
_RESERVE_BYTES = 8 << 20


class Blobs:
    """The blobs of one store folder. Safe to share between threads."""

    def __init__(self, root: Path, ongoing: Ongoing | None = None) -> None:
        """`ongoing` is told while a blob is being written."""
        self._folder = root / "blobs"
        self._ongoing = ongoing or Ongoing()
        self._visible = threading.Lock()  # makes "is it there?" and the rename one step

    @property
    def folder(self) -> Path:
        """The folder that holds the blobs; missing until the first one is written."""
        return self._folder

    def path(self, digest: Digest) -> Path:
        """Where the blob is, or would be."""
        return self._folder / digest.file_name

    def exists(self, digest: Digest) -> bool:
        """Tells whether the blob can be used; a file in place must be unchanged."""
        path = self.path(digest)
        try:
            mode = path.lstat().st_mode
            if not stat.S_ISLNK(mode):  # one look: lists ask this of every model
                return stat.S_ISREG(mode)
            self.check_in_place(digest)
        except (ChangedFile, FileNotFoundError, NotADirectoryError):
            return False
        return path.is_file()

    def size(self, digest: Digest) -> int:
        """Size in bytes. Raises: BlobNotFound."""
        try:
            return self.path(digest).stat().st_size
        except OSError as error:
            raise BlobNotFound(digest.text) from error

    def read(self, digest: Digest, *, limit_bytes: int) -> bytes:
        """The content of a small blob, at most `limit_bytes` of it. Raises: BlobNotFound."""
        try:
            with self.path(digest).open("rb") as file:
                return file.read(limit_bytes)
        except OSError as error:
            raise BlobNotFound(digest.text) from error

    def writer(self, expected: Digest | None = None, *, total_bytes: int = 0) -> "BlobWriter":
        """A writer for one new blob of `total_bytes` (0 = unknown).

        Raises: DiskFull, StoreNotWritable.
        """
        with writing(self._folder, total_bytes):
            make_folders(self._folder)
        return BlobWriter(self, expected, total_bytes)

    def check_room(self, digest: Digest, total_bytes: int) -> None:
        """Raises: DiskFull when this blob is not stored and cannot be."""
        if not self._is_stored(digest):
            check_room(self._folder, total_bytes)

    def ingest(
        self, chunks: Iterable[bytes], expected: Digest | None, *, total_bytes: int = 0
    ) -> tuple[Digest, bool]:
        """Stores a stream of `total_bytes` (0 = unknown); the flag says whether the blob is new.

        When `expected` is already stored the chunks are still consumed, for the sake of senders
        that do not ask first, but neither hashed nor written.
        Raises: DigestMismatch (nothing is kept), DiskFull, StoreNotWritable.
        """
        if expected is not None and self._is_stored(expected):
            for _ in chunks:
                pass
            self._touch(expected)
            return expected, False
        if total_bytes:
            check_room(self._folder, total_bytes)
        with self.writer(expected, total_bytes=total_bytes) as writer:
            for chunk in chunks:
                writer.write(chunk)
            return writer.commit()

    def temporary(self, needed_bytes: int = 0) -> Path:
        """A name in this folder for a file that another process will write; see `adopt`.

        It does not exist yet. Raises: DiskFull when `needed_bytes` are not free, StoreNotWritable.
        """
        with writing(self._folder, needed_bytes):
            make_folders(self._folder)
        check_room(self._folder, needed_bytes)
        return temp_beside(self._folder / "blob")

    def adopt(self, temp: Path, digest: Digest) -> bool:
        """Makes a finished file in this folder the blob `digest`, which its content must have.

        True when the blob is new. Raises: DiskFull, StoreNotWritable.
        """
        with writing(self._folder):
            return self.publish(temp, digest)

    def link_in_place(
        self,
        path: Path,
        digest: Digest | None = None,
        *,
        as_hashed: os.stat_result | None = None,
    ) -> Digest:
        """Registers a file where it is: a link, and a sidecar that tells when it changes.

        A caller that has hashed the file gives the digest and what `stat` said before. A stored
        copy of the same content is preferred and kept.
        Raises: SourceNotAllowed, ChangedFile (it changed while it was read), StoreNotWritable.
        """
        path = Path(os.path.abspath(path))
        before = look(path) if as_hashed is None else as_record(as_hashed, str(path))
        if digest is None:
            digest = hash_file(path)
        if before is None or look(path) != before:
            raise ChangedFile(path.name, "changed while it was being read")
        with self._visible, writing(self._folder):
            make_folders(self._folder)
            if self._is_stored(digest):
                return digest
            # The sidecar comes first: a link without one would be trusted for ever.
            write_atomically(self._sidecar(digest), msgspec.json.encode(before))
            link = temp_beside(self.path(digest))
            link.symlink_to(path)
            link.replace(self.path(digest))
            sync_folder(self._folder)
        return digest

    def check_in_place(self, digest: Digest) -> None:
        """Returns at once for a stored blob; a file in place is compared with its sidecar.

        Raises: ChangedFile when it vanished or is another file by size, time or inode.
        """
        path = self.path(digest)
        if not path.is_symlink():
            return
        try:
            check_link(path, self._sidecar(digest))
        except (ChangedFile, FileNotFoundError):
            if path.is_symlink():  # else it was removed meanwhile, with all that belongs to it
                raise

    def confirm(self, digest: Digest, as_hashed: os.stat_result) -> bool:
        """Registers a file in place again, whose content was found to be right.

        `as_hashed` is what `stat` said before. False when nothing had to be changed, as for a link
        that somebody made by hand.
        Raises: ChangedFile (it changed while it was read), StoreNotWritable.
        """
        try:
            self.check_in_place(digest)
        except ChangedFile:
            self._note(digest, as_hashed, is_wrong=False)
            return True
        return False

    def doubt(self, digest: Digest, as_hashed: os.stat_result) -> None:
        """Notes that a file in place has the wrong content: it serves no more until `confirm`.

        Raises: ChangedFile (it changed while it was read), StoreNotWritable.
        """
        self._note(digest, as_hashed, is_wrong=True)

    def is_registered(self, digest: Digest) -> bool:
        """Tells whether this is a file in place with a record; links by hand have none."""
        return self.path(digest).is_symlink() and self._sidecar(digest).exists()

    def in_place_source(self, digest: Digest) -> Path | None:
        """The file that a linked blob points to; None for a stored blob."""
        try:
            return Path(os.readlink(self.path(digest)))
        except OSError:
            return None

    def delete(self, digest: Digest) -> None:
        """Removes a blob if it is there; of a file in place only the link goes.

        Raises: StoreNotWritable.
        """
        with self._visible, writing(self._folder):
            self.path(digest).unlink(missing_ok=True)
            self._sidecar(digest).unlink(missing_ok=True)

    def set_aside(self, digest: Digest, looked_at: os.stat_result) -> bool:
        """Renames a corrupt stored blob, so that nothing uses it; who has it open keeps it.

        False when the blob is no longer the file that was `looked_at`. Raises: StoreNotWritable.
        """
        path = self.path(digest)
        with self._visible, writing(self._folder):
            try:
                if not os.path.samestat(path.lstat(), looked_at):
                    return False
            except OSError:
                return False
            path.replace(path.with_name(path.name + CORRUPT_SUFFIX))
            sync_folder(self._folder)
            return True

    def iterate(self) -> Iterator[Digest]:
        """Yields every blob; temporary, partial and foreign files are passed over."""
        try:
            names = os.listdir(self._folder)
        except OSError:
            return
        for name in names:
            if name.startswith("sha256-"):
                with contextlib.suppress(InvalidDigest):
                    yield Digest.parse(name)

    def _is_stored(self, digest: Digest) -> bool:
        path = self.path(digest)
        return path.is_file() and not path.is_symlink()

    def _note(self, digest: Digest, as_hashed: os.stat_result, *, is_wrong: bool) -> None:
        path = self.path(digest)
        with self._visible, writing(self._folder):
            source = self.in_place_source(digest)
            if source is None:
                return  # its place was taken by a stored blob, which was hashed
            record = as_record(as_hashed, str(source))
            if look(path, str(source)) != record:
                raise ChangedFile(source.name, "changed while it was being read")
            noted = msgspec.structs.replace(record, is_wrong=is_wrong)
            write_atomically(self._sidecar(digest), msgspec.json.encode(noted))

    def _touch(self, digest: Digest) -> None:
        # Pruning spares young blobs; one that was just asked for again counts as young.
        with contextlib.suppress(OSError):
            os.utime(self.path(digest))

    def _sidecar(self, digest: Digest) -> Path:
        return self._folder / (digest.file_name + SIDECAR_SUFFIX)

    def publish(self, temp: Path, digest: Digest) -> bool:
        """Gives a finished, hashed file of the same folder its name.

        False when the blob was there already; the file is gone in any case. OSError passes.
        """
        with self._visible:
            if self._is_stored(digest):
                self._touch(digest)
                temp.unlink()
                return False
            commit(temp, self.path(digest))  # over a link: stored bytes outlive somebody's file
            self._sidecar(digest).unlink(missing_ok=True)
            return True


class BlobWriter:
    """One blob in the making; a context manager that leaves nothing behind unless committed.

    For one thread at a time. `write` and `copy_from` raise DiskFull and StoreNotWritable.
    """

    def __init__(self, blobs: Blobs, expected: Digest | None, total_bytes: int) -> None:
        self._blobs = blobs
        self._expected = expected
        self._total_bytes = total_bytes
        self._checked_bytes = 0
        self._hash = HashingWriter()
        self._temp = temp_beside(blobs.folder / "blob")
        self._token = blobs._ongoing.begin()
        try:
            with self._writing():
                self._file = create_file(self._temp)
        except BaseException:
            blobs._ongoing.end(self._token)
            raise

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return self._hash.size_bytes

    def write(self, chunk: bytes) -> None:
        """Appends to the temporary file and to the hash."""
        if not self._total_bytes and self.size_bytes >= self._checked_bytes + _RESERVE_BYTES:
            self._checked_bytes = self.size_bytes
            needed = self.size_bytes + _RESERVE_BYTES
            check_room(self._blobs.folder, needed, self.size_bytes)
        with self._writing(len(chunk)):
            self._file.write(chunk)
        self._hash.write(chunk)

    def copy_from(self, source: BinaryIO) -> Iterator[int]:
        """Copies the rest of `source`, yielding the bytes copied so far after each piece.

        The kernel copies where it can, which on some file systems shares the data instead of
        doubling it; the hash is taken from the copy, so a source that changes does no harm.
        """
        yield from self._kernel_copy(source)
        check_room(self._blobs.folder, self._total_bytes, self.size_bytes)
        while chunk := source.read(CHUNK_BYTES):
            self.write(chunk)
            yield self.size_bytes

    def commit(self) -> tuple[Digest, bool]:
        """Publishes the blob; the flag says whether it is new. Raises: DigestMismatch, DiskFull."""
        digest = self._hash.digest
        if self._expected is not None and digest != self._expected:
            self.abort()
            raise DigestMismatch(self._expected.text, digest.text)
        with self._writing():
            # Flushed before the lock that makes it visible is taken: gigabytes take their time.
            self._file.flush()
            os.fsync(self._file.fileno())
            is_new = self._blobs.publish(self._temp, digest)
        self._end()  # not before: a file that is closed counts as abandoned
        return digest, is_new

    def abort(self) -> None:
        """Drops what was written; harmless after `commit`."""
        self._end()
        with contextlib.suppress(OSError):
            self._temp.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()

    def _end(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        self._blobs._ongoing.end(self._token)

    def _kernel_copy(self, source: BinaryIO) -> Iterator[int]:
        if sys.platform != "linux" or self.size_bytes:
            return
        with self._writing():
            fd = self._file.fileno()
            while True:
                try:
                    n_bytes = os.copy_file_range(source.fileno(), fd, _COPY_BYTES)
                except OSError:
                    if self.size_bytes == 0:
                        return  # not between these file systems; the caller copies by hand
                    raise
                if n_bytes == 0:
                    self._file.seek(self.size_bytes)
                    return
                self._hash_back(fd, n_bytes)
                yield self.size_bytes

    def _hash_back(self, fd: int, n_bytes: int) -> None:
        end = self.size_bytes + n_bytes
        while self.size_bytes < end:
            piece = os.pread(fd, min(CHUNK_BYTES, end - self.size_bytes), self.size_bytes)
            self._hash.write(piece)

    def _writing(self, more_bytes: int = 0) -> contextlib.AbstractContextManager[None]:
        done = self.size_bytes
        return writing(self._blobs.folder, self._total_bytes or done + more_bytes, done)
