"""Reading a store's manifests: lists, records and surveys, through caches.

Takes no lock and survives any broken file, so others may change the store meanwhile. Changes
nothing itself.
"""

import hashlib
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

from modelstore.blobs import Blobs
from modelstore.cache import LruCache
from modelstore.digest import Digest
from modelstore.errors import CorruptManifest, ModelNotFound, StoreError
from modelstore.manifest import Manifest, decode_config, decode_manifest
from modelstore.names import ModelName
from modelstore.records import (
    TEXT_LIMIT_BYTES,
    Listing,
    Record,
    build_listing,
    build_record,
    read_part,
)
from modelstore.tree import find_manifest, read_manifest, walk_manifests

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


class Catalogue:
    """What is in a store, read when asked. Safe to share between threads."""

    def __init__(self, manifests: Path, blobs: Blobs) -> None:
        self._manifests = manifests
        self._blobs = blobs
        self._entries: LruCache[_Entry] = LruCache(_LISTINGS_KEPT)
        self._records: LruCache[Record] = LruCache(_RECORDS_KEPT)

    def find(self, wanted: ModelName) -> tuple[ModelName, Path]:
        """The name as it is spelled on disk, and its manifest. Raises: ModelNotFound."""
        found = find_manifest(self._manifests, wanted)
        if found is None:
            raise ModelNotFound(wanted.display())
        return found, self._manifests.joinpath(*found.parts)

    def listings(self) -> list[Listing]:
        """`Store.list`."""
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

    def resolve(self, name: ModelName) -> Record:
        """`Store.resolve`."""
        found, path = self.find(name)

        def read(stamp: _Stamp) -> Record:
            record = self._records.get(stamp)
            if record is None:
                entry = self._entry(found, path, stamp)
                record = build_record(entry.listing, entry.manifest, self._blobs)
                self._records.put(stamp, record)
            return record

        return self._steady(found, path, read)

    def at_hand(self, name: ModelName) -> Record | None:
        """`Store.at_hand`."""
        # A name in other spelling is found by looking around only.
        path = self._manifests.joinpath(*name.parts)
        try:
            return self._records.get(self._stamp(name, path))
        except ModelNotFound:
            return None

    def digests(self, name: ModelName, path: Path) -> frozenset[Digest]:
        """What a manifest keeps alive; nothing when it cannot be read."""
        try:
            return decode_manifest(read_manifest(name, path), name.display()).digests
        except StoreError:
            return frozenset()

    def survey(self) -> Survey:
        """`Store.survey`."""
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
            self._blobs, manifest.config, name.display(), limit_bytes=TEXT_LIMIT_BYTES
        )
        config = decode_config(config_bytes, name.display())
        # In whole numbers: a float of seconds has no room for microseconds of every year.
        modified_at = _EPOCH + timedelta(microseconds=stamp[1] // 1_000)
        digest = hashlib.sha256(data).hexdigest()
        listing = build_listing(name, digest, modified_at, (manifest, config, self._blobs))
        return _Entry(manifest, listing)

    def _stamp(self, name: ModelName, path: Path) -> _Stamp:
        try:
            found = path.stat()
        except OSError:
            raise ModelNotFound(name.display()) from None
        # A rename brings a new inode, so a change within one clock tick is seen too.
        return (name.full(), found.st_mtime_ns, found.st_size, found.st_ino)
