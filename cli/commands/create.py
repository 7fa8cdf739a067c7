"""`localrun create`: makes a model from a Modelfile or from one GGUF file.

The Modelfile is read here and sent as fields. A file on the daemon's own machine is named by its
path; for a daemon elsewhere, or one that may not read the file, its bytes are uploaded as a blob
first. Different from Ollama on purpose: a Modelfile that is missing is an error, and a file can be
used in place.
"""

import re
from collections.abc import Iterator
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
from localrun.loopback import is_loopback
from modelstore.modelfile import Modelfile, decode, parse
from modelstore.names import ModelName

_MAGIC = b"GGUF"
_LOOKS_LIKE_PATH = re.compile(r"[./~]|.*\.gguf$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CreateOptions:
    """`modelfile` `-` is standard input. Without it and `from_file`, ./Modelfile is read."""

    name: str
    modelfile: str | None = None
    from_file: str | None = None
    in_place: bool = False


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
) -> Job:
    """Make a model from a Modelfile or a GGUF file."""
    if modelfile is not None and from_file is not None:
        raise Usage("give --file or --from-file, not both")
    ModelName.parse(name)
    return partial(run_create, CreateOptions(name, modelfile, from_file, in_place))


def run_create(options: CreateOptions, context: Context) -> int:
    """Reads the instructions, hands over or uploads the files, and follows the daemon's progress.

    Raises: Usage, ModelfileSyntax, BadRequest (a PARAMETER), ApiError, Failed and `connect`'s.
    """
    modelfile, folder = _modelfile(options, context)
    body = _texts(modelfile)
    client = context.connect()
    with ProgressLine(context.stderr) as progress:
        source = _Source(client, progress, folder, is_near=is_loopback(client.host))
        weights = source.weights(modelfile.froms, in_place=options.in_place)
        body |= source.adapters(modelfile.adapters)
        body |= {"model": options.name, "stream": True}
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
        path = Path(options.from_file).expanduser()
        if not path.is_file():
            raise Usage(f"there is no file `{options.from_file}`")
        return Modelfile(froms=(str(path.absolute()),)), Path.cwd()
    if options.modelfile == "-":
        return parse(context.read_input()), Path.cwd()
    path = Path(options.modelfile or "Modelfile").expanduser()
    try:
        text = decode(path.read_bytes())
    except FileNotFoundError:
        hint = "" if options.modelfile else "; name one with -f, or a GGUF file with --from-file"
        raise Usage(f"there is no Modelfile `{path}`{hint}") from None
    except OSError as error:
        raise Usage(f"the Modelfile `{path}` cannot be read: {error.strerror}") from error
    return parse(text), path.absolute().parent


def _texts(modelfile: Modelfile) -> dict[str, Any]:
    """The fields that need no file. Raises: BadRequest for a PARAMETER that is wrong."""
    if modelfile.drafts:
        raise Usage("DRAFT is not supported")
    fields: dict[str, Any] = {
        "template": modelfile.template,
        "system": modelfile.system,
        "license": list(modelfile.licenses),
        "parameters": {
            name: typed(name, [value] if isinstance(value, str) else value, path="PARAMETER")
            for name, value in modelfile.merged_parameters().items()
        },
        "messages": [{"role": role, "content": text} for role, text in modelfile.messages],
        "renderer": modelfile.renderer,
        "parser": modelfile.parser,
        "requires": modelfile.requires,
    }
    return {name: value for name, value in fields.items() if value}


@dataclass(frozen=True, slots=True)
class _Source:
    """Finds what FROM and ADAPTER name. `is_near`: the daemon sees the same files as we do."""

    client: Client
    progress: ProgressLine
    folder: Path
    is_near: bool

    def weights(self, froms: tuple[str, ...], *, in_place: bool) -> dict[str, Any]:
        paths = [self._path(text) for text in froms]
        if len(froms) == 1 and paths[0] is None:
            if in_place:
                raise Usage("--in-place needs a GGUF file, not a model")
            return {"from": froms[0]}
        files = [path for path in paths if path is not None]
        if len(files) < len(froms):
            raise Usage("FROM lines name either one model or only files")
        for path in files:
            _check_magic(path)
        if self.is_near and len(files) == 1:
            return {"path": str(files[0]), "in_place": in_place}
        if in_place:
            raise Usage("--in-place needs one GGUF file and a daemon on this machine")
        return self.uploaded(files)

    def uploaded(self, files: list[Path]) -> dict[str, Any]:
        return {"files": self._upload_all(files)}

    def adapters(self, texts: tuple[str, ...]) -> dict[str, Any]:
        if not texts:
            return {}
        files = [path for path in map(self._path, texts) if path is not None]
        if len(files) < len(texts):
            raise Usage("ADAPTER takes a GGUF file that exists")
        return {"adapters": self._upload_all(files)}

    def _path(self, text: str) -> Path | None:
        """The file that `text` names, None when it is a model's name."""
        path = self.folder / Path(text).expanduser()
        if path.is_file():
            return path.resolve()
        if path.is_dir():
            raise Usage(f"`{text}` is a folder; FROM takes a GGUF file or a model")
        if _LOOKS_LIKE_PATH.match(text):
            raise Usage(f"there is no file `{text}`")
        return None

    def _upload_all(self, files: list[Path]) -> dict[str, str]:
        digests = {path.name: self._upload(path) for path in files}
        if len(digests) < len(files):
            raise Usage("two of the files have the same name")
        return digests

    def _upload(self, path: Path) -> str:
        from modelstore.digest import hash_file

        self.progress.show(f"hashing {path.name}")
        digest = hash_file(path).text
        if not self.client.has_blob(digest):
            self.client.upload(digest, path, self._chunks(path))
        return digest

    def _chunks(self, path: Path) -> Iterator[bytes]:
        from modelstore.digest import read_chunks

        total, done = path.stat().st_size, 0
        for chunk in read_chunks(path):
            yield chunk
            done += len(chunk)
            self.progress.show(f"sending {path.name}", done, total)


def _check_magic(path: Path) -> None:
    # Told here, not after gigabytes of some other format were sent.
    try:
        with path.open("rb") as file:
            is_gguf = file.read(len(_MAGIC)) == _MAGIC
    except OSError as error:
        raise Usage(f"the file `{path}` cannot be read: {error.strerror}") from error
    if not is_gguf:
        raise Usage(f"`{path}` is not a GGUF file")
