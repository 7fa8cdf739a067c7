"""What the daemon answers about the store's disk, as far as the command line reads it.

As tolerant as `replies`. These routes are localrun's own. Sizes are bytes.
"""

from msgspec import Struct, field

from cli.replies import Progress


class Piece(Struct):
    """Something that is no part of a model; `total` is what a partial download is to become."""

    kind: str = ""
    name: str = ""
    size: int = 0
    model: str = ""
    total: int = 0


class Pruned(Struct):
    """The answer of `/api/prune`; `young` of the `spared` are younger than `min_age_s`."""

    freed: int = 0
    gone: list[Piece] = field(default_factory=list)
    spared: int = 0
    unreadable: list[str] = field(default_factory=list)
    refused: bool = False
    young: int = 0
    min_age_s: float = 0.0


class ModelUse(Struct):
    """What one model takes; `own` comes free with it."""

    name: str
    size: int = 0
    own: int = 0
    shared: int = 0
    in_place: int = 0
    missing: int = 0


class Files(Struct):
    """A number of files and their bytes."""

    count: int = 0
    size: int = 0


class StoreUse(Struct):
    """The answer of `/api/df`."""

    models: list[ModelUse] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    blobs: Files = field(default_factory=Files)
    unreferenced: Files = field(default_factory=Files)
    partials: list[Piece] = field(default_factory=list)
    corrupt: Files = field(default_factory=Files)
    leftovers: Files = field(default_factory=Files)
    in_place: Files = field(default_factory=Files)
    disk_free: int = 0


class Trouble(Struct):
    """What is wrong with a model: a kind for programs, a text for people."""

    text: str = ""
    kind: str = ""


class Verdict(Struct):
    """What was found out about one model."""

    model: str = ""
    ok: bool = True
    repaired: bool = False
    problems: list[Trouble] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class VerifyLine(Progress):
    """One line of `/api/verify`; the last one has the verdicts."""

    models: list[Verdict] | None = None
