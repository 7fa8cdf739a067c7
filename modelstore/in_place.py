"""Files that serve as blobs where they are: what is remembered of them, and whether it still holds.

Owns the sidecar beside the link in `blobs/`. Compares size, time and inode, never content: a check
costs microseconds and runs before each load. Whoever has hashed the file may note what he found.
"""

import os
from pathlib import Path

import msgspec

from modelstore.errors import GONE, ChangedFile

SIDECAR_SUFFIX = ".in-place"

OTHER_CONTENT = "has another content than when it was registered"


class InPlace(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a file that is used in place looked like when it was hashed."""

    path: str  # absolute
    size_bytes: int
    mtime_ns: int
    inode: int
    is_wrong: bool = False  # its content was found to be another one


def check_link(link: Path, sidecar: Path) -> None:
    """Compares the file behind a linked blob with its sidecar.

    Raises: ChangedFile when it vanished or is another file by size, time or inode.
    """
    target_name = Path(os.readlink(link)).name
    try:
        known = msgspec.json.decode(sidecar.read_bytes(), type=InPlace)
    except FileNotFoundError:
        # A link that somebody made by hand, to keep weights on another disk.
        if link.is_file():
            return
        raise ChangedFile(target_name, GONE) from None
    except (OSError, msgspec.MsgspecError) as error:
        raise ChangedFile(target_name, "cannot be checked: its record is damaged") from error
    found = look(link, known.path)
    if found is None:
        raise ChangedFile(target_name, GONE)
    if known.is_wrong:
        raise ChangedFile(target_name, OTHER_CONTENT)
    if found != known:
        raise ChangedFile(target_name, "has changed since it was registered")


def look(path: Path, recorded_path: str | None = None) -> InPlace | None:
    """What the file (through links) looks like now; None when it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return as_record(found, recorded_path or str(path))


def as_record(found: os.stat_result, path: str) -> InPlace:
    """The record of a file from what `stat` said about it."""
    return InPlace(path, found.st_size, found.st_mtime_ns, found.st_ino)
