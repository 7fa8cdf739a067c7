"""`localrun create`: makes a model from a Modelfile or from a GGUF file.

The Modelfile is read here and sent as fields; how its files reach the daemon is `sources`' part.
Different from Ollama on purpose: a Modelfile that is missing is an error, and a file can be used in
place.
"""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.client import Client
from cli.context import Context
from cli.errors import ApiError, Usage
from cli.job import Job
from cli.parameters import typed
from cli.progress import ProgressLine
from cli.replies import Progress
from cli.sources import Sources, expanded, no_file
from localrun.errors import BadRequest
from localrun.loopback import is_loopback
from localrun.options import IGNORED_OPTIONS
from modelstore.errors import ModelfileSyntax
from modelstore.modelfile import Modelfile, decode, parse
from modelstore.names import ModelName

# A Modelfile holds texts and the names of files; the longest of its licences has some 50 KiB.
MODELFILE_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class CreateOptions:
    """`modelfile` `-` is standard input. Without it and `from_file`, ./Modelfile is read."""

    name: str
    modelfile: str | None = None
    from_file: str | None = None
    in_place: bool = False
    quantize: str | None = None


def create(
    name: Annotated[str, typer.Argument(help="Name of the new model.")],
    modelfile: Annotated[
        str | None,
        typer.Option("--file", "-f", help="The Modelfile; `-` reads standard input. [./Modelfile]"),
    ] = None,
    from_file: Annotated[
        str | None, typer.Option("--from-file", help="A GGUF file, instead of a Modelfile.")
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Use the file where it is instead of copying it.")
    ] = False,
    quantize: Annotated[
        str | None,
        typer.Option("--quantize", "-q", help="Quantize the weights to this type, such as Q4_K_M."),
    ] = None,
) -> Job:
    """Make a model from a Modelfile or a GGUF file."""
    if modelfile is not None and from_file is not None:
        raise Usage("give --file or --from-file, not both")
    ModelName.parse(name)
    return partial(run_create, CreateOptions(name, modelfile, from_file, in_place, quantize))


def run_create(options: CreateOptions, context: Context) -> int:
    """Reads the instructions, hands over or uploads the files, and follows the daemon's progress.

    Raises: Usage, ModelfileSyntax, ApiError, Failed and `connect`'s.
    """
    modelfile, folder = _modelfile(options, context)
    body = _texts(modelfile, context)
    client = context.connect()
    with ProgressLine(context.stderr) as progress:
        source = Sources(client, progress, folder, is_near=is_loopback(client.host))
        adapter = source.adapter(modelfile.adapters)
        weights = source.weights(modelfile.froms, in_place=options.in_place)
        body |= source.sent_adapter(adapter)
        body |= {"model": options.name, "stream": True}
        if options.quantize is not None:
            body["quantize"] = options.quantize
        try:
            _follow(client, body | weights, progress)
        except ApiError as error:
            if error.status != 403 or "path" not in weights or options.in_place:
                raise
            # Loopback may lead into a container or a tunnel, or to a daemon of another user.
            _follow(client, body | source.uploaded([Path(weights["path"])]), progress)
    return 0


def _follow(client: Client, body: dict[str, Any], progress: ProgressLine) -> None:
    with client.stream("/api/create", body, Progress) as lines:
        for line in lines:
            progress.show(line.status, line.completed, line.total)


def _modelfile(options: CreateOptions, context: Context) -> tuple[Modelfile, Path]:
    """The instructions, and the folder that relative paths in them start from."""
    if options.from_file is not None:
        path = expanded(options.from_file)
        if problem := no_file(path, options.from_file):
            raise Usage(f"{problem}; --from-file takes a GGUF file")
        return Modelfile(froms=(str(path.absolute()),)), Path.cwd()
    if options.modelfile == "-":
        text = context.read_input(MODELFILE_LIMIT_BYTES + 1)
        _check_size(len(text), "on standard input")
        return parse(text), Path.cwd()
    path = expanded(options.modelfile or "Modelfile")
    if not os.path.lexists(path):
        hint = "" if options.modelfile else "; name one with -f, or a GGUF file with --from-file"
        raise Usage(f"there is no Modelfile `{path}`{hint}")
    if problem := no_file(path, str(path)):
        raise Usage(f"{problem}; a Modelfile is a file, or standard input with `-f -`")
    try:
        with path.open("rb") as file:
            data = file.read(MODELFILE_LIMIT_BYTES + 1)
    except OSError as error:
        raise Usage(f"the Modelfile `{path}` cannot be read: {error.strerror}") from error
    _check_size(len(data), f"`{path}`")
    return parse(decode(data)), path.absolute().parent


def _check_size(n_read: int, where: str) -> None:
    if n_read > MODELFILE_LIMIT_BYTES:
        raise Usage(
            f"the Modelfile {where} is larger than {MODELFILE_LIMIT_BYTES >> 20} MiB; it holds "
            "texts only, and names the weights with FROM"
        )


def _texts(modelfile: Modelfile, context: Context) -> dict[str, Any]:
    """The fields that need no file. Raises: ModelfileSyntax for a PARAMETER that is wrong."""
    if modelfile.drafts:
        line = modelfile.line_of("DRAFT")
        raise ModelfileSyntax(line, "there is no speculative decoding; remove DRAFT")
    for word in ("RENDERER", "PARSER", "REQUIRES"):
        if getattr(modelfile, word.lower()):
            context.note(f"warning: {word} has no effect; it is only kept")
    fields: dict[str, Any] = {
        "template": modelfile.template,
        "system": modelfile.system,
        "license": list(modelfile.licenses),
        "parameters": {
            name: _typed(modelfile, name, value)
            for name, value in _parameters(modelfile, context).items()
        },
        "messages": [{"role": role, "content": text} for role, text in modelfile.messages],
        "renderer": modelfile.renderer,
        "parser": modelfile.parser,
        "requires": modelfile.requires,
    }
    return {name: value for name, value in fields.items() if value}


def _typed(modelfile: Modelfile, name: str, value: str | list[str]) -> Any:
    try:
        return typed(name, [value] if isinstance(value, str) else value, path="PARAMETER")
    except BadRequest as error:
        raise ModelfileSyntax(modelfile.line_of("PARAMETER", name), str(error)) from error


def _parameters(modelfile: Modelfile, context: Context) -> dict[str, str | list[str]]:
    """Those that have an effect; of the others the person is told."""
    merged = modelfile.merged_parameters()
    for name in sorted(IGNORED_OPTIONS.intersection(merged)):
        context.note(f"warning: PARAMETER {name} has no effect and is left out")
        del merged[name]
    return merged
