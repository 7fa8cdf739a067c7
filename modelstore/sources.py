"""GGUF files for a new model: uploaded blobs or files on this disk, checked, then stored.

Owns what counts as a usable GGUF and which layer it becomes. Stops before manifests: what it
returns are layers with their headers. Converts nothing. Used by `weights`.
Source: Ollama `server/create.go` (roles, error texts).
"""

import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from modelstore.adapters import check_adapter
from modelstore.blobs import Blobs
from modelstore.digest import Digest, HashingWriter, read_chunks
from modelstore.errors import (
    BlobNotFound,
    InvalidCreate,
    InvalidDigest,
    InvalidGGUF,
    SourceNotAllowed,
    shown,
)
from modelstore.files import open_regular
from modelstore.gguf import MAGIC, Header, read_header
from modelstore.keep import Keep
from modelstore.manifest import ADAPTER_TYPE, MODEL_TYPE, PROJECTOR_TYPE, Layer
from modelstore.splits import in_order, is_later_part, joined, n_parts

_ROLE_TYPES = {"model": MODEL_TYPE, "adapter": ADAPTER_TYPE, "projector": PROJECTOR_TYPE}
# The status of the last step of anything that went well. Source: Ollama.
SUCCESS = "success"

_REPORT_EVERY_BYTES = 16 << 20  # often enough for a bar, rare enough to cost nothing


@dataclass(frozen=True, slots=True)
class Progress:
    """One line of a long operation; `total` and `completed` in bytes, or tensors of a job."""

    status: str
    digest: str | None = None
    total: int | None = None
    completed: int | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A GGUF file that was looked at.

    `digest` of one that is a blob already; a temporary one was written into the store's folder.
    """

    name: str
    path: Path
    header: Header
    digest: Digest | None = None
    is_temporary: bool = False


@dataclass(frozen=True, slots=True)
class Candidates:
    """The files of one model: its `parts`, one or all of a split model in order, and the others."""

    parts: tuple[Candidate, ...]
    others: tuple[Candidate, ...] = ()

    @property
    def header(self) -> Header:
        """That of the model as a whole. Raises: InvalidGGUF."""
        return joined([part.header for part in self.parts])


def check_relative(file_name: str) -> None:
    """Raises: InvalidCreate for a name that could leave the folder of the Modelfile."""
    path = PurePosixPath(file_name)
    is_odd = not path.parts or "\\" in file_name or "\0" in file_name
    if is_odd or path.is_absolute() or ".." in path.parts:
        raise InvalidCreate("file path must be relative")


def from_blobs(blobs: Blobs, files: Mapping[str, Digest]) -> list[Candidate]:
    """Looks at uploaded blobs, named by the files they came from.

    Raises: InvalidCreate, BlobNotFound, InvalidGGUF.
    """
    found = []
    for file_name, digest in files.items():
        path = blob_path(blobs, digest)
        if not has_magic(path):
            is_named_gguf = PurePosixPath(file_name).suffix == ".gguf"
            raise InvalidCreate(
                "supplied file was not in GGUF format" if is_named_gguf else "unknown type"
            )
        found.append(Candidate(file_name, path, _header(path), digest))
    return found


def blob_path(blobs: Blobs, digest: Digest) -> Path:
    """Raises: BlobNotFound."""
    path = blobs.path(digest)
    if not path.is_file():
        raise BlobNotFound(digest.text)
    return path


def from_paths(blobs: Blobs, files: Mapping[str, Path]) -> list[Candidate]:
    """Looks at files of this disk before anything is copied; a copy is checked again.

    A path of a blob of this store, such as a shown Modelfile has, is that blob.
    Raises: SourceNotAllowed, InvalidGGUF.
    """
    found = []
    for name, path in files.items():
        if not has_magic(path):
            raise SourceNotAllowed(f"`{shown(path.name)}` is not a GGUF file")
        found.append(Candidate(name, path, _header(path), _digest_of(blobs, path)))
    return found


def _digest_of(blobs: Blobs, path: Path) -> Digest | None:
    if path.parent.resolve() != blobs.folder.resolve():
        return None
    try:
        digest = Digest.parse(path.name)
    except InvalidDigest:
        return None
    blobs.check_in_place(digest)
    return digest


def as_model(found: Sequence[Candidate]) -> Candidates:
    """Sorts the files of one model by what they are for.

    Raises: InvalidCreate (not exactly one model), IncompleteSplit, InvalidGGUF.
    """
    models = [item for item in found if item.header.role == "model"]
    others = tuple(item for item in found if item.header.role != "model")
    is_split = any(n_parts(item.header) > 1 for item in models)
    if len(models) != 1 and not is_split:
        roles = ", ".join(sorted({item.header.role for item in found}))
        raise InvalidCreate(f"exactly one file must be a model; found {len(found)} ({roles})")
    order = in_order([item.name for item in models], [item.header for item in models])
    candidates = Candidates(tuple(models[place] for place in order), others)
    header = candidates.header
    if not header.architecture:
        raise InvalidGGUF("`general.architecture` is missing")
    adapters = [item.header for item in others if item.header.role == "adapter"]
    if len(adapters) > 1:
        raise InvalidCreate("only one adapter is currently supported")
    for adapter in adapters:
        check_adapter(adapter, header)
    return candidates


def stored(
    blobs: Blobs, keep: Keep, candidate: Candidate, *, in_place: bool = False
) -> Generator[Progress, None, Candidate]:
    """Copies a file into the store, or registers it where it is; a blob stays what it is.

    Raises: SourceNotAllowed, InvalidGGUF, ChangedFile, DiskFull, StoreNotWritable.
    """
    if candidate.digest is not None:
        keep.add(candidate.digest)
        return candidate
    if in_place:
        digest, is_new = yield from _link(blobs, candidate.path)
    else:
        digest, is_new = yield from _copy(blobs, candidate.path)
    keep.add(digest)
    if is_new:
        keep.made(digest)
    path = blobs.path(digest)
    return replace(candidate, path=path, header=_header(path), digest=digest)


def adopted(
    blobs: Blobs, keep: Keep, candidate: Candidate, status: str
) -> Generator[Progress, None, Candidate]:
    """Makes a temporary file of the store a blob; it is gone from where it was.

    Raises: DiskFull, StoreNotWritable.
    """
    hashing = HashingWriter()
    size_bytes = candidate.header.file_size_bytes
    yield from _paced(status, size_bytes, _hash(candidate.path, hashing))
    digest = hashing.digest
    keep.add(digest)
    if blobs.adopt(candidate.path, digest):
        keep.made(digest)
    return replace(candidate, path=blobs.path(digest), digest=digest, is_temporary=False)


def layer_of(candidate: Candidate) -> Layer:
    """The layer that a stored file becomes."""
    assert candidate.digest is not None
    header = candidate.header
    return Layer(_ROLE_TYPES[header.role], candidate.digest, header.file_size_bytes)


def has_magic(path: Path) -> bool:
    """Tells whether a file says that it is GGUF. Raises: SourceNotAllowed."""
    with open_regular(path) as file:
        return file.read(len(MAGIC)) == MAGIC


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
    digest = blobs.link_in_place(path, hashing.digest, as_hashed=before)
    if blobs.in_place_source(digest) is None:
        yield Progress(
            f"warning: `{path.name}` is not used in place, since the store has a copy of it already"
        )
    return digest, is_new


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


def _header(path: Path) -> Header:
    header = read_header(path)
    if not header.architecture and not is_later_part(header):
        raise InvalidGGUF("`general.architecture` is missing")
    return header
