"""`localrun rm`: removes models from the store."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from cli.commands.stop import unload
from cli.context import Context
from cli.errors import ApiError, explaining_missing
from cli.job import Job
from modelstore.names import ModelName


@dataclass(frozen=True, slots=True)
class RmOptions:
    """Names, in the order in which they are to go."""

    models: tuple[str, ...]


def rm(models: Annotated[list[str], typer.Argument(help="Names of the models.")]) -> Job:
    """Remove models from this machine."""
    for name in models:
        ModelName.parse(name)
    return partial(run_rm, RmOptions(tuple(models)))


def run_rm(options: RmOptions, context: Context) -> int:
    """Removes in the given order; the first failure ends it, and what was removed stays so.

    Raises: ApiError (404: no such model), Failed and `connect`'s.
    """
    client = context.connect()
    for model in options.models:
        try:
            unload(client, model)
        except ApiError as error:
            # A missing model is for the removal to report; one that stays loaded is no obstacle.
            if error.status != 404:
                context.note(f"Warning: `{model}` could not be stopped: {error}")
        with explaining_missing(model):
            client.perform("DELETE", "/api/delete", {"model": model})
        context.say(f"deleted '{model}'")
    return 0
