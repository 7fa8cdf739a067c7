"""`localrun run`: one answer on standard output, or a conversation on a terminal.

Source: Ollama's rules for when a run is interactive and how pipe and arguments form the prompt.
Different on purpose: nothing but the answer reaches standard output, and Ctrl-C is exit code 130.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from cli.client import Client
from cli.commands.pull import fetch
from cli.context import INPUT_LIMIT_BYTES, Context
from cli.errors import ApiError, Failed, Usage, explaining_missing
from cli.formats import format_value, schema_in
from cli.job import Job
from cli.render import dropped, stats
from cli.replies import EmbedReply, GenerateLine, Shown
from cli.sources import check_is_model, made_first
from cli.thinking import WORDS, ThinkingView, think_value
from localrun.units import parse_duration_s


@dataclass(frozen=True, slots=True)
class RunOptions:
    """`keep_alive`, `format` and `think` are wire values, None when not given.

    `words` form the prompt. A schema may still be in a file, whose path `format` is then.
    `truncate` and `dimensions` are for models that make vectors. `think_word` stood behind
    `--think` like a value, and is none.
    """

    model: str
    words: tuple[str, ...] = ()
    keep_alive: int | float | None = None
    format: Any = None
    verbose: bool = False
    think: bool | str | None = None
    hides_thinking: bool = False
    truncate: bool | None = None
    dimensions: int | None = None
    think_word: str = ""

    @property
    def only_of_vectors(self) -> list[str]:
        """What was given that says nothing to a model that makes text."""
        given = {
            "--truncate" if self.truncate else "--no-truncate": self.truncate is not None,
            "--dimensions": self.dimensions is not None,
        }
        return [option for option, is_given in given.items() if is_given]

    @property
    def only_of_text(self) -> list[str]:
        """What was given that says nothing to a model that makes vectors."""
        given = {
            "--format": self.format is not None,
            "--think": self.think is not None,
            "--hidethinking": self.hides_thinking,
            "--verbose": self.verbose,
        }
        return [option for option, is_given in given.items() if is_given]

    @property
    def request(self) -> dict[str, Any]:
        """The fields of a request that stands for itself."""
        fields = {"keep_alive": self.keep_alive, "format": self.format, "think": self.think}
        return {name: value for name, value in fields.items() if value is not None}

    @property
    def embed_request(self) -> dict[str, Any]:
        """The fields of a request for a vector."""
        fields = {
            "keep_alive": self.keep_alive,
            "truncate": self.truncate,
            "dimensions": self.dimensions,
        }
        return {name: value for name, value in fields.items() if value is not None}


# Not for people: how `completed` tells `run` of it.
_THINK_WORD = "--word-behind-think"


def completed(words: list[str]) -> list[str]:
    """The words of the command line; `--think` has its value, which only `=` can give it.

    Otherwise the parser would take the first word of the prompt for one. A word that looks like a
    value is one of the prompt all the same, and noted.
    """
    end = words.index("--") if "--" in words else len(words)
    found = ["--think=true" if word == "--think" else word for word in words[:end]]
    pairs = pairwise(words[:end])
    behind = [word for option, word in pairs if option == "--think" and word.lower() in WORDS]
    return [f"{_THINK_WORD}={word}" for word in behind] + found + words[end:]


def run(  # noqa: PLR0913  the options of the program
    model: Annotated[str, typer.Argument(help="Name of the model.")],
    prompt: Annotated[
        list[str] | None, typer.Argument(help="The question; without one, a conversation starts.")
    ] = None,
    keepalive: Annotated[
        str | None,
        typer.Option("--keepalive", help="How long the model stays in memory: 5m, 0, -1."),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="The answer is JSON: `json`, or a JSON schema, as text or the name of a file.",
        ),
    ] = None,
    think: Annotated[
        str | None,
        typer.Option(
            "--think",
            metavar="[=LEVEL]",
            help="Think before answering, or not: `--think`, `--think=false`, and for models that "
            "know them the levels low, medium, high, max.",
        ),
    ] = None,
    hidethinking: Annotated[
        bool, typer.Option("--hidethinking", help="Do not show what the model thinks.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show timings on standard error.")
    ] = False,
    truncate: Annotated[
        bool | None,
        typer.Option(
            "--truncate/--no-truncate",
            help="Of a model for vectors: cut a text that is too long, or refuse it.",
            show_default=False,
        ),
    ] = None,
    dimensions: Annotated[
        int | None,
        typer.Option("--dimensions", min=0, help="Of a model for vectors: so many numbers."),
    ] = None,
    nowordwrap: Annotated[
        bool, typer.Option("--nowordwrap", hidden=True, help="Accepted; nothing is wrapped.")
    ] = False,
    think_word: Annotated[str | None, typer.Option(_THINK_WORD, hidden=True)] = None,
) -> Job:
    """Ask a model once (with a prompt or a pipe), or talk to it."""
    check_is_model(model)
    options = RunOptions(
        model,
        tuple(prompt or ()),
        _keep_alive(keepalive),
        None if format_ is None else format_value(format_, "--format"),
        verbose,
        _think(think),
        hidethinking,
        truncate,
        dimensions,
        think_word or "",
    )
    return partial(run_run, options)


def run_run(options: RunOptions, context: Context) -> int:
    """Answers once, converses on a terminal, or only loads when there is nothing to ask.

    Of a model that makes vectors it prints that of the prompt.

    A model that is not here is pulled first. Raises: ApiError (404: it cannot be had, with what to
    do), Usage, Failed and `connect`'s.
    """
    if isinstance(options.format, Path):
        options = replace(options, format=schema_in(options.format, "--format"))
    if word := options.think_word:
        context.note(f"note: `{word}` is no level here; write --think={word} for that")
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
    if options.only_of_vectors and not _makes_vectors(options.model, context):
        _note_idle(options.only_of_vectors, f"`{options.model}` makes text, not vectors", context)
    try:
        return _run_text(options, prompt, context)
    except ApiError as error:
        # Nobody asks beforehand what a model can: most make text.
        if error.status != 400 or not _makes_vectors(options.model, context):
            raise
    if not prompt:
        raise Usage("a model for vectors needs a text: localrun run MODEL TEXT")
    _note_idle(options.only_of_text, f"`{options.model}` makes vectors, not text", context)
    body = {"model": options.model, "input": prompt, **options.embed_request}
    reply = context.connect().post("/api/embed", body, EmbedReply)
    context.say(msgspec.json.encode(reply.embeddings[0]).decode())
    if n_dropped := reply.prompt_dropped_count:
        context.note(f"warning: the last {n_dropped} tokens of the text do not fit the model")
    return 0


def _note_idle(given: list[str], reason: str, context: Context) -> None:
    if given:
        verb = "has" if len(given) == 1 else "have"
        context.note(f"note: {', '.join(given)} {verb} no effect: {reason}")


def _makes_vectors(model: str, context: Context) -> bool:
    found = context.connect().post("/api/show", {"model": model}, Shown)
    return "embedding" in found.capabilities


def _run_text(options: RunOptions, prompt: str, context: Context) -> int:
    if prompt:
        _answer_once(options, prompt, context)
    elif context.stdin.isatty() and context.stdout.isatty():
        return _converse(options, context)
    else:
        load_model(context.connect(), options.model, options.keep_alive)
    return 0


def _pull_missing(model: str, context: Context, missing: ApiError) -> None:
    if model.lower().endswith(".gguf") and Path(model).is_file():
        raise Usage(made_first(model)) from missing
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
    thinking = ThinkingView(context, is_hidden=options.hides_thinking)
    try:
        with context.connect().stream("/api/generate", body, GenerateLine) as lines:
            for last in lines:
                thinking.show(last.thinking)
                if last.text:
                    thinking.close()
                    context.emit(last.text)
                    on_new_line = last.text.endswith("\n")
        if last is None or not last.done:
            raise Failed("the answer ended before it was complete")
    finally:
        thinking.close()
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
    from cli.session import Session

    client = context.connect()
    load(context, client, options.model, options.keep_alive)
    keep_alive = {} if options.keep_alive is None else {"keep_alive": options.keep_alive}
    session = Session(verbose=options.verbose, format=options.format, think=options.think)
    repl = Repl(context, client, options.model, keep_alive, session)
    repl.hides_thinking = options.hides_thinking
    return repl.loop()


def _prompt(words: tuple[str, ...], context: Context) -> str:
    piped = "" if context.stdin.isatty() else _piped(context)
    prompt = " ".join([piped, *words] if piped else words)
    if words and not prompt.strip():
        raise Usage("the prompt is empty; without one, a conversation starts")
    return prompt


def _piped(context: Context) -> str:
    text = context.read_input(INPUT_LIMIT_BYTES + 1)
    if len(text) > INPUT_LIMIT_BYTES or len(text.encode()) > INPUT_LIMIT_BYTES:
        raise Usage(
            f"the text on standard input is larger than {INPUT_LIMIT_BYTES >> 20} MiB, the most "
            "that a request may have"
        )
    return text


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


def _think(word: str | None) -> bool | str | None:
    try:
        return None if word is None else think_value(word)
    except ValueError as error:
        raise Usage(f"--think: {error}") from error
