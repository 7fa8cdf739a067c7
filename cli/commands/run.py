"""`localrun run`: one answer on standard output, or a conversation on a terminal.

Source: Ollama's rules for when a run is interactive and how pipe and arguments form the prompt.
Different on purpose: nothing but the answer reaches standard output, and Ctrl-C is exit code 130.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import msgspec
import typer

from cli.client import Client
from cli.commands.pull import fetch
from cli.context import Context
from cli.errors import ApiError, Failed, Usage, explaining_missing
from cli.job import Job
from cli.render import dropped, stats
from cli.replies import GenerateLine
from localrun.units import parse_duration_s
from modelstore.names import ModelName


@dataclass(frozen=True, slots=True)
class RunOptions:
    """`keep_alive` and `format` are wire values, None when not given; `words` form the prompt."""

    model: str
    words: tuple[str, ...] = ()
    keep_alive: int | float | None = None
    format: Any = None
    verbose: bool = False

    @property
    def request(self) -> dict[str, Any]:
        """The fields that every request of this run carries."""
        fields = {"keep_alive": self.keep_alive, "format": self.format}
        return {name: value for name, value in fields.items() if value is not None}


def run(
    model: Annotated[str, typer.Argument(help="Name of the model.")],
    prompt: Annotated[
        list[str] | None, typer.Argument(help="The question; without one, a conversation starts.")
    ] = None,
    keepalive: Annotated[
        str | None,
        typer.Option("--keepalive", help="How long the model stays in memory: 5m, 0, -1."),
    ] = None,
    format_: Annotated[
        str | None, typer.Option("--format", help="`json`, or a JSON schema for the answer.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show timings on standard error.")
    ] = False,
    nowordwrap: Annotated[
        bool, typer.Option("--nowordwrap", hidden=True, help="Accepted; nothing is wrapped.")
    ] = False,
) -> Job:
    """Ask a model once (with a prompt or a pipe), or talk to it."""
    ModelName.parse(model)
    options = RunOptions(
        model, tuple(prompt or ()), _keep_alive(keepalive), _format(format_), verbose
    )
    return partial(run_run, options)


def run_run(options: RunOptions, context: Context) -> int:
    """Answers once, converses on a terminal, or only loads when there is nothing to ask.

    A model that is not here is pulled first. Raises: ApiError (404: it cannot be had, with what to
    do), Usage, Failed and `connect`'s.
    """
    prompt = _prompt(options.words, context)
    with explaining_missing(options.model):
        try:
            return _run_once(options, prompt, context)
        except ApiError as error:
            if error.status != 404:
                raise
            _pull_missing(options.model, context, error)
        return _run_once(options, prompt, context)


def _run_once(options: RunOptions, prompt: str, context: Context) -> int:
    if prompt:
        _answer_once(options, prompt, context)
    elif context.stdin.isatty() and context.stdout.isatty():
        return _converse(options, context)
    else:
        load_model(context.connect(), options.model, options.keep_alive)
    return 0


def _pull_missing(model: str, context: Context, missing: ApiError) -> None:
    try:
        fetch(context.connect(), context, model)
    except ApiError as error:
        raise ApiError(404, f"{missing}, and it cannot be pulled: {error}") from error


def load_model(client: Client, model: str, keep_alive: Any) -> None:
    """Loads a model without asking it anything. Raises: ApiError, DaemonUnreachable, Failed."""
    body = {"model": model, "prompt": "", "stream": False}
    if keep_alive is not None:
        body["keep_alive"] = keep_alive
    client.post("/api/generate", body, GenerateLine)


def _answer_once(options: RunOptions, prompt: str, context: Context) -> None:
    body = {"model": options.model, "prompt": prompt, "stream": True, **options.request}
    last: GenerateLine | None = None
    on_new_line = False
    try:
        with context.connect().stream("/api/generate", body, GenerateLine) as lines:
            for last in lines:
                if last.text:
                    context.emit(last.text)
                    on_new_line = last.text.endswith("\n")
        if last is None or not last.done:
            raise Failed("the answer ended before it was complete")
    finally:
        # A shell prompt or an error message must not stick to an answer that was cut short.
        if last is not None and not on_new_line and (last.done or context.stdout.isatty()):
            context.say("")
    if warning := dropped(last):
        context.note(warning)
    if options.verbose:
        context.stderr.write(stats(last))
        context.stderr.flush()


def _converse(options: RunOptions, context: Context) -> int:
    from cli.repl import Repl, load

    client = context.connect()
    load(context, client, options.model, options.keep_alive)
    repl = Repl(context, client, options.model, options.request)
    repl.session.verbose = options.verbose
    return repl.loop()


def _prompt(words: tuple[str, ...], context: Context) -> str:
    piped = "" if context.stdin.isatty() else context.read_input()
    return " ".join([piped, *words] if piped else words)


def _keep_alive(text: str | None) -> int | float | None:
    if text is None:
        return None
    try:
        seconds = parse_duration_s(text)
    except ValueError as error:
        raise Usage(f"--keepalive: {error}") from error
    if math.isinf(seconds):
        return -1
    return int(seconds) if seconds.is_integer() else seconds


def _format(text: str | None) -> Any:
    if text is None or text == "json":
        return text
    try:
        schema = msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        raise Usage(f"--format takes `json` or a JSON schema: {error}") from error
    if not isinstance(schema, dict):
        raise Usage("--format takes `json` or a JSON schema, which is an object")
    return schema
