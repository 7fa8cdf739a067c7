"""`localrun create`: makes a model from a Modelfile or from one GGUF file.

The Modelfile is read here and sent as fields. A file on the daemon's own machine is named by its
path; for a daemon elsewhere, or one that may not read the file, its bytes are uploaded as a blob
first. Different from Ollama on purpose: a Modelfile that is missing is an error, and a file can be
used in place.
"""

import errno
import os
import re
import stat
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

# A Modelfile holds texts and the names of files; the longest of its licences has some 50 KiB.
MODELFILE_LIMIT_BYTES = 1 << 20
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
        path = _expanded(options.from_file)
        if problem := _no_file(path, options.from_file):
            raise Usage(f"{problem}; --from-file takes a GGUF file")
        return Modelfile(froms=(str(path.absolute()),)), Path.cwd()
    if options.modelfile == "-":
        text = context.read_input(MODELFILE_LIMIT_BYTES + 1)
        _check_size(len(text), "on standard input")
        return parse(text), Path.cwd()
    path = _expanded(options.modelfile or "Modelfile")
    if not os.path.lexists(path):
        hint = "" if options.modelfile else "; name one with -f, or a GGUF file with --from-file"
        raise Usage(f"there is no Modelfile `{path}`{hint}")
    if problem := _no_file(path, str(path)):
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


def _expanded(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:  # `~somebody` who does not exist is a name like any other
        return Path(text)


# What can stand in the place of a file, by its type.
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def _no_file(path: Path, text: str) -> str | None:
    """None for a regular file, else what is wrong with `path`, which was given as `text`."""
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        if path.is_symlink():
            return f"`{text}` is a symbolic link to a file that is not there"
        return f"there is no file `{text}`"
    except OSError as error:
        if error.errno == errno.ELOOP:
            return f"`{text}` is a loop of symbolic links"
        return f"`{text}` cannot be read: {error.strerror}"
    return None if kind == stat.S_IFREG else f"`{text}` is {_KINDS.get(kind, 'not a file')}"


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
        path = self.folder / _expanded(text)
        problem = _no_file(path, text)
        if problem is None:
            return path.resolve()
        if _is_something(path) or _LOOKS_LIKE_PATH.match(text):
            raise Usage(f"{problem}; FROM and ADAPTER take a GGUF file, FROM also a model")
        ModelName.parse(text)
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


def _is_something(path: Path) -> bool:
    try:
        return os.path.lexists(path)
    except ValueError:  # a name that no file can have
        return False


def _check_magic(path: Path) -> None:
    # Told here, not after gigabytes of some other format were sent.
    try:
        with path.open("rb") as file:
            is_gguf = file.read(len(_MAGIC)) == _MAGIC
    except OSError as error:
        raise Usage(f"the file `{path}` cannot be read: {error.strerror}") from error
    if not is_gguf:
        raise Usage(f"`{path}` is not a GGUF file")
