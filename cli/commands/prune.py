"""`localrun prune`: removes from the disk what no model needs."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from cli.commands.df import progress
from cli.context import Context
from cli.errors import FAILED
from cli.job import Job
from cli.render import size, table
from cli.storage_replies import Piece, Pruned

_WORDS = {
    "blob": "unreferenced blob",
    "corrupt": "corrupt blob",
    "partial": "partial download",
    "leftover": "broken write",
}


@dataclass(frozen=True, slots=True)
class PruneOptions:
    """`dry_run` only shows; `foreign` goes also for a folder that is Ollama's."""

    dry_run: bool = False
    partials: bool = False
    foreign: bool = False


def prune(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be removed.")
    ] = False,
    partials: Annotated[
        bool, typer.Option("--partials", help="Remove partial downloads and nothing else.")
    ] = False,
    foreign: Annotated[
        bool,
        typer.Option("--foreign", help="Also where the folder of the models is Ollama's."),
    ] = False,
) -> Job:
    """Remove what no model needs: blobs, partial downloads, leftovers of broken writes."""
    return partial(run_prune, PruneOptions(dry_run, partials, foreign))


def run_prune(options: PruneOptions, context: Context) -> int:
    """Prints what went and its size; exit code 1 when the store was not to be touched.

    Raises: ApiError, Failed and `connect`'s.
    """
    body = {"dry_run": options.dry_run, "partials": options.partials, "foreign": options.foreign}
    report = context.connect().post("/api/prune", body, Pruned)
    if report.refused:
        context.note(
            "Error: the folder of the models was not made by localrun but, it seems, by Ollama; "
            "`--foreign` prunes it all the same"
        )
        return FAILED
    if report.unreadable:
        named = ", ".join(f"`{name}`" for name in report.unreadable)
        context.note(
            f"Error: nothing is removed while it is not known which blobs {named} needs, since "
            "its manifest is unreadable; remove that model, or pull or create it again"
        )
        return FAILED
    if report.gone:
        context.emit(pieces_table(report.gone) + "\n")
    verb = "would free" if options.dry_run else "freed"
    context.say(f"{verb} {size(report.freed)}")
    if report.young:
        age = f"{report.min_age_s / 60:g} min"
        context.note(
            f"{_files(report.young)} stayed: younger than {age}, so a model may yet be made of it; "
            "prune again later"
        )
    if n_in_use := report.spared - report.young:
        context.note(f"{_files(n_in_use)} stayed: in use, or too young to be given up")
    return 0


def _files(n_files: int) -> str:
    return f"{n_files} file{'' if n_files == 1 else 's'}"


def pieces_table(gone: list[Piece]) -> str:
    """A line for each thing."""
    rows = [
        (
            _WORDS.get(piece.kind, piece.kind),
            piece.name.removeprefix("sha256-")[:12],
            progress(piece),
            piece.model,
        )
        for piece in gone
    ]
    return table([("WHAT", "ID", "SIZE", "MODEL"), *rows])
