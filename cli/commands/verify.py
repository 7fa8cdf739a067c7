"""`localrun verify`: checks that the models on the disk are what they were."""

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from cli.context import Context
from cli.errors import FAILED, Failed, explaining_missing
from cli.job import Job
from cli.progress import ProgressLine
from cli.storage_replies import Verdict, VerifyLine
from modelstore.names import ModelName

# Kinds of problems that a blob from the registry puts right.
_REPAIRABLE = ("missing", "truncated", "corrupt")


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """No names means all models."""

    models: tuple[str, ...] = ()
    repair: bool = False


def verify(
    models: Annotated[
        list[str] | None, typer.Argument(help="Names of the models.", show_default="all")
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Fetch again what is damaged or missing.")
    ] = False,
) -> Job:
    """Check the models on the disk against their digests."""
    for name in models or []:
        ModelName.parse(name)
    return partial(run_verify, VerifyOptions(tuple(models or ()), repair))


def run_verify(options: VerifyOptions, context: Context) -> int:
    """Prints a line for each model; exit code 1 when one of them is not well.

    Raises: ApiError (404: no such model), Failed and `connect`'s.
    """
    body = {"models": list(options.models), "repair": options.repair, "stream": True}
    client = context.connect()
    verdicts: list[Verdict] | None = None
    with (
        explaining_missing(options.models[0]) if options.models else nullcontext(),
        ProgressLine(context.stderr) as progress,
        client.stream("/api/verify", body, VerifyLine) as lines,
    ):
        for line in lines:
            if line.models is None:
                progress.show(line.status, line.completed, line.total)
            else:
                verdicts = line.models
    if verdicts is None:
        raise Failed("the daemon ended before everything was verified; its log says why")
    for verdict in verdicts:
        context.say(words(verdict))
    if not options.repair and any(is_repairable(verdict) for verdict in verdicts):
        context.note("`localrun verify --repair` fetches what is damaged or missing again")
    return 0 if all(verdict.ok for verdict in verdicts) else FAILED


def words(verdict: Verdict) -> str:
    """One line for a model, and one more for each problem and for what was done."""
    state = "repaired" if verdict.repaired else "ok" if verdict.ok else "damaged"
    problems = [one.text for one in verdict.problems]
    return "\n  ".join([f"{verdict.model}: {state}", *problems, *verdict.notes])


def is_repairable(verdict: Verdict) -> bool:
    """Tells whether a repair could help."""
    return any(one.kind in _REPAIRABLE for one in verdict.problems)
