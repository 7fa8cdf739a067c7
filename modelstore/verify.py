"""Does every model still have the bytes that it was made of?

Owns the check of blobs against their digests, the words for what is wrong with a model, and the
order of a repair. A corrupt blob is set aside at once, so that it no longer serves; a model that is
in memory keeps its file. Where the bytes come from again is not known here: `fetch` is passed in.
"""

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from modelstore.blobs import Blobs
from modelstore.digest import Digest, HashingWriter, read_chunks
from modelstore.errors import ChangedFile, ModelNotFound, SourceNotAllowed, StoreError
from modelstore.manifest import MODEL_TYPE, Layer, Manifest
from modelstore.names import ModelName
from modelstore.sources import Progress
from modelstore.store import Store, Survey

Fetch = Callable[[ModelName], Iterator[Progress]]
Kind = Literal["missing", "truncated", "corrupt", "changed", "unreadable", "manifest", "unrepaired"]

_REPORT_EVERY_BYTES = 16 << 20  # as often as other long operations report


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with one blob of a model, or with its manifest: `text` in words."""

    kind: Kind
    text: str
    digest: Digest | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """What was found out about one model. After a repair, `problems` are those that are left."""

    model: str
    problems: tuple[Problem, ...] = ()
    is_repaired: bool = False

    @property
    def is_well(self) -> bool:
        """True when the model has all its bytes."""
        return not self.problems


def verify(
    store: Store,
    names: Iterable[str] = (),
    *,
    repair: bool = False,
    fetch: Fetch | None = None,
) -> Generator[Progress | Health, None, None]:
    """Hashes the blobs of these models, or of all: steps by bytes, then the health of each model.

    `repair` calls `fetch` for every model that is not well. A blob is hashed once, however many
    models need it. Raises: InvalidName, ModelNotFound (before anything is read), StoreBusy.
    """
    wanted = _wanted(store, names)
    layers = {layer.digest: layer for one in wanted.manifests.values() for layer in _layers(one)}
    found: dict[Digest, Problem] = {}
    yield from _check_all(store, layers, found)
    for name in sorted(wanted.unreadable):
        problem = Problem("manifest", f"its manifest is unreadable: {wanted.unreadable[name]}")
        yield from _ended(store, name, (problem,), repair, fetch)
    for model in sorted(wanted.manifests, key=ModelName.full):
        problems = _problems(wanted.manifests[model], found)
        if problems and not store.exists(model):
            continue  # removed meanwhile, and its blobs with it
        yield from _ended(store, model.display(), problems, repair, fetch)


def _wanted(store: Store, names: Iterable[str]) -> Survey:
    survey = store.survey()
    texts = list(names)
    if not texts:
        return survey
    by_name = {name.full().lower(): name for name in survey.manifests}
    unreadable = {name.lower(): name for name in survey.unreadable}
    manifests, problems = {}, {}
    for text in texts:
        wanted = ModelName.parse(text)
        if name := by_name.get(wanted.full().lower()):
            manifests[name] = survey.manifests[name]
        elif broken := unreadable.get(wanted.display().lower()):
            problems[broken] = survey.unreadable[broken]
        else:
            raise ModelNotFound(text)
    return Survey(manifests, problems)


def _check_all(
    store: Store, layers: Mapping[Digest, Layer], found: dict[Digest, Problem]
) -> Iterator[Progress]:
    total = sum(layer.size_bytes for layer in layers.values())
    done = reported = 0
    yield Progress("verifying", total=total, completed=0)
    for layer in layers.values():
        check = _Check(store.blobs, layer)
        for n_bytes in check.run():
            if done + n_bytes - reported >= _REPORT_EVERY_BYTES:
                reported = min(done + n_bytes, total)
                yield Progress("verifying", total=total, completed=reported)
        done += layer.size_bytes
        if check.problem is not None:
            found[layer.digest] = check.problem
    yield Progress("verifying", total=total, completed=total)


def _ended(
    store: Store,
    name: str,
    problems: tuple[Problem, ...],
    repair: bool,
    fetch: Fetch | None,
) -> Iterator[Progress | Health]:
    if not problems or not repair:
        yield Health(name, problems)
        return
    if fetch is None:
        reason = Problem("unrepaired", "it cannot be repaired: no models are pulled here")
        yield Health(name, (*problems, reason))
        return
    yield Progress(f"repairing {name}")
    try:
        yield from fetch(ModelName.parse(name))
        left = yield from _again(store, name, problems)
    except StoreError as error:
        left = (*problems, Problem("unrepaired", f"it cannot be repaired: {error}"))
    yield Health(name, left, is_repaired=not left)


def _again(
    store: Store, name: str, problems: tuple[Problem, ...]
) -> Generator[Progress | Health, None, tuple[Problem, ...]]:
    """Checks what was wrong and what is new, since a name may have got other blobs meanwhile."""
    was_wrong = {problem.digest for problem in problems}
    survey = _wanted(store, [name])
    layers = {
        layer.digest: layer
        for manifest in survey.manifests.values()
        for layer in _layers(manifest)
        if layer.digest in was_wrong or not store.blobs.exists(layer.digest)
    }
    found: dict[Digest, Problem] = {}
    yield from _check_all(store, layers, found)
    broken = tuple(
        Problem("manifest", f"its manifest is unreadable: {text}")
        for text in survey.unreadable.values()
    )
    return broken + tuple(found.values())


class _Check:
    """The check of one blob; `problem` is known when `run` has ended."""

    def __init__(self, blobs: Blobs, layer: Layer) -> None:
        self._blobs = blobs
        self._layer = layer
        self.problem: Problem | None = None

    def run(self) -> Iterator[int]:
        """Yields the bytes hashed so far."""
        digest = self._layer.digest
        path = self._blobs.path(digest)
        try:
            self._blobs.check_in_place(digest)
            before = path.stat()
            hashing = HashingWriter()
            for chunk in read_chunks(path):
                hashing.write(chunk)
                yield hashing.size_bytes
        except ChangedFile as error:
            self._note("changed", str(error))
        except FileNotFoundError:
            self._note("missing", "is not there")
        except (OSError, SourceNotAllowed) as error:
            self._note("unreadable", f"cannot be read: {_reason(error)}")
        else:
            if hashing.digest != digest:
                self._judge(hashing, before)

    def _judge(self, hashing: HashingWriter, looked_at: os.stat_result) -> None:
        kind: Kind = "corrupt"
        text = "has another content than its name says"
        if hashing.size_bytes < self._layer.size_bytes:
            kind = "truncated"
            text = f"has {hashing.size_bytes} of {self._layer.size_bytes} bytes"
        try:
            is_same = self._blobs.set_aside(self._layer.digest, looked_at)
            if not is_same:
                return  # it was replaced while it was read; what replaced it was hashed before
            text += "; it was set aside"
        except StoreError:
            text += "; it could not be set aside, for the store cannot be written"
        self._note(kind, text)

    def _note(self, kind: Kind, text: str) -> None:
        what = "the weights" if self._layer.media_type == MODEL_TYPE else "a part"
        named = f"{what} (blob {self._layer.digest.hex[:12]}) {text}"
        self.problem = Problem(kind, text if kind == "changed" else named, self._layer.digest)


def _layers(manifest: Manifest) -> tuple[Layer, ...]:
    return (manifest.config, *manifest.layers)


def _problems(manifest: Manifest, found: Mapping[Digest, Problem]) -> tuple[Problem, ...]:
    digests = dict.fromkeys(layer.digest for layer in _layers(manifest))
    return tuple(found[digest] for digest in digests if digest in found)


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
