"""`localrun cp`: gives a model a second name."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from cli.context import Context
from cli.errors import explaining_missing
from cli.job import Job
from modelstore.names import ModelName


@dataclass(frozen=True, slots=True)
class CpOptions:
    """Two names as they were typed; a model that has the second one is replaced."""

    source: str
    destination: str


def cp(
    source: Annotated[str, typer.Argument(help="Name of the model.")],
    destination: Annotated[str, typer.Argument(help="The further name for it.")],
) -> Job:
    """Give a model a further name; the weights are shared, not copied."""
    for name in (source, destination):
        ModelName.parse(name)
    return partial(run_cp, CpOptions(source, destination))


def run_cp(options: CpOptions, context: Context) -> int:
    """Raises: ApiError (404: no such model), Failed and `connect`'s."""
    body = {"source": options.source, "destination": options.destination}
    with explaining_missing(options.source):
        context.connect().perform("POST", "/api/copy", body)
    context.say(f"copied '{options.source}' to '{options.destination}'")
    return 0
