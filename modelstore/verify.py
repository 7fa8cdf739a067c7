"""Does every model still have the bytes that it was made of?

Owns the check of blobs against their digests, the words for what is wrong with a model, and the
order of a repair. A corrupt blob is set aside at once, so that it no longer serves; a model that is
in memory keeps its file. In a folder that is not ours that takes a repair. A file in place always
stays; what was found is noted in its record. A repair changes no manifest: it brings the blobs that
are named there, and nothing else. Where from is not known here: `fetch` is passed in.
"""

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from modelstore.catalogue import Survey
from modelstore.digest import Digest, HashingWriter, read_chunks
from modelstore.errors import (
    GONE,
    BlobNotFound,
    ChangedFile,
    ModelNotFound,
    ServerRefused,
    SourceNotAllowed,
    StoreError,
)
from modelstore.in_place import OTHER_CONTENT
from modelstore.manifest import MODEL_TYPE, Layer, Manifest
from modelstore.names import ModelName
from modelstore.records import layer_bytes
from modelstore.sources import Progress
from modelstore.store import Store

# Brings one blob of a model into the store.
FetchBlob = Callable[[ModelName, Layer], Iterator[Progress]]
Kind = Literal[
    "missing", "truncated", "corrupt", "changed", "unreadable", "size", "manifest", "unrepaired"
]

_REPORT_EVERY_BYTES = 16 << 20  # as often as other long operations report
_FETCHABLE: tuple[Kind, ...] = ("missing", "truncated", "corrupt")


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with one blob of a model, or with its manifest: `text` in words."""

    kind: Kind
    text: str
    digest: Digest | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """What was found out about one model. After a repair, `problems` are those that are left.

    `notes` tell what was changed although nothing is wrong.
    """

    model: str
    problems: tuple[Problem, ...] = ()
    is_repaired: bool = False
    notes: tuple[str, ...] = ()

    @property
    def is_well(self) -> bool:
        """True when the model has all its bytes."""
        return not self.problems


@dataclass(slots=True)
class _Found:
    """What the check of blobs has brought so far."""

    problems: dict[Digest, Problem] = field(default_factory=dict)
    notes: dict[Digest, str] = field(default_factory=dict)


def verify(
    store: Store,
    names: Iterable[str] = (),
    *,
    repair: bool = False,
    fetch: FetchBlob | None = None,
) -> Generator[Progress | Health, None, None]:
    """Hashes the blobs of these models, or of all: steps by bytes, then the health of each model.

    `repair` calls `fetch` for every blob that is missing or was set aside. A blob is hashed once,
    however many models need it.
    Raises: InvalidName, ModelNotFound (before anything is read), StoreBusy.
    """
    wanted = _wanted(store, names)
    layers = {layer.digest: layer for one in wanted.manifests.values() for layer in _layers(one)}
    found = _Found()
    yield from _check_all(store, layers, found, may_change=repair or store.is_ours)
    for name in sorted(wanted.unreadable):
        problem = Problem("manifest", f"its manifest is unreadable: {wanted.unreadable[name]}")
        left = _unrepaired(name, (problem,)) if repair else ()
        yield Health(name, (problem, *left))
    for model in sorted(wanted.manifests, key=ModelName.full):
        manifest = wanted.manifests[model]
        problems = _problems(store, manifest, found)
        if problems and not store.exists(model):
            continue  # removed meanwhile, and its blobs with it
        if problems and repair:
            yield Progress(f"repairing {model.display()}")
            left = yield from _repair(store, model, manifest, problems, fetch)
            yield Health(model.display(), left, is_repaired=not left)
        else:
            notes = [found.notes[one] for one in _digests(manifest) if one in found.notes]
            yield Health(model.display(), problems, notes=tuple(notes))


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
    store: Store, layers: Mapping[Digest, Layer], found: _Found, *, may_change: bool
) -> Iterator[Progress]:
    sizes = {digest: layer_bytes(layer, store.blobs) for digest, layer in layers.items()}
    total = sum(sizes.values())
    done = reported = 0
    yield Progress("verifying", total=total, completed=0)
    for layer in layers.values():
        check = _Check(store, layer, may_change=may_change)
        for n_bytes in check.run():
            if done + n_bytes - reported >= _REPORT_EVERY_BYTES:
                reported = min(done + n_bytes, total)
                yield Progress("verifying", total=total, completed=reported)
        done += sizes[layer.digest]
        if check.problem is not None:
            found.problems[layer.digest] = check.problem
        if check.note:
            found.notes[layer.digest] = check.note
    yield Progress("verifying", total=total, completed=total)


def _repair(
    store: Store,
    name: ModelName,
    manifest: Manifest,
    problems: tuple[Problem, ...],
    fetch: FetchBlob | None,
) -> Generator[Progress | Health, None, tuple[Problem, ...]]:
    """Brings what can be brought; returns what is left, and why."""
    lost = {problem.digest for problem in problems if problem.kind in _FETCHABLE}
    layers = {layer.digest: layer for layer in _layers(manifest) if layer.digest in lost}
    reasons = []
    for layer in layers.values() if fetch is not None else ():
        assert fetch is not None
        try:
            yield from fetch(name, layer)
        except StoreError as error:
            reasons.append(Problem("unrepaired", f"not repaired: {_why(name, error)}"))
    found = _Found()
    yield from _check_all(store, layers, found, may_change=True)
    left = [problem for problem in problems if problem.digest not in layers]
    if layers and fetch is None:
        reasons.append(Problem("unrepaired", "not repaired: no models are pulled here"))
    reasons += _unrepaired(name.display(), left)
    # Again with the sizes, which could not be compared before.
    return (*left, *_problems(store, manifest, found, but=left), *dict.fromkeys(reasons))


def _unrepaired(name: str, problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Why these are not for a repair."""
    texts = {
        "changed": "a file that is used in place is not fetched; it has to come back",
        "unreadable": "what is there cannot be read",
        "size": f"the manifest is wrong; `localrun pull {name}` would replace the model",
        "manifest": f"a repair keeps manifests; `localrun pull {name}` would replace the model",
    }
    kinds = dict.fromkeys(problem.kind for problem in problems)
    return tuple(Problem("unrepaired", f"not repaired: {texts[kind]}") for kind in kinds)


def _why(name: ModelName, error: StoreError) -> str:
    refusal = error if isinstance(error, ServerRefused) else error.__cause__
    if isinstance(refusal, ServerRefused) and refusal.status == 404:
        return (
            "the registry does not have this blob; "
            f"`localrun pull {name.display()}` would replace the model"
        )
    return str(error)


class _Check:
    """The check of one blob; `problem` and `note` are known when `run` has ended."""

    def __init__(self, store: Store, layer: Layer, *, may_change: bool) -> None:
        self._blobs = store.blobs
        self._layer = layer
        self._may_change = may_change
        self.problem: Problem | None = None
        self.note = ""

    def run(self) -> Iterator[int]:
        """Yields the bytes hashed so far."""
        path = self._blobs.path(self._layer.digest)
        try:
            source = self._blobs.in_place_source(self._layer.digest)
            before = path.stat()
            hashing = HashingWriter()
            for chunk in read_chunks(path):
                hashing.write(chunk)
                yield hashing.size_bytes
        except FileNotFoundError:
            if source is None:
                self._note("missing", "is not there")
            else:
                self._note_in_place(ChangedFile(source.name, GONE))
        except (OSError, SourceNotAllowed) as error:
            self._note("unreadable", f"cannot be read: {_reason(error)}")
        else:
            if source is not None:
                self._judge_in_place(hashing, before, source.name)
            elif hashing.digest != self._layer.digest:
                self._judge(hashing, before)

    def _judge_in_place(
        self, hashing: HashingWriter, looked_at: os.stat_result, file_name: str
    ) -> None:
        blobs, digest = self._blobs, self._layer.digest
        is_right = hashing.digest == digest
        wrong = ChangedFile(file_name, OTHER_CONTENT)
        try:
            if is_right:
                if blobs.confirm(digest, looked_at):
                    self.note = f"file `{file_name}`, used in place, is registered again"
                return
            if self._may_change or blobs.is_registered(digest):
                blobs.doubt(digest, looked_at)
            self._note_in_place(wrong)
        except ChangedFile as error:
            self._note_in_place(error)
        except StoreError:
            again = ChangedFile(file_name, "is the same, but looks changed") if is_right else wrong
            self._note_in_place(again, "; this cannot be noted, for the store cannot be written")

    def _judge(self, hashing: HashingWriter, looked_at: os.stat_result) -> None:
        kind: Kind = "corrupt"
        text = "has another content than its name says"
        if hashing.size_bytes < self._layer.size_bytes:
            kind = "truncated"
            text = f"has {hashing.size_bytes} of {self._layer.size_bytes} bytes"
        if not self._may_change:
            # Its owner may be at work there, and looks after it himself.
            text += "; it stays, for the folder is not localrun's own; `--repair` sets it aside"
            self._note(kind, text)
            return
        try:
            is_same = self._blobs.set_aside(self._layer.digest, looked_at)
            if not is_same:
                return  # it was replaced while it was read; what replaced it was hashed before
            text += "; it was set aside"
        except StoreError:
            text += "; it could not be set aside, for the store cannot be written"
        self._note(kind, text)

    def _note(self, kind: Kind, text: str) -> None:
        self.problem = Problem(kind, f"{_named(self._layer)} {text}", self._layer.digest)

    def _note_in_place(self, error: ChangedFile, more: str = "") -> None:
        self.problem = Problem("changed", error.finding + more, self._layer.digest)


def _named(layer: Layer) -> str:
    what = "the weights" if layer.media_type == MODEL_TYPE else "a part"
    return f"{what} (blob {layer.digest.hex[:12]})"


def _layers(manifest: Manifest) -> tuple[Layer, ...]:
    return (manifest.config, *manifest.layers)


def _digests(manifest: Manifest) -> Iterable[Digest]:
    return dict.fromkeys(layer.digest for layer in _layers(manifest))


def _problems(
    store: Store, manifest: Manifest, found: _Found, *, but: Iterable[Problem] = ()
) -> tuple[Problem, ...]:
    """Those of the blobs; and where a whole blob has another size than the manifest says."""
    known = {problem.digest for problem in but}
    problems = []
    for layer in {layer.digest: layer for layer in _layers(manifest)}.values():
        if layer.digest in known:
            continue
        problem = found.problems.get(layer.digest) or _wrong_size(store, layer)
        if problem is not None:
            problems.append(problem)
    return tuple(problems)


def _wrong_size(store: Store, layer: Layer) -> Problem | None:
    try:
        size_bytes = store.blobs.size(layer.digest)
    except BlobNotFound:
        return None  # removed since it was hashed
    if size_bytes == layer.size_bytes:
        return None
    text = f"has {size_bytes} bytes, and the manifest says {layer.size_bytes}"
    return Problem("size", f"{_named(layer)} {text}", layer.digest)


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
