"""Weights for a new model: uploaded blobs or a GGUF file on this disk, checked and stored.

Owns what counts as a usable GGUF and which layer it becomes. Stops before manifests: what it
returns are layers with their headers. Used by `create`.
Source: Ollama `server/create.go` (roles, error texts).
"""

import os
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from modelstore.blobs import Blobs
from modelstore.digest import Digest, HashingWriter, read_chunks
from modelstore.errors import (
    BlobNotFound,
    InvalidCreate,
    InvalidGGUF,
    SourceNotAllowed,
    UnsupportedFormat,
    shown,
)
from modelstore.files import open_regular
from modelstore.gguf import MAGIC, Header, read_header
from modelstore.keep import Keep
from modelstore.manifest import ADAPTER_TYPE, MODEL_TYPE, PROJECTOR_TYPE, Layer

_ROLE_TYPES = {"model": MODEL_TYPE, "adapter": ADAPTER_TYPE, "projector": PROJECTOR_TYPE}
_REPORT_EVERY_BYTES = 16 << 20  # often enough for a bar, rare enough to cost nothing


@dataclass(frozen=True, slots=True)
class Progress:
    """One line of a long operation; sizes in bytes."""

    status: str
    digest: str | None = None
    total: int | None = None
    completed: int | None = None


@dataclass(frozen=True, slots=True)
class Weights:
    """A checked GGUF blob and the layer that it becomes."""

    header: Header
    layer: Layer


def check_relative(file_name: str) -> None:
    """Raises: InvalidCreate for a name that could leave the folder of the Modelfile."""
    path = PurePosixPath(file_name)
    is_odd = not path.parts or "\\" in file_name or "\0" in file_name
    if is_odd or path.is_absolute() or ".." in path.parts:
        raise InvalidCreate("file path must be relative")


def weights_from_blobs(
    blobs: Blobs, files: Mapping[str, Digest], *, only_adapters: bool = False
) -> tuple[Weights, ...]:
    """Checks uploaded blobs, named by the files they came from.

    Raises: InvalidCreate, BlobNotFound, InvalidGGUF, UnsupportedFormat.
    """
    if not files:
        raise InvalidCreate("unknown type")
    weights = []
    for file_name, digest in files.items():
        check_relative(file_name)
        if not blobs.path(digest).is_file():
            raise BlobNotFound(digest.text)
        if PurePosixPath(file_name).suffix == ".safetensors":
            raise UnsupportedFormat(
                f"`{shown(file_name)}` is a safetensors file; convert it to GGUF first"
            )
        if not _has_magic(blobs.path(digest)):
            is_named_gguf = PurePosixPath(file_name).suffix == ".gguf"
            raise InvalidCreate(
                "supplied file was not in GGUF format" if is_named_gguf else "unknown type"
            )
        weights.append(_checked(blobs, digest))
    _check_roles(weights, only_adapters=only_adapters)
    return tuple(weights)


def check_path(path: Path) -> None:
    """Looks at a file's header before anything is copied; the copy is checked again.

    Raises: SourceNotAllowed, InvalidGGUF, UnsupportedFormat.
    """
    if path.is_dir():
        raise UnsupportedFormat(f"`{path.name}` is a folder; give a GGUF file")
    if not _has_magic(path):
        raise SourceNotAllowed(f"`{path.name}` is not a GGUF file")
    _check_header(read_header(path))


def weights_from_path(
    blobs: Blobs, keep: Keep, path: Path, *, in_place: bool
) -> Generator[Progress, None, tuple[Weights, ...]]:
    """Copies a GGUF file that passed `check_path` into the store, or registers it where it is.

    Raises: SourceNotAllowed, InvalidGGUF, UnsupportedFormat, InvalidCreate, ChangedFile, DiskFull,
    StoreNotWritable.
    """
    if in_place:
        digest, is_new = yield from _link(blobs, path)
    else:
        digest, is_new = yield from _copy(blobs, path)
    keep.add(digest)
    if is_new:
        keep.made(digest)
    weights = (_checked(blobs, digest),)
    _check_roles(weights, only_adapters=False)
    return weights


def _copy(blobs: Blobs, path: Path) -> Generator[Progress, None, tuple[Digest, bool]]:
    status = f"copying {path.name}"
    with open_regular(path) as source:
        total = os.fstat(source.fileno()).st_size
        with blobs.writer(total_bytes=total) as writer:
            yield from _paced(status, total, writer.copy_from(source))
            return writer.commit()


def _link(blobs: Blobs, path: Path) -> Generator[Progress, None, tuple[Digest, bool]]:
    before = path.stat()
    hashing = HashingWriter()
    yield from _paced(f"hashing {path.name}", before.st_size, _hash(path, hashing))
    is_new = not blobs.path(hashing.digest).exists()
    return blobs.link_in_place(path, hashing.digest, as_hashed=before), is_new


def _hash(path: Path, hashing: HashingWriter) -> Iterable[int]:
    for chunk in read_chunks(path):
        hashing.write(chunk)
        yield hashing.size_bytes


def _paced(status: str, total: int, counts: Iterable[int]) -> Generator[Progress, None, None]:
    reported = 0
    for completed in counts:
        if completed - reported >= _REPORT_EVERY_BYTES or completed >= total:
            reported = completed
            yield Progress(status, total=total, completed=completed)


def _checked(blobs: Blobs, digest: Digest) -> Weights:
    header = read_header(blobs.path(digest))
    _check_header(header)
    layer = Layer(_ROLE_TYPES[header.role], digest, header.file_size_bytes)
    return Weights(header, layer)


def _check_header(header: Header) -> None:
    if not header.architecture:
        raise InvalidGGUF("`general.architecture` is missing")
    n_parts = header.get("split.count")
    if isinstance(n_parts, int) and n_parts > 1:
        raise UnsupportedFormat(
            f"the file is one of {n_parts} parts of a split model; merge them into one file first "
            "(llama-gguf-split --merge)"
        )


def _check_roles(weights: Iterable[Weights], *, only_adapters: bool) -> None:
    roles = [item.header.role for item in weights]
    if only_adapters:
        if roles != ["adapter"]:
            raise InvalidCreate("the file given as adapter is not a GGUF adapter")
    elif roles.count("model") != 1:
        found = ", ".join(sorted(set(roles)))
        raise InvalidCreate(f"exactly one file must be a model; found {len(roles)} ({found})")


def _has_magic(path: Path) -> bool:
    with open_regular(path) as file:
        return file.read(len(MAGIC)) == MAGIC
