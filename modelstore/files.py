"""The few file operations on which the store's promises rest.

Owns write-then-rename (`commit`), temporary files that tell whether their writer lives, folder
creation that survives a crash, opening of sources that could be anything (a device, a pipe), and
the translation of the operating system's errors into the store's. Knows nothing of blobs, names or
formats.
"""

import contextlib
import errno
import fcntl
import getpass
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from modelstore.errors import DiskFull, SourceNotAllowed, StoreNotWritable

# The leading dot keeps temporary files out of every listing: names and digests never start with it.
TEMP_PREFIX = ".tmp-"


def temp_beside(final: Path) -> Path:
    """A fresh temporary name in the folder of `final`, so that the rename stays on one disk."""
    return final.with_name(f"{TEMP_PREFIX}{secrets.token_hex(8)}")


def create_file(path: Path) -> BinaryIO:
    """Opens a new file for reading and writing; 0644 less the umask, as Ollama's blobs have.

    It is locked for as long as it is open, which no crash can outlive: see `is_abandoned`.
    """
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        # Waits only while somebody looks whether the file is abandoned.
        with contextlib.suppress(OSError):  # not every network file system has locks
            fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return open(fd, "w+b")
        os.close(fd)  # it was taken for abandoned before it was locked


def is_abandoned(temp: Path, *, remove: bool) -> bool:
    """Tells whether nobody writes a file of `create_file` any more; then it may go at once.

    False also where that cannot be told. OSError of the removal is the caller's to translate.
    """
    try:
        fd = os.open(temp, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if remove:
            temp.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def commit(temp: Path, final: Path) -> None:
    """Makes a finished temporary file visible under its final name.

    Data reaches the disk before the name does, and the name before this returns: after a crash the
    name holds the old content, the new content or nothing, never a part. `temp` and `final` must
    share a folder. OSError is the caller's to translate (see `writing`).
    """
    fd = os.open(temp, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(temp, final)
    sync_folder(final.parent)


def write_atomically(final: Path, data: bytes) -> None:
    """Writes a small file through `commit`; leaves no temporary file behind on failure."""
    temp = temp_beside(final)
    try:
        with create_file(temp) as file:
            file.write(data)
            file.flush()
            commit(temp, final)  # before it is closed: from then on it would count as abandoned
    except BaseException:
        temp.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Flushes a folder's entries; file systems that cannot do this are left alone."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)


def make_folders(folder: Path) -> None:
    """Creates `folder` and its parents, each flushed into its parent; links are followed."""
    if folder.is_dir():
        return
    make_folders(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def open_regular(path: Path) -> BinaryIO:
    """Opens a regular file for reading without ever blocking on a pipe or touching a device.

    Raises: SourceNotAllowed, naming the file by its base name.
    """
    try:
        # O_NONBLOCK: opening a pipe that has no writer would otherwise wait for ever.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "the name is not valid"
        raise SourceNotAllowed(f"cannot read `{path.name}`: {reason}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise SourceNotAllowed(f"`{path.name}` is not a regular file")
    return open(fd, "rb")


@contextlib.contextmanager
def writing(folder: Path, needed_bytes: int = 0, written_bytes: int = 0) -> Iterator[None]:
    """Translates errors of a write below `folder`.

    `needed_bytes` is 0 for what takes a few KB; `written_bytes` of it are on the disk already and
    go again with the failure, so they count as free.
    Raises: DiskFull, StoreNotWritable; other OSErrors pass.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(needed_bytes, free_bytes(folder) + written_bytes) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            problem = (error.strerror or "permission denied").lower()
            raise StoreNotWritable(folder.name, current_user(), problem) from error
        raise


def check_room(folder: Path, needed_bytes: int, written_bytes: int = 0) -> None:
    """Raises: DiskFull when `needed_bytes` do not fit; `written_bytes` as for `writing`.

    What cannot be told, on some network file systems, counts as room enough.
    """
    try:
        disk = shutil.disk_usage(folder)
    except OSError:
        return
    free = disk.free + written_bytes
    if disk.total and needed_bytes > free:
        raise DiskFull(needed_bytes, free)


def free_bytes(folder: Path) -> int:
    """Bytes that this user may still write on the disk of `folder`; 0 when unknown."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


def current_user() -> str:
    """The name of the user that this process runs as, for messages about permissions."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
