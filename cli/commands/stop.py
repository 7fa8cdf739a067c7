"""`localrun stop`: takes a model out of memory."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from cli.client import Client
from cli.context import Context
from cli.job import Job
from cli.replies import GenerateLine


@dataclass(frozen=True, slots=True)
class StopOptions:
    """Name of the model, loaded or not."""

    model: str


def stop(model: Annotated[str, typer.Argument(help="Name of the model.")]) -> Job:
    """Take a model out of memory; requests that it is answering end first."""
    return partial(run_stop, StopOptions(model))


def run_stop(options: StopOptions, context: Context) -> int:
    """Never starts a daemon. Raises: ApiError (404: no such model), Failed and `connect`'s."""
    unload(context.connect(start=False), options.model)
    return 0


def unload(client: Client, model: str) -> None:
    """Raises: ApiError, with status 404 when there is no such model."""
    client.post("/api/generate", {"model": model, "keep_alive": 0, "stream": False}, GenerateLine)
