"""How the files that a Modelfile names reach the daemon.

A file or folder of the daemon's own machine is named by its path; for a daemon elsewhere, or one
that may not read it, the bytes are uploaded as blobs first.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.client import Client
from cli.errors import Usage
from cli.progress import ProgressLine
from modelstore.names import ModelName

_MAGIC = b"GGUF"
_LOOKS_LIKE_PATH = re.compile(r"[./~]|.*\.gguf$", re.IGNORECASE)


def expanded(text: str) -> Path:
    """A path as it was typed, `~` resolved."""
    try:
        return Path(text).expanduser()
    except RuntimeError:  # `~somebody` who does not exist is a name like any other
        return Path(text)


def check_is_model(text: str) -> None:
    """Refuses what is no name of a model yet. Raises: Usage, with what to do; InvalidName."""
    if text.strip().startswith((".", "/", "~")):
        raise Usage(made_first(text))
    if "://" in text:
        from modelstore.pull_names import GgufUrl, parse_pull

        if isinstance(found := parse_pull(text), GgufUrl):
            name = found.name.display()
            raise Usage(
                f"`{text}` names a file, not a model; fetch it with `localrun pull {text}`, "
                f"then its name is `{name}`"
            )
    ModelName.parse(text)


def made_first(path: str) -> str:
    """What to do with a file that was given in the place of a model."""
    return (
        f"`{path}` names a file, not a model; make one of it with "
        f"`localrun create NAME --from-file {path}`, then use that name"
    )


# What can stand in the place of a file, by its type.
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def no_file(path: Path, text: str) -> str | None:
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


@dataclass(frozen=True, slots=True)
class Sources:
    """Finds what FROM and ADAPTER name. `is_near`: the daemon sees the same files as we do."""

    client: Client
    progress: ProgressLine
    folder: Path
    is_near: bool

    def weights(self, froms: tuple[str, ...], *, in_place: bool) -> dict[str, Any]:
        """The fields that say what the model is made from.

        Raises: Usage, and of `modelstore.errors` what says that files are not whole.
        """
        paths = [self._path(text, takes_folder=True) for text in froms]
        if len(froms) == 1 and paths[0] is None:
            if in_place:
                raise Usage("--in-place needs a GGUF file, not a model")
            return {"from": froms[0]}
        sources = [path for path in paths if path is not None]
        if len(sources) < len(froms):
            raise Usage("FROM lines name either one model or only files")
        for path in sources:
            _check(path)
        if self.is_near and len(sources) == 1:
            return {"path": str(sources[0]), "in_place": in_place}
        if in_place:
            raise Usage("--in-place needs one GGUF file and a daemon on this machine")
        return self.uploaded(sources)

    def uploaded(self, sources: list[Path]) -> dict[str, Any]:
        """The same, after everything that `sources`, files and folders, stand for was sent."""
        return {"files": self._upload_all([file for path in sources for file in _files_of(path)])}

    def adapter(self, texts: tuple[str, ...]) -> Path | None:
        """The adapter that counts, the last one, when it can be one. Raises: Usage."""
        if not texts:
            return None
        path = self._path(texts[-1], takes_folder=False)
        if path is None:
            raise Usage("ADAPTER takes a GGUF file that exists")
        if path.suffix == ".safetensors":
            raise Usage(
                f"`{path.name}` is a safetensors adapter; convert it with llama.cpp's "
                "convert_lora_to_gguf.py first"
            )
        _check(path)
        return path

    def sent_adapter(self, path: Path | None) -> dict[str, Any]:
        """The field of the adapter, after it was sent."""
        return {"adapters": self._upload_all([(path.name, path)])} if path else {}

    def _path(self, text: str, *, takes_folder: bool) -> Path | None:
        """The file or folder that `text` names, None when it is a model's name."""
        path = self.folder / expanded(text)
        if takes_folder and _is_folder(path):
            return Path(os.path.abspath(path))
        problem = no_file(path, text)
        if problem is None:
            # Not resolved: a file of a store that is used in place is a link, and stays one.
            return Path(os.path.abspath(path))
        if _is_something(path) or _LOOKS_LIKE_PATH.match(text):
            raise Usage(f"{problem}; FROM and ADAPTER take a GGUF file, FROM also a model")
        ModelName.parse(text)
        return None

    def _upload_all(self, files: list[tuple[str, Path]]) -> dict[str, str]:
        if len({name for name, _ in files}) < len(files):
            raise Usage("two of the files have the same name")
        return {name: self._upload(path) for name, path in files}

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


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except ValueError:  # a name that no file can have
        return False


def _is_something(path: Path) -> bool:
    try:
        return os.path.lexists(path)
    except ValueError:  # a name that no file can have
        return False


def _files_of(path: Path) -> list[tuple[str, Path]]:
    from modelstore.picking import pick

    return list(pick(path).items())


def _check(path: Path) -> None:
    """Raises: Usage for a file, or one of the folder's, that is not GGUF."""
    # Told here, not after gigabytes of some other format were sent.
    for _, file in _files_of(path):
        if path.is_dir() and file.suffix != ".gguf":
            continue
        try:
            with file.open("rb") as opened:
                is_gguf = opened.read(len(_MAGIC)) == _MAGIC
        except OSError as error:
            raise Usage(f"the file `{file}` cannot be read: {error.strerror}") from error
        if not is_gguf:
            raise Usage(f"`{file}` is not a GGUF file")
