"""The store of models in one folder: Ollama's layout, kept consistent.

Owns the manifest tree (`manifests/<host>/<namespace>/<model>/<tag>`), the matching of names without
regard to case, and the decision which blobs are still needed. Reading takes no lock and survives
any broken file; changes take the inter-process lock and are written through `commit`.
Source: Ollama's store layout. A folder without our marker is used, but pruned only when asked to.
"""

import builtins
import contextlib
import hashlib
import itertools
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

from modelstore.blobs import Blobs
from modelstore.cache import LruCache
from modelstore.digest import Digest
from modelstore.errors import (
    BlobNotFound,
    ChangedFile,
    CorruptManifest,
    DownloadUnderway,
    IncompleteModel,
    ModelNotFound,
    StoreError,
    StoreNotWritable,
)
from modelstore.files import current_user, make_folders, sync_folder, write_atomically, writing
from modelstore.inventory import Piece, is_for, pieces
from modelstore.keep import Keep, Ongoing, Pins
from modelstore.locks import StoreLock
from modelstore.manifest import (
    Manifest,
    decode_config,
    decode_manifest,
    encode_manifest,
)
from modelstore.names import ModelName
from modelstore.pruning import (
    AT_START,
    OLLAMA_AGE_S,
    InUse,
    PruneReport,
    PruneRules,
    prune_files,
    remove_partial,
)
from modelstore.records import (
    TEXT_LIMIT_BYTES,
    Listing,
    Record,
    build_listing,
    build_record,
    read_part,
)
from modelstore.tree import (
    find_manifest,
    read_manifest,
    remove_empty_folders,
    remove_folder,
    spelling_for_write,
    walk_manifests,
)

MARKER_NAME = ".localrun-store"

_LISTINGS_KEPT = 4096  # a listing is about 1 KiB
_RECORDS_KEPT = 64  # a record may hold long licenses

# Each further read means that somebody has replaced the model since the one before.
_MAX_READS = 10
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_log = logging.getLogger(__name__)

# Of a manifest: full name, time of the last change in ns, size, inode.
_Stamp = tuple[str, int, int, int]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Entry:
    manifest: Manifest
    listing: Listing


@dataclass(frozen=True, slots=True)
class Survey:
    """Every manifest of a store. `unreadable` says of each other one what is wrong with it."""

    manifests: dict[ModelName, Manifest]
    unreadable: dict[str, str]

    @property
    def needed(self) -> frozenset[Digest]:
        """Every blob that some manifest names."""
        return frozenset().union(*(one.digests for one in self.manifests.values()))


class Store:
    """One store folder. Safe to share between threads; several processes may use it at once.

    `.blobs` is the content-addressed half.
    """

    def __init__(self, root: Path) -> None:
        """Opens or creates the folder; a store that cannot be written can still be read.

        Raises: StoreNotWritable when the folder does not exist and cannot be made.
        """
        self.root = root
        self._ongoing = Ongoing()
        self.blobs = Blobs(root, self._ongoing)
        self._manifests = root / "manifests"
        self._lock = StoreLock(root)
        self._pins = Pins()
        self._entries: LruCache[_Entry] = LruCache(_LISTINGS_KEPT)
        self._records: LruCache[Record] = LruCache(_RECORDS_KEPT)
        self._open()

    @property
    def is_ours(self) -> bool:
        """True when the folder has our marker: it was new or empty when we first opened it."""
        return (self.root / MARKER_NAME).is_file()

    def list(self) -> list[Listing]:
        """Every model that can be read, latest change first.

        Files with illegal names are passed over; a model whose manifest or config is broken is
        logged and left out.
        """
        listings = []
        for name, path in walk_manifests(self._manifests):
            try:
                entry = self._steady(name, path, partial(self._entry, name, path))
                listings.append(entry.listing)
            except ModelNotFound:
                pass  # removed since the walk began
            except StoreError as error:
                _log.warning("%s is not listed: %s", name, error)
        listings.sort(key=lambda listing: (listing.modified_at, listing.name.full()), reverse=True)
        return listings

    def resolve(self, name: str | ModelName) -> Record:
        """Everything about one model; its name comes back as it is spelled on disk.

        The large blobs are not looked at: see `check_files`.
        Raises: InvalidName, ModelNotFound, CorruptManifest, IncompleteModel (a small layer is
        gone).
        """
        found, path = self._find(name)

        def read(stamp: _Stamp) -> Record:
            record = self._records.get(stamp)
            if record is None:
                entry = self._entry(found, path, stamp)
                record = build_record(entry.listing, entry.manifest, self.blobs)
                self._records.put(stamp, record)
            return record

        return self._steady(found, path, read)

    def at_hand(self, name: str | ModelName) -> Record | None:
        """What `resolve` returns, if no file has to be opened for it; None else.

        It takes one `stat`, so an event loop may ask. Raises: InvalidName.
        """
        wanted = _parsed(name)  # a name in other spelling is found by looking around only
        try:
            return self._records.get(self._stamp(wanted, self._manifests.joinpath(*wanted.parts)))
        except ModelNotFound:
            return None

    def exists(self, name: str | ModelName) -> bool:
        """Tells whether a manifest, good or broken, has this name. Raises: InvalidName."""
        return find_manifest(self._manifests, _parsed(name)) is not None

    def manifest_bytes(self, name: str | ModelName) -> bytes:
        """The manifest exactly as it is on disk.

        Raises: InvalidName, ModelNotFound, CorruptManifest.
        """
        return read_manifest(*self._find(name))

    def check_files(self, record: Record) -> None:
        """Checks that the files which the engine will open are there and unchanged.

        Raises: IncompleteModel, ChangedFile, ModelNotFound (it was removed meanwhile).
        """
        try:
            self.check_blobs(record.name, record.weight_digests)
        except (IncompleteModel, ChangedFile):
            if not self.exists(record.name):
                raise ModelNotFound(record.name.display()) from None
            raise

    def check_blobs(self, name: ModelName, digests: Iterable[Digest]) -> None:
        """Checks that these blobs of a model are there and unchanged.

        Raises: IncompleteModel, ChangedFile.
        """
        model = name.display()
        for digest in digests:
            try:
                self.blobs.check_in_place(digest)
                self.blobs.size(digest)
            except ChangedFile as error:
                raise ChangedFile(error.name, error.problem, model) from error
            except BlobNotFound as error:
                raise IncompleteModel(model, digest.text) from error

    @contextlib.contextmanager
    def keep(self) -> Iterator[Keep]:
        """Keeps blobs from being removed while a model is being made of them.

        At the end, what was noted as new and is named by no manifest is removed again.
        """
        keep = Keep(self._pins)
        try:
            with self._ongoing.during():
                yield keep
        finally:
            due = keep.end()
            try:
                if due:
                    with self._lock.held():
                        self._release(due)
            except StoreError as error:  # must not hide why the block ended
                _log.warning("unneeded blobs stay until the next prune: %s", error)

    def write_manifest(self, name: str | ModelName, manifest: Manifest) -> ModelName:
        """Makes a model visible; a model of the same name, in any spelling, is replaced.

        Blobs that only the replaced manifest needed are removed. Returns the name as stored.
        Raises: InvalidName, BlobNotFound (a layer is missing), DiskFull, StoreBusy,
        StoreNotWritable.
        """
        return self._write(_parsed(name), encode_manifest(manifest), manifest.digests)

    def write_manifest_bytes(self, name: str | ModelName, data: bytes) -> ModelName:
        """`write_manifest` of a manifest that is kept byte for byte, as a registry has it.

        Raises: CorruptManifest, and what `write_manifest` does.
        """
        parsed = _parsed(name)
        return self._write(parsed, data, decode_manifest(data, parsed.display()).digests)

    def digests(self, name: str | ModelName) -> frozenset[Digest]:
        """What the manifest of this name keeps alive; nothing when there is none that can be read.

        Raises: InvalidName.
        """
        try:
            found, path = self._find(name)
        except ModelNotFound:
            return frozenset()
        return self._digests_of(found, path)

    def copy(self, source: str | ModelName, destination: str | ModelName) -> ModelName:
        """Gives a model a second name; blobs are shared, and the manifest is copied as it is.

        Raises: InvalidName, ModelNotFound, CorruptManifest, StoreBusy, StoreNotWritable.
        """
        target = _parsed(destination)
        with self._lock.held():
            found, path = self._find(source)
            if spelling_for_write(self._manifests, target) == found:
                return found
            data = read_manifest(found, path)
            return self._write(target, data, decode_manifest(data, found.display()).digests)

    def delete(self, name: str | ModelName) -> ModelName:
        """Removes a model, broken or not, and the blobs that no other model needs.

        Its partial downloads go too; a model may consist of nothing else. Returns the name that was
        removed, as it was spelled on disk.
        Raises: InvalidName, ModelNotFound, CorruptManifest (a folder in its place is not empty),
        DownloadUnderway, StoreBusy, StoreNotWritable.
        """
        with self._lock.held():
            wanted = _parsed(name)
            partials = [piece for piece in self.pieces() if is_for(piece, wanted)]
            found = find_manifest(self._manifests, wanted)
            if found is None and not partials:
                raise ModelNotFound(wanted.display())
            are_gone = [remove_partial(self.blobs, piece) for piece in partials]
            if found is None:
                if not all(are_gone):
                    raise DownloadUnderway(wanted.display())
                return wanted
            path = self._manifests.joinpath(*found.parts)
            needed_before = self._digests_of(found, path)
            with writing(self.root):
                if path.is_dir():
                    remove_folder(path, found)
                else:
                    path.unlink()
                sync_folder(path.parent)
                remove_empty_folders(path.parent, self._manifests)
            self._release(needed_before)
        return found

    def prune(self, rules: PruneRules = AT_START) -> PruneReport:
        """Removes blobs that no manifest needs, and leftovers of what never ended.

        Nothing goes from a folder that is not ours, unless the rules say so, or while a manifest is
        unreadable: the blobs that it needs are not known.
        Raises: StoreBusy, StoreNotWritable.
        """
        if not self.is_ours:
            if not rules.foreign:
                return PruneReport(is_refused=True)
            # Its owner may be at work there, and knows none of our locks.
            rules = replace(
                rules,
                min_age_s=max(rules.min_age_s, OLLAMA_AGE_S),
                partial_age_s=max(rules.partial_age_s, OLLAMA_AGE_S),
            )
        with self._lock.held():
            survey = self.survey()
            if survey.unreadable:
                for name, problem in survey.unreadable.items():
                    _log.warning("nothing is pruned while `%s` is unreadable: %s", name, problem)
                return PruneReport(unreadable=tuple(sorted(survey.unreadable)))
            with writing(self.root):
                in_use = InUse(
                    survey.needed | self._pins.held,
                    lambda digest: self._pins.remove_unless_held(digest, self.blobs.delete),
                    lambda: self._ongoing.oldest_s,
                )
                return prune_files(self.blobs, self._manifests, in_use, rules)

    def survey(self) -> Survey:
        """Reads every manifest, and nothing else."""
        manifests: dict[ModelName, Manifest] = {}
        problems: dict[str, str] = {}
        folders: list[str] = []
        for name, path in walk_manifests(self._manifests, folders):
            try:
                manifests[name] = decode_manifest(read_manifest(name, path), name.display())
            except ModelNotFound:
                continue
            except CorruptManifest as error:
                problems[name.display()] = error.problem
        problems |= {f"{folder or '.'}/": "the folder cannot be read" for folder in folders}
        return Survey(manifests, problems)

    def pieces(self) -> builtins.list[Piece]:
        """What lies here that is no part of any model: partial downloads and other leftovers."""
        return pieces(self.blobs.folder, self._manifests)

    def _open(self) -> None:
        try:
            with writing(self.root):
                is_new = not self.root.exists() or not any(self.root.iterdir())
                make_folders(self.root)
                if is_new:
                    write_atomically(self.root / MARKER_NAME, b"")
                make_folders(self._manifests)
                make_folders(self.blobs.folder)
        except StoreError:
            if not os.access(self.root, os.R_OK | os.X_OK):
                raise
        except OSError as error:  # such as a file in the place of a folder
            raise StoreNotWritable(self.root.name, current_user(), str(error.strerror)) from error

    def _write(self, name: ModelName, data: bytes, needed: Iterable[Digest]) -> ModelName:
        with self._lock.held():
            for digest in needed:
                # Under the lock: nobody can remove the blob between this look and the rename.
                if not self.blobs.path(digest).exists():
                    raise BlobNotFound(digest.text)
            stored = spelling_for_write(self._manifests, name)
            path = self._manifests.joinpath(*stored.parts)
            needed_before = self._digests_of(stored, path)
            with writing(self.root, len(data)):
                if path.is_dir():
                    remove_folder(path, stored)
                make_folders(path.parent)
                write_atomically(path, data)
            self._release(needed_before)
        return stored

    def _find(self, name: str | ModelName) -> tuple[ModelName, Path]:
        wanted = _parsed(name)
        found = find_manifest(self._manifests, wanted)
        if found is None:
            raise ModelNotFound(wanted.display())
        return found, self._manifests.joinpath(*found.parts)

    def _steady(self, name: ModelName, path: Path, read: Callable[[_Stamp], _T]) -> _T:
        """What `read` makes of a manifest that may be replaced or removed at any moment.

        Its blobs go with it, so an error counts only while the manifest is still the same.
        """
        for n_tries in itertools.count(1):
            stamp = self._stamp(name, path)
            try:
                return read(stamp)
            except StoreError:
                if self._stamp(name, path) == stamp or n_tries == _MAX_READS:
                    raise
        raise AssertionError("unreachable")

    def _entry(self, name: ModelName, path: Path, stamp: _Stamp) -> _Entry:
        entry = self._entries.get(stamp)
        if entry is None:
            entry = self._load(name, path, stamp)
            self._entries.put(stamp, entry)
        return entry

    def _load(self, name: ModelName, path: Path, stamp: _Stamp) -> _Entry:
        data = read_manifest(name, path)
        manifest = decode_manifest(data, name.display())
        config_bytes = read_part(
            self.blobs, manifest.config, name.display(), limit_bytes=TEXT_LIMIT_BYTES
        )
        config = decode_config(config_bytes, name.display())
        # In whole numbers: a float of seconds has no room for microseconds of every year.
        modified_at = _EPOCH + timedelta(microseconds=stamp[1] // 1_000)
        digest = hashlib.sha256(data).hexdigest()
        listing = build_listing(name, digest, modified_at, (manifest, config, self.blobs))
        return _Entry(manifest, listing)

    def _stamp(self, name: ModelName, path: Path) -> _Stamp:
        try:
            found = path.stat()
        except OSError:
            raise ModelNotFound(name.display()) from None
        # A rename brings a new inode, so a change within one clock tick is seen too.
        return (name.full(), found.st_mtime_ns, found.st_size, found.st_ino)

    def _digests_of(self, name: ModelName, path: Path) -> frozenset[Digest]:
        """What a manifest that is about to go keeps alive; nothing when it cannot be read."""
        try:
            return decode_manifest(read_manifest(name, path), name.display()).digests
        except StoreError:
            return frozenset()

    def _release(self, candidates: frozenset[Digest] | set[Digest]) -> None:
        if not candidates:
            return
        survey = self.survey()
        if survey.unreadable:
            named = ", ".join(sorted(survey.unreadable))
            _log.warning("no blob is removed while a manifest is unreadable: %s", named)
            return
        for digest in candidates - survey.needed:
            self._pins.remove_unless_held(digest, self.blobs.delete)


def _parsed(name: str | ModelName) -> ModelName:
    return name if isinstance(name, ModelName) else ModelName.parse(name)
