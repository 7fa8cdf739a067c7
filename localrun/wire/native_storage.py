"""The dialect of the routes about the store's disk, which are ours: df, prune, verify.

Owns their wire names and nothing of the store: names, digests and kinds stay text. Sizes are bytes.
"""

import msgspec

from localrun.errors import BadRequest
from localrun.wire.bodies import decode


class _Prune(msgspec.Struct):
    dry_run: bool | None = None
    partials: bool | None = None
    foreign: bool | None = None
    min_age_s: float | None = None


class _Verify(msgspec.Struct):
    models: list[str] | None = None
    model: str | None = None
    repair: bool | None = None
    stream: bool | None = None


_PRUNE = msgspec.json.Decoder(_Prune)
_VERIFY = msgspec.json.Decoder(_Verify)


class PruneStore(msgspec.Struct, frozen=True):
    """A request to prune; `min_age_s` None leaves the ages to the store."""

    dry_run: bool
    only_partials: bool
    foreign: bool
    min_age_s: float | None


class VerifyModels(msgspec.Struct, frozen=True):
    """A request to verify; no names means all models."""

    models: tuple[str, ...]
    repair: bool
    stream: bool


def decode_prune(body: bytes) -> PruneStore:
    """The request of POST /api/prune. Raises BadRequest."""
    wire = decode(_PRUNE, body)
    if wire.min_age_s is not None and not wire.min_age_s >= 0:
        raise BadRequest("min_age_s", "must be 0 or more")
    return PruneStore(
        wire.dry_run is True, wire.partials is True, wire.foreign is True, wire.min_age_s
    )


def decode_verify(body: bytes) -> VerifyModels:
    """The request of POST /api/verify. Raises BadRequest."""
    wire = decode(_VERIFY, body)
    names = [*(wire.models or []), *([wire.model] if wire.model else [])]
    return VerifyModels(tuple(names), wire.repair is True, wire.stream is not False)


class Piece(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that is no part of a model; `total` is what a partial download is to become."""

    kind: str
    name: str
    size: int
    model: str = ""
    total: int = 0


class Pruned(msgspec.Struct, frozen=True):
    """The reply of /api/prune: what went or, with `dry_run`, would go.

    Nothing does while `unreadable` names a manifest, or where `refused`: a folder not of ours.
    `young` of the `spared` things are younger than `min_age_s`.
    """

    dry_run: bool
    freed: int
    gone: list[Piece]
    spared: int
    unreadable: list[str]
    refused: bool
    young: int
    min_age_s: float


class ModelUse(msgspec.Struct, frozen=True):
    """A model's bytes: `own` come free with it; `missing` counts its blobs that are not there."""

    name: str
    size: int
    own: int
    shared: int
    in_place: int
    missing: int


class Files(msgspec.Struct, frozen=True):
    """A number of files and their bytes."""

    count: int
    size: int


class StoreUse(msgspec.Struct, frozen=True):
    """The reply of /api/df. `blobs` counts each blob once, and files in place not at all."""

    models: list[ModelUse]
    unreadable: list[str]
    blobs: Files
    unreferenced: Files
    partials: list[Piece]
    corrupt: Files
    leftovers: Files
    in_place: Files
    disk_free: int


class Trouble(msgspec.Struct, frozen=True):
    """What is wrong with a model: a kind for programs, a text for people."""

    kind: str
    text: str
    digest: str = ""


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was found out about one model; `notes` tell what was done although nothing is wrong."""

    model: str
    ok: bool
    repaired: bool
    problems: list[Trouble]
    notes: list[str] = []


class Verified(msgspec.Struct, frozen=True):
    """The last line of /api/verify; `ok` when every model is."""

    status: str
    ok: bool
    models: list[Verdict]
