"""`localrun list`: the models in the store."""

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

import typer

from cli.context import Context
from cli.job import Job
from cli.render import list_table
from cli.replies import Tags


@dataclass(frozen=True, slots=True)
class ListOptions:
    """`prefix` of names, in any case; empty means all."""

    prefix: str = ""


def list_(
    prefix: Annotated[str, typer.Argument(help="Show only names that begin with this.")] = "",
) -> Job:
    """Show the models on this machine (also: ls)."""
    return partial(run_list, ListOptions(prefix))


def run_list(options: ListOptions, context: Context) -> int:
    """Prints the table of models. Raises: ApiError, Failed and `connect`'s."""
    tags = context.connect().get("/api/tags", Tags)
    prefix = options.prefix.lower()
    models = [model for model in tags.models if model.name.lower().startswith(prefix)]
    context.emit(list_table(models, datetime.now(UTC)))
    return 0
