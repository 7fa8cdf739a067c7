"""`localrun ps`: the models in memory."""

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

import typer

from cli.context import Context
from cli.job import Job
from cli.render import parts_table, ps_table
from cli.replies import Loaded


@dataclass(frozen=True, slots=True)
class PsOptions:
    """`prefix` of names, in any case; empty means all."""

    prefix: str = ""
    verbose: bool = False


def ps(
    prefix: Annotated[str, typer.Argument(help="Show only names that begin with this.")] = "",
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show what each device holds, too.")
    ] = False,
) -> Job:
    """Show the models in memory, and how busy they are."""
    return partial(run_ps, PsOptions(prefix, verbose))


def run_ps(options: PsOptions, context: Context) -> int:
    """Prints the table of loaded models. Never starts a daemon: without one, none is loaded.

    Raises: ApiError, Failed and `connect`'s.
    """
    loaded = context.connect(start=False).get("/api/ps", Loaded)
    prefix = options.prefix.lower()
    models = [model for model in loaded.models if model.name.lower().startswith(prefix)]
    text = ps_table(models, datetime.now(UTC))
    if options.verbose:
        text += "\n" + parts_table(models)
    context.emit(text)
    if options.prefix and not models:
        context.note(f"no model in memory has a name that begins with `{options.prefix}`")
    return 0
