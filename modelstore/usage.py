"""What a store takes on the disk, and what of it would come free.

Looks at manifests and files, changes nothing and takes no lock: figures of a store that changes
meanwhile may be those of before or after. Every blob counts once, however many models name it;
files that are used in place are not the store's and count for themselves.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from modelstore.catalogue import Survey
from modelstore.digest import Digest
from modelstore.files import free_bytes
from modelstore.inventory import Piece
from modelstore.manifest import Manifest
from modelstore.names import ModelName
from modelstore.pruning import unneeded
from modelstore.store import Store

# A store that changes all the time is shown as it is.
_MAX_LOOKS = 3


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """Bytes of one model: `own` ones come free with it, `shared` ones are others' too."""

    name: ModelName
    own_bytes: int
    shared_bytes: int
    in_place_bytes: int
    n_missing: int  # blobs that are not there, or files in place

    @property
    def size_bytes(self) -> int:
        """All that it needs, wherever that lies."""
        return self.own_bytes + self.shared_bytes + self.in_place_bytes


@dataclass(frozen=True, slots=True)
class Usage:
    """The whole store. Sizes in bytes; `unreadable` are names of manifests that cannot be read."""

    models: tuple[ModelUsage, ...]  # the largest first
    unreadable: tuple[str, ...]
    n_blobs: int
    blobs_bytes: int
    unreferenced: tuple[Piece, ...]  # blobs that no manifest names
    pieces: tuple[Piece, ...]  # partial downloads, corrupt blobs, leftovers
    n_in_place: int
    in_place_bytes: int
    free_bytes: int  # of the disk, for this user


@dataclass(frozen=True, slots=True)
class _Blob:
    size_bytes: int
    is_in_place: bool


def usage(store: Store) -> Usage:
    """The figures of now. OSError of a folder that cannot be listed passes."""
    survey = store.survey()
    for _ in range(_MAX_LOOKS):
        found = _usage(store, survey)
        if not any(model.n_missing for model in found.models):
            break
        before, survey = survey, store.survey()
        if survey == before:
            break  # else the blobs may have gone with a model that was removed meanwhile
    return found


def _usage(store: Store, survey: Survey) -> Usage:
    # The pieces first: what a download turns into a blob meanwhile is not missed by both.
    pieces = tuple(store.pieces())
    digests = set(store.blobs.iterate())
    blobs = {digest: _look(store, digest) for digest in digests | survey.needed}
    here = {digest: blob for digest, blob in blobs.items() if blob is not None}
    n_names = Counter(digest for one in survey.manifests.values() for digest in one.digests)
    models = [_model(name, one, here, n_names) for name, one in survey.manifests.items()]
    models.sort(key=lambda model: (-model.size_bytes, model.name.full()))
    stored = [blob.size_bytes for blob in here.values() if not blob.is_in_place]
    in_place = [blob.size_bytes for blob in here.values() if blob.is_in_place]
    return Usage(
        models=tuple(models),
        unreadable=tuple(sorted(survey.unreadable)),
        n_blobs=len(stored),
        blobs_bytes=sum(stored),
        # What an unreadable manifest needs is not known, so nothing can be called unreferenced.
        unreferenced=() if survey.unreadable else tuple(unneeded(store.blobs, survey.needed)),
        pieces=pieces,
        n_in_place=len(in_place),
        in_place_bytes=sum(in_place),
        free_bytes=free_bytes(store.root),
    )


def _look(store: Store, digest: Digest) -> _Blob | None:
    path = store.blobs.path(digest)
    try:
        return _Blob(path.stat().st_size, path.is_symlink())
    except OSError:
        return None


def _model(
    name: ModelName, manifest: Manifest, here: Mapping[Digest, _Blob], n_names: Counter[Digest]
) -> ModelUsage:
    own_bytes = shared_bytes = in_place_bytes = n_missing = 0
    for digest in manifest.digests:
        blob = here.get(digest)
        if blob is None:
            n_missing += 1
        elif blob.is_in_place:
            in_place_bytes += blob.size_bytes
        elif n_names[digest] > 1:
            shared_bytes += blob.size_bytes
        else:
            own_bytes += blob.size_bytes
    return ModelUsage(name, own_bytes, shared_bytes, in_place_bytes, n_missing)
