"""`localrun ps`: the models in memory."""

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

import typer

from cli.context import Context
from cli.job import Job
from cli.render import ps_table
from cli.replies import Loaded


@dataclass(frozen=True, slots=True)
class PsOptions:
    """`prefix` of names, in any case; empty means all."""

    prefix: str = ""


def ps(
    prefix: Annotated[str, typer.Argument(help="Show only names that begin with this.")] = "",
) -> Job:
    """Show the models in memory, and how busy they are."""
    return partial(run_ps, PsOptions(prefix))


def run_ps(options: PsOptions, context: Context) -> int:
    """Prints the table of loaded models. Never starts a daemon: without one, none is loaded.

    Raises: ApiError, Failed and `connect`'s.
    """
    loaded = context.connect(start=False).get("/api/ps", Loaded)
    prefix = options.prefix.lower()
    models = [model for model in loaded.models if model.name.lower().startswith(prefix)]
    context.emit(ps_table(models, datetime.now(UTC)))
    return 0
