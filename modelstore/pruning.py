"""Which files of a store may go: unneeded blobs and leftovers of writes that never ended.

Owns the decision and the removal for `Store.prune`, which holds the lock and knows what is needed.
Source: Ollama removes unreferenced and partial blobs that are older than an hour.
"""

import os
import re
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from modelstore.blobs import Blobs
from modelstore.digest import Digest
from modelstore.files import TEMP_PREFIX
from modelstore.in_place import SIDECAR_SUFFIX
from modelstore.tree import remove_empty_folders

_PARTIAL = re.compile(r"sha256-[0-9a-f]{64}-partial.*", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class PruneReport:
    """What went: blobs, other leftovers, and the bytes of both."""

    digests: tuple[Digest, ...] = ()
    n_leftovers: int = 0
    freed_bytes: int = 0


def prune_files(
    blobs: Blobs,
    manifests: Path,
    needed: Collection[Digest],
    *,
    min_age_s: float,
) -> PruneReport:
    """Removes what is not `needed` and older than `min_age_s`; OSError passes."""
    newest = time.time() - min_age_s
    unneeded = []
    n_leftovers = freed_bytes = 0
    for digest in sorted(set(blobs.iterate()).difference(needed)):
        size_bytes = _size_if_older(blobs.path(digest), newest)
        if size_bytes is not None:
            blobs.delete(digest)
            unneeded.append(digest)
            freed_bytes += size_bytes
    for path in _leftovers(blobs.folder, manifests):
        size_bytes = _size_if_older(path, newest)
        if size_bytes is not None:
            path.unlink(missing_ok=True)
            n_leftovers += 1
            freed_bytes += size_bytes
    _drop_empty_folders(manifests)
    return PruneReport(tuple(unneeded), n_leftovers, freed_bytes)


def _leftovers(blob_folder: Path, manifests: Path) -> Iterator[Path]:
    # Only names that we or a download give to unfinished files: strangers' files stay.
    names = set(os.listdir(blob_folder)) if blob_folder.is_dir() else set()
    for name in names:
        is_unfinished = name.startswith(TEMP_PREFIX) or _PARTIAL.fullmatch(name)
        is_widowed = (
            name.endswith(SIDECAR_SUFFIX) and name.removesuffix(SIDECAR_SUFFIX) not in names
        )
        if is_unfinished or is_widowed:
            yield blob_folder / name
    for folder, _, file_names in os.walk(manifests):
        for name in file_names:
            if name.startswith(TEMP_PREFIX):
                yield Path(folder, name)


def _size_if_older(path: Path, newest: float) -> int | None:
    try:
        found = path.lstat()  # a link counts for itself: its target is not ours
    except OSError:
        return None
    return found.st_size if found.st_mtime <= newest else None


def _drop_empty_folders(manifests: Path) -> None:
    for folder, _, _ in os.walk(manifests, topdown=False):
        remove_empty_folders(Path(folder), manifests)
