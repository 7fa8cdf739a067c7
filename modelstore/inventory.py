"""What lies in a store beside blobs and manifests: downloads and writes that never ended.

Owns the reading of file names in `blobs/` that are no digests. Looks, and removes nothing; which of
it may go is `pruning`'s.
Source: `-partial` and `-partial-<n>` are Ollama's names; the journal and the lock file beside a
partial download, and `-corrupt`, are additions of this project.
"""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from modelstore.blobs import CORRUPT_SUFFIX
from modelstore.errors import InvalidName
from modelstore.files import TEMP_PREFIX
from modelstore.in_place import SIDECAR_SUFFIX
from modelstore.names import ModelName
from modelstore.transfer.partial import (
    JOURNAL_SUFFIX,
    LOCK_SUFFIX,
    PARTIAL_SUFFIX,
    Journal,
    read_journal,
)
from modelstore.transfer.ranges import RangeSet

Kind = Literal["blob", "corrupt", "partial", "leftover"]

_PARTIAL = re.compile(
    rf"(sha256-[0-9a-f]{{64}}){re.escape(PARTIAL_SUFFIX)}.*", re.ASCII | re.DOTALL
)
_CORRUPT = re.compile(r"sha256-[0-9a-f]{64}" + re.escape(CORRUPT_SUFFIX), re.ASCII)
_BLOCK_BYTES = 512  # the unit of `st_blocks`, whatever the file system's own
_SMALL_BYTES = 4096  # a file system may keep the content of such a file without any block


@dataclass(frozen=True, slots=True)
class Piece:
    """One thing that is no part of any model: a file, or the files of one partial download."""

    kind: Kind
    name: str  # of its main file
    paths: tuple[Path, ...]
    size_bytes: int  # on the disk; of a partial download, what has arrived
    changed_at_s: float
    model: str = ""  # whom a partial download is for, as far as its journal says
    total_bytes: int = 0  # what a partial download is to become; 0 = unknown
    has_lock: bool = False  # a partial download whose lock file tells whether it goes on


def pieces(blob_folder: Path, manifests: Path) -> list[Piece]:
    """Everything of the kinds `partial`, `corrupt` and `leftover`; strangers' files stay out."""
    partials: dict[str, list[Path]] = {}
    found: list[Piece | None] = []
    names = set(os.listdir(blob_folder)) if blob_folder.is_dir() else set()
    for name in sorted(names):
        if match := _PARTIAL.fullmatch(name):
            partials.setdefault(match[1], []).append(blob_folder / name)
        elif _CORRUPT.fullmatch(name):
            found.append(_single("corrupt", blob_folder / name))
        elif name.startswith(TEMP_PREFIX) or _is_widowed(name, names):
            found.append(_single("leftover", blob_folder / name))
    found += [_partial(blob_folder / name, paths) for name, paths in partials.items()]
    found += [_single("leftover", path) for path in _unfinished_manifests(manifests)]
    return [piece for piece in found if piece is not None]


def is_for(piece: Piece, name: ModelName) -> bool:
    """Tells whether a partial download is for that model, in any spelling."""
    try:
        found = ModelName.parse(piece.model)
    except InvalidName:
        return False
    return found.full().lower() == name.full().lower()


def look_at(path: Path) -> os.stat_result | None:
    """What the file itself is, a link not followed; None when it is not there."""
    try:
        return path.lstat()
    except OSError:
        return None


def bytes_on_disk(found: os.stat_result) -> int:
    """What a file takes; one with holes takes less than its length."""
    if not stat.S_ISREG(found.st_mode) or found.st_size <= _SMALL_BYTES:
        return found.st_size
    return min(found.st_size, found.st_blocks * _BLOCK_BYTES)


def _partial(stem: Path, paths: list[Path]) -> Piece | None:
    main, journal_path, lock_path = (
        stem.with_name(stem.name + suffix)
        for suffix in (PARTIAL_SUFFIX, JOURNAL_SUFFIX, LOCK_SUFFIX)
    )
    ours = (journal_path, lock_path)
    looks = {path: found for path in paths if (found := look_at(path)) is not None}
    if not looks:
        return None
    journal = (journal_path in looks and read_journal(journal_path)) or Journal(0)
    return Piece(
        # A lock file alone is what is left when a download has ended well.
        "partial" if looks.keys() - {lock_path} else "leftover",
        main.name,
        tuple(looks),
        _downloaded_bytes(journal, [looks[path] for path in looks if path not in ours]),
        max(found.st_mtime for found in looks.values()),
        journal.model,
        journal.total,
        journal_path in looks or lock_path in looks,
    )


def _downloaded_bytes(journal: Journal, data: list[os.stat_result]) -> int:
    if journal.total and data:
        return RangeSet(journal.completed).n_bytes
    return sum(bytes_on_disk(found) for found in data)


def _single(kind: Kind, path: Path) -> Piece | None:
    found = look_at(path)
    if found is None:
        return None
    return Piece(kind, path.name, (path,), bytes_on_disk(found), found.st_mtime)


def _is_widowed(name: str, names: set[str]) -> bool:
    return name.endswith(SIDECAR_SUFFIX) and name.removesuffix(SIDECAR_SUFFIX) not in names


def _unfinished_manifests(manifests: Path) -> Iterator[Path]:
    for folder, _, file_names in os.walk(manifests):
        for name in file_names:
            if name.startswith(TEMP_PREFIX):
                yield Path(folder, name)
