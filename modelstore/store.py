"""The store of models in one folder: Ollama's layout, kept consistent.

Owns every change of the manifest tree (`manifests/<host>/<namespace>/<model>/<tag>`), and the
decision which blobs are still needed. Changes take the inter-process lock; reading, which is
`catalogue`'s, takes none.
Source: Ollama's store layout. A folder without our marker is used, but pruned only when asked to.
"""

import builtins
import contextlib
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from modelstore.blobs import Blobs
from modelstore.catalogue import Catalogue, Survey
from modelstore.digest import Digest
from modelstore.errors import (
    BlobNotFound,
    ChangedFile,
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
from modelstore.manifest import Manifest, decode_manifest, encode_manifest
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
from modelstore.records import Listing, Record
from modelstore.tree import (
    find_manifest,
    read_manifest,
    remove_empty_folders,
    remove_folder,
    spelling_for_write,
)

MARKER_NAME = ".localrun-store"

_log = logging.getLogger(__name__)


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
        self._catalogue = Catalogue(self._manifests, self.blobs)
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
        return self._catalogue.listings()

    def resolve(self, name: str | ModelName) -> Record:
        """Everything about one model; its name comes back as it is spelled on disk.

        The large blobs are not looked at: see `check_files`.
        Raises: InvalidName, ModelNotFound, CorruptManifest, IncompleteModel (a small layer is
        gone).
        """
        return self._catalogue.resolve(_parsed(name))

    def at_hand(self, name: str | ModelName) -> Record | None:
        """What `resolve` returns, if no file has to be opened for it; None else.

        It takes one `stat`, so an event loop may ask. Raises: InvalidName.
        """
        return self._catalogue.at_hand(_parsed(name))

    def exists(self, name: str | ModelName) -> bool:
        """Tells whether a manifest, good or broken, has this name. Raises: InvalidName."""
        return find_manifest(self._manifests, _parsed(name)) is not None

    def manifest_bytes(self, name: str | ModelName) -> bytes:
        """The manifest exactly as it is on disk.

        Raises: InvalidName, ModelNotFound, CorruptManifest.
        """
        return read_manifest(*self._catalogue.find(_parsed(name)))

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
            found, path = self._catalogue.find(_parsed(name))
        except ModelNotFound:
            return frozenset()
        return self._catalogue.digests(found, path)

    def copy(self, source: str | ModelName, destination: str | ModelName) -> ModelName:
        """Gives a model a second name; blobs are shared, and the manifest is copied as it is.

        Raises: InvalidName, ModelNotFound, CorruptManifest, StoreBusy, StoreNotWritable.
        """
        target = _parsed(destination)
        with self._lock.held():
            found, path = self._catalogue.find(_parsed(source))
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
            needed_before = self._catalogue.digests(found, path)
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
        return self._catalogue.survey()

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
            needed_before = self._catalogue.digests(stored, path)
            with writing(self.root, len(data)):
                if path.is_dir():
                    remove_folder(path, stored)
                make_folders(path.parent)
                write_atomically(path, data)
            self._release(needed_before)
        return stored

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
