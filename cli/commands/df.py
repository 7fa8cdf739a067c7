"""`localrun df`: what the models take on the disk."""

from functools import partial

from cli.context import Context
from cli.job import Job
from cli.render import size, table
from cli.storage_replies import Files, Piece, StoreUse


def df() -> Job:
    """Show what the models take on the disk."""
    return partial(run_df)


def run_df(context: Context) -> int:
    """Prints a table of models and one of the whole. Raises: ApiError, Failed and `connect`'s."""
    found = context.connect().get("/api/df", StoreUse)
    for name in found.unreadable:
        context.note(f"Warning: the manifest of `{name}` is unreadable; its model is not counted")
    context.emit(models_table(found))
    context.emit("\n" + totals_table(found))
    return 0


def models_table(found: StoreUse) -> str:
    """A line for each model: what comes free with it, and what others need too."""
    rows = [
        (
            model.name,
            size(model.size),
            size(model.own),
            size(model.shared),
            size(model.in_place) if model.in_place else "-",
            _missing(model.missing),
        )
        for model in found.models
    ]
    return table([("NAME", "SIZE", "OWN", "SHARED", "IN PLACE"), *rows])


def totals_table(found: StoreUse) -> str:
    """The store as a whole; every blob counts once."""
    rows = [
        ("blobs", _files(found.blobs)),
        ("  of these unreferenced", _files(found.unreferenced)),
        ("partial downloads", _files(Files(len(found.partials), _sum(found.partials)))),
        *((f"  {whose(piece)}", progress(piece)) for piece in found.partials),
        ("corrupt, set aside", _files(found.corrupt)),
        ("leftovers", _files(found.leftovers)),
        ("in place, not counted", _files(found.in_place)),
    ]
    shown = [row for row in rows if row[0] == "blobs" or row[1]]
    return table([*shown, ("free on the disk", size(found.disk_free))])


def whose(piece: Piece) -> str:
    """The model that a partial download is for, else the beginning of its digest."""
    return piece.model or piece.name.removeprefix("sha256-")[:12]


def progress(piece: Piece) -> str:
    """How much of a partial download is there."""
    return f"{size(piece.size)} of {size(piece.total)}" if piece.total else size(piece.size)


def _missing(n_blobs: int) -> str:
    return f"{n_blobs} blob{'' if n_blobs == 1 else 's'} missing" if n_blobs else ""


def _files(files: Files) -> str:
    if not files.count:
        return ""
    return f"{size(files.size)} in {files.count} file{'s' if files.count > 1 else ''}"


def _sum(pieces: list[Piece]) -> int:
    return sum(piece.size for piece in pieces)
