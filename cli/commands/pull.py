"""`localrun pull`: fetches a model from a registry, or a GGUF file from a URL.

The daemon does the work; this shows how far it is. `run` uses the same for a model that is not
here. Ctrl-C ends the request, and with it the transfer, unless somebody else wants the same model.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from cli.client import Client
from cli.context import Context
from cli.job import Job
from cli.progress import TransferLines
from cli.replies import Progress
from modelstore.pull_names import parse_pull


@dataclass(frozen=True, slots=True)
class PullOptions:
    """A name, or the URL of a GGUF file."""

    model: str
    insecure: bool = False


def pull(
    model: Annotated[
        str, typer.Argument(help="Name of the model, `hf.co/user/repo:quant`, or URL of a GGUF.")
    ],
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Allow http for a host in the daemon's REGISTRIES."),
    ] = False,
) -> Job:
    """Fetch a model from a registry."""
    parse_pull(model)
    return partial(run_pull, PullOptions(model, insecure))


def run_pull(options: PullOptions, context: Context) -> int:
    """Follows the pull to its end. Raises: ApiError, Failed and `connect`'s."""
    fetch(context.connect(), context, options.model, insecure=options.insecure)
    return 0


def fetch(client: Client, context: Context, model: str, *, insecure: bool = False) -> None:
    """Has the daemon pull a model and shows its progress. Raises: ApiError, Failed."""
    body = {"model": model, "insecure": insecure, "stream": True}
    try:
        with (
            TransferLines(context.stderr) as lines,
            client.stream("/api/pull", body, Progress) as steps,
        ):
            for step in steps:
                lines.show(step.status, step.digest, step.completed, step.total)
    except KeyboardInterrupt:
        context.note(f"stopped; what has arrived is kept, and `localrun pull {model}` goes on")
        raise
