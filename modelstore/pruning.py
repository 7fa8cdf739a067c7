"""Which files of a store may go: unneeded blobs and leftovers of what never ended.

Owns the decision and the removal for `Store.prune`, which holds the lock and knows what is needed.
What somebody is at work on is told by locks where there are such, else by age:

    blob that no manifest names     by age: an upload comes before the request that names it
    corrupt blob that was set aside by age
    temporary file                  its writer's lock
    partial download                its lock file, and by age; Ollama's have no lock file
    anything else                   by age

Source: Ollama removes unreferenced and partial blobs that are older than an hour.
"""

import os
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from modelstore.blobs import Blobs
from modelstore.digest import Digest
from modelstore.files import TEMP_PREFIX, is_abandoned
from modelstore.inventory import Piece, look_at, pieces
from modelstore.transfer.partial import LOCK_SUFFIX, PARTIAL_SUFFIX, locked
from modelstore.tree import remove_empty_folders

# As Ollama, which knows no locks: the age at which it gives up its own files.
OLLAMA_AGE_S = 3600.0
# An interrupted download can be resumed; after a week nobody will.
RESUMABLE_AGE_S = 7 * 86400.0
# Between an upload and the request that makes a model of it there are seconds.
COMMAND_AGE_S = 300.0
# A file's time is that of the kernel's last tick, and some file systems' is coarser.
_CLOCK_SLACK_S = 2.0


@dataclass(frozen=True, slots=True)
class PruneRules:
    """What may go. Ages are seconds since the last change; younger files stay."""

    min_age_s: float = OLLAMA_AGE_S
    partial_age_s: float = RESUMABLE_AGE_S
    only_partials: bool = False
    foreign: bool = False  # also from a folder that is not ours
    dry_run: bool = False  # only say what would go


AT_START = PruneRules()
BY_COMMAND = PruneRules(min_age_s=COMMAND_AGE_S, partial_age_s=0.0)


@dataclass(frozen=True, slots=True)
class PruneReport:
    """What went, or would go.

    Nothing does while `unreadable` names a manifest, or where `is_refused`: a foreign folder.
    `n_spared` things were too young, or somebody is at work on them; `n_young` of these were
    younger than `min_age_s`, among them what was uploaded for a model that was not made.
    """

    gone: tuple[Piece, ...] = ()
    n_spared: int = 0
    unreadable: tuple[str, ...] = ()
    is_refused: bool = False
    n_young: int = 0
    min_age_s: float = 0.0

    @property
    def digests(self) -> tuple[Digest, ...]:
        """The blobs among them."""
        return tuple(Digest.parse(piece.name) for piece in self.gone if piece.kind == "blob")

    @property
    def freed_bytes(self) -> int:
        """Bytes on the disk of all of them."""
        return sum(piece.size_bytes for piece in self.gone)


@dataclass(frozen=True, slots=True)
class InUse:
    """What only the store knows: the blobs that must stay, and since when it is at work.

    `delete` removes a blob unless somebody has come to hold it; `oldest_s` says when the operation
    began that is under way for longest, None without any.
    """

    needed: Collection[Digest]
    delete: Callable[[Digest], bool]
    oldest_s: Callable[[], float | None]


def prune_files(blobs: Blobs, manifests: Path, in_use: InUse, rules: PruneRules) -> PruneReport:
    """Removes what is not in use and may go by the rules; OSError passes."""
    now_s = time.time()
    candidates = list(_candidates(blobs, manifests, in_use, rules))
    # Asked after the look: whoever has made one of these had begun by then.
    oldest_s = in_use.oldest_s()
    limit_s = now_s if oldest_s is None else min(now_s, oldest_s - _CLOCK_SLACK_S)
    gone = []
    n_spared = n_young = 0
    for piece, remove in candidates:
        age_s = _age_s(piece, rules)
        if _has_lock(piece):
            is_due = age_s == 0 or piece.changed_at_s <= now_s - age_s
        else:
            is_due = piece.changed_at_s <= limit_s - age_s
        if is_due and remove(piece, rules.dry_run):
            gone.append(piece)
        else:
            n_spared += 1
            n_young += not _has_lock(piece) and piece.changed_at_s > now_s - rules.min_age_s
    if not rules.dry_run:
        _drop_empty_folders(manifests)
    return PruneReport(tuple(gone), n_spared, n_young=n_young, min_age_s=rules.min_age_s)


def remove_partial(blobs: Blobs, piece: Piece, *, dry_run: bool = False) -> bool:
    """Removes the files of a partial download; False when somebody transfers it right now.

    Raises: StoreNotWritable.
    """
    has_lock_file = any(path.name.endswith(LOCK_SUFFIX) for path in piece.paths)
    if not piece.has_lock or (dry_run and not has_lock_file):  # to hold a lock makes its file
        return _remove(piece, dry_run)
    with locked(blobs, Digest.parse(piece.name.removesuffix(PARTIAL_SUFFIX))) as is_free:
        return is_free and _remove(piece, dry_run)


def unneeded(blobs: Blobs, needed: Collection[Digest]) -> list[Piece]:
    """The blobs that are not `needed`."""
    found = []
    for digest in sorted(set(blobs.iterate()).difference(needed)):
        path = blobs.path(digest)
        look = look_at(path)  # a link counts for itself: its target is not ours
        if look is not None:
            found.append(Piece("blob", path.name, (path,), look.st_size, look.st_mtime))
    return found


def _candidates(
    blobs: Blobs, manifests: Path, in_use: InUse, rules: PruneRules
) -> Iterator[tuple[Piece, Callable[[Piece, bool], bool]]]:
    def remove_blob(piece: Piece, dry_run: bool) -> bool:
        return dry_run or in_use.delete(Digest.parse(piece.name))

    def remove_download(piece: Piece, dry_run: bool) -> bool:
        return remove_partial(blobs, piece, dry_run=dry_run)

    for piece in pieces(blobs.folder, manifests):
        if piece.kind == "partial" or (piece.has_lock and not rules.only_partials):
            yield piece, remove_download
        elif not rules.only_partials:
            yield piece, _remove_temp if _has_writers_lock(piece) else _remove
    if not rules.only_partials:
        for piece in unneeded(blobs, in_use.needed):
            yield piece, remove_blob


def _age_s(piece: Piece, rules: PruneRules) -> float:
    if piece.kind == "partial":
        return rules.partial_age_s if piece.has_lock else max(rules.min_age_s, OLLAMA_AGE_S)
    return 0.0 if _has_lock(piece) else rules.min_age_s


def _has_lock(piece: Piece) -> bool:
    return piece.has_lock or _has_writers_lock(piece)


def _has_writers_lock(piece: Piece) -> bool:
    return piece.name.startswith(TEMP_PREFIX) and not piece.paths[0].is_symlink()


def _remove_temp(piece: Piece, dry_run: bool) -> bool:
    return is_abandoned(piece.paths[0], remove=not dry_run)


def _remove(piece: Piece, dry_run: bool) -> bool:
    if not dry_run:
        for path in piece.paths:
            if not path.name.endswith(LOCK_SUFFIX):  # it goes with who holds it
                path.unlink(missing_ok=True)
    return True


def _drop_empty_folders(manifests: Path) -> None:
    for folder, _, _ in os.walk(manifests, topdown=False):
        remove_empty_folders(Path(folder), manifests)
