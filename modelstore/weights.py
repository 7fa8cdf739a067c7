"""The weights of a new model on their way into the store: converted, quantized, stored.

Owns the order of these steps and the files between them; each heavy step is a job of its own
process, whose result is looked at like any other file before it becomes a blob. Does not know how
one converts or quantizes. Used by `create`.
Source: Ollama `server/create.go` (status lines).
"""

import tempfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from modelstore.blobs import Blobs
from modelstore.digest import Digest
from modelstore.errors import (
    InvalidCreate,
    JobFailed,
    SourceNotAllowed,
    StoreError,
    UnsupportedFormat,
    shown,
)
from modelstore.gguf import Header, read_header
from modelstore.jobs import Command, run_job
from modelstore.keep import Keep
from modelstore.manifest import Layer
from modelstore.picking import pick
from modelstore.quantizing import expected_bytes, source_type
from modelstore.sources import (
    Candidate,
    Candidates,
    Progress,
    adopted,
    as_model,
    blob_path,
    check_relative,
    from_blobs,
    from_paths,
    layer_of,
    stored,
)
from modelstore.splits import part_names

# Ollama's clients look for this where a layer has no digest yet.
_NO_DIGEST = "0" * 19

Steps = Generator[Progress, None, "Weights"]


@dataclass(frozen=True, slots=True)
class Weights:
    """Stored weights: the header of the model as a whole, its layers, and its families."""

    header: Header
    layers: tuple[Layer, ...]
    families: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """Files of this disk that are GGUF, or are to become it; `is_safetensors` says which."""

    files: Mapping[str, Path]
    digests: Mapping[str, Digest]  # of those that are blobs

    @property
    def is_safetensors(self) -> bool:
        """True when one of the files is in that format."""
        return any(PurePosixPath(name).suffix == ".safetensors" for name in self.files)


def source_of_blobs(blobs: Blobs, keep: Keep, files: Mapping[str, Digest]) -> Source:
    """Uploaded blobs, named by the files that they came from.

    Raises: InvalidCreate, BlobNotFound.
    """
    if not files:
        raise InvalidCreate("unknown type")
    for name in files:
        check_relative(name)
    keep.add(*files.values())
    return Source({name: blob_path(blobs, digest) for name, digest in files.items()}, files)


def source_of_path(path: Path) -> Source:
    """A file, any part of a split model, or a folder.

    Raises: SourceNotAllowed, InvalidCreate, IncompleteSplit.
    """
    return Source(pick(path), {})


@dataclass(frozen=True, slots=True)
class WeightsMaker:
    """Makes weights in one store. `job` runs the engine's jobs; without it there are none."""

    blobs: Blobs
    keep: Keep
    job: Command = ()
    quantize: str | None = None
    in_place: bool = False

    def look(self, source: Source) -> Candidates | None:
        """The files that need no conversion, sorted; None for those that do.

        Raises: what `sources` raises.
        """
        if source.is_safetensors:
            if self.in_place:
                raise InvalidCreate("only a GGUF file can be used in place")
            return None
        found = (
            from_blobs(self.blobs, source.digests)
            if source.digests
            else from_paths(self.blobs, source.files)
        )
        candidates = as_model(found)
        self._check_quantize(candidates.header)
        return candidates

    def make(self, source: Source, candidates: Candidates | None) -> Steps:
        """Stores them, after whatever has to be done first.

        Raises: what `sources` raises, UnsupportedFormat, JobFailed.
        """
        with ExitStack() as temporary:
            if candidates is None:
                candidates = yield from self._converted(source, temporary)
            return (yield from self._finished(candidates, temporary))

    def requantize(self, candidates: Candidates) -> Steps:
        """Quantizes weights that are in the store. Raises: as `make`."""
        self._check_quantize(candidates.header)
        with ExitStack() as temporary:
            return (yield from self._finished(candidates, temporary))

    def _check_quantize(self, header: Header) -> None:
        if self.quantize is None:
            return
        source_type(header)
        if self.in_place:
            raise InvalidCreate("a file that is used in place cannot be quantized")

    def _finished(self, candidates: Candidates, temporary: ExitStack) -> Steps:
        if self.quantize not in (None, source_type_or_none(candidates.header)):
            parts = yield from self._quantized(candidates, temporary)
        else:
            parts = yield from self._stored(candidates.parts)
        others = yield from self._stored(candidates.others)
        model = Candidates(parts, others)
        families = [model.header, *(one.header for one in others if one.header.role != "adapter")]
        return Weights(
            model.header,
            tuple(map(layer_of, (*parts, *others))),
            tuple(dict.fromkeys(header.architecture for header in families)),
        )

    def _stored(
        self, found: tuple[Candidate, ...]
    ) -> Generator[Progress, None, tuple[Candidate, ...]]:
        done = []
        for candidate in found:
            if candidate.is_temporary:
                status = f"storing {candidate.name}"
                done.append((yield from adopted(self.blobs, self.keep, candidate, status)))
            else:
                step = stored(self.blobs, self.keep, candidate, in_place=self.in_place)
                done.append((yield from step))
        return tuple(done)

    def _converted(
        self, source: Source, temporary: ExitStack
    ) -> Generator[Progress, None, Candidates]:
        self._check_job("convert safetensors")
        size_bytes = sum(path.stat().st_size for path in source.files.values())
        output = temporary.enter_context(_temporary(self.blobs, size_bytes))
        folder = temporary.enter_context(_linked(source.files))
        status = "converting model"
        yield Progress(status)
        arguments = ["convert", str(folder), str(output)]
        for step in run_job(self.job, "convert the model", arguments):
            yield replace(step, status=status)
        yield Progress("verifying conversion")
        return Candidates((_result(output, "convert the model"),))

    def _quantized(
        self, candidates: Candidates, temporary: ExitStack
    ) -> Generator[Progress, None, tuple[Candidate, ...]]:
        self._check_job("quantize")
        target = str(self.quantize)
        header = candidates.header
        status = f"quantizing {source_type(header)} model to {target}"
        output = temporary.enter_context(_temporary(self.blobs, expected_bytes(header, target)))
        paths = [part.path for part in candidates.parts]
        names = part_names(f"model-00001-of-{len(paths):05d}.gguf")
        folder = temporary.enter_context(_linked(dict(zip(names, paths, strict=True))))
        yield Progress(status, _NO_DIGEST)
        arguments = ["quantize", str(folder / names[0]), str(output), target]
        for step in run_job(self.job, "quantize the model", arguments, digest=_NO_DIGEST):
            yield replace(step, status=status)
        result = _result(output, "quantize the model")
        return ((yield from adopted(self.blobs, self.keep, result, "verifying conversion")),)

    def _check_job(self, what: str) -> None:
        if not self.job:
            raise UnsupportedFormat(f"this program cannot {what}; use a GGUF file as it is")


def source_type_or_none(header: Header) -> str | None:
    """As `source_type`; None for weights that are quantized already."""
    try:
        return source_type(header)
    except InvalidCreate:
        return None


def _result(path: Path, task: str) -> Candidate:
    """What a job has written, looked at as if a stranger had. Raises: JobFailed."""
    if not path.is_file():
        raise JobFailed(task, "it left no file")
    try:
        return Candidate("model.gguf", path, read_header(path), is_temporary=True)
    except StoreError as error:
        raise JobFailed(task, str(error)) from error


@contextmanager
def _temporary(blobs: Blobs, needed_bytes: int) -> Iterator[Path]:
    """A file of the store that is gone afterwards, unless it was adopted."""
    path = blobs.temporary(needed_bytes)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def _linked(files: Mapping[str, Path]) -> Iterator[Path]:
    """A folder of links, in which files have the names that belong to them.

    Raises: SourceNotAllowed for names that cannot stand in one folder.
    """
    with tempfile.TemporaryDirectory(prefix="modelstore-") as text:
        folder = Path(text)
        for name, path in files.items():
            link = folder / name
            try:
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(path.absolute())
            except OSError as error:
                raise SourceNotAllowed(f"`{shown(name)}` cannot be a file's name") from error
        yield folder
