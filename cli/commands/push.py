"""`localrun push`: sends a model to a registry.

The daemon does the work; this shows how far it is, and at the end where the model went.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from cli.context import Context
from cli.job import Job
from cli.progress import TransferLines
from cli.replies import Progress
from modelstore.names import ModelName


@dataclass(frozen=True, slots=True)
class PushOptions:
    """A name that begins with a registry's host."""

    model: str
    insecure: bool = False


def push(
    model: Annotated[str, typer.Argument(help="Name of the model: host/namespace/model:tag.")],
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Allow http for a host in the daemon's REGISTRIES."),
    ] = False,
) -> Job:
    """Send a model to the registry that its name begins with."""
    ModelName.parse(model)
    return partial(run_push, PushOptions(model, insecure))


def run_push(options: PushOptions, context: Context) -> int:
    """Follows the push and prints where the model is.

    Raises: ApiError, Failed and `connect`'s.
    """
    body = {"model": options.model, "insecure": options.insecure, "stream": True}
    client = context.connect()
    try:
        with (
            TransferLines(context.stderr) as lines,
            client.stream("/api/push", body, Progress) as steps,
        ):
            for step in steps:
                lines.show(step.status, step.digest, step.completed, step.total)
    except KeyboardInterrupt:
        context.note("stopped; blobs that have arrived whole are not sent again")
        raise
    context.say(f"You can find your model at:\n\n\t{ModelName.parse(options.model).full()}")
    return 0
