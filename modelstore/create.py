"""Making a model: from another model, from uploaded blobs, or from a GGUF file on this disk.

Owns the order of things: everything is read, checked and stored before the manifest makes the
model visible, so a refusal lists nothing new. Weights are stored as they are, never rewritten.
Does not know which parameters exist (`check_parameters` is passed in) or how templates work.
Source: Ollama `POST /api/create`: inheritance, error texts, status lines.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from modelstore.blobs import Blobs
from modelstore.digest import Digest
from modelstore.errors import InvalidCreate
from modelstore.keep import Keep
from modelstore.manifest import (
    CONFIG_TYPE,
    LICENSE_TYPE,
    MESSAGES_TYPE,
    MODEL_TYPE,
    PARAMS_TYPE,
    PROMPT_TYPE,
    SYSTEM_TYPE,
    TEMPLATE_TYPE,
    Layer,
    Manifest,
    ModelConfig,
    encode_config,
)
from modelstore.modelfile import ROLES
from modelstore.names import ModelName
from modelstore.records import TEXT_LIMIT_BYTES
from modelstore.sources import (
    Progress,
    Weights,
    check_path,
    check_relative,
    weights_from_blobs,
    weights_from_path,
)
from modelstore.store import Store

__all__ = ["CreateRequest", "ParameterCheck", "Progress", "create"]

ParameterCheck = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """What to make. One of `from_`, `files` and `path` says what it is made from.

    Texts that are None or empty leave what is inherited. Whether a caller may name files of this
    machine in `path` is not decided here.
    """

    name: str | ModelName
    from_: str | ModelName | None = None
    files: Mapping[str, Digest] | None = None  # an empty map counts as given, and is refused
    path: Path | None = None
    in_place: bool = False
    template: str | None = None
    system: str | None = None
    licenses: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Mapping[str, str], ...] = ()
    adapters: Mapping[str, Digest] = field(default_factory=dict)
    renderer: str | None = None
    parser: str | None = None
    requires: str | None = None


@dataclass(slots=True)
class _Draft:
    """The model while it is being put together."""

    config: ModelConfig
    layers: list[Layer]
    parameters: dict[str, Any] = field(default_factory=dict)

    def replace_layers(self, media_types: tuple[str, ...], layers: list[Layer]) -> None:
        kept = [layer for layer in self.layers if layer.media_type not in media_types]
        self.layers = kept + layers


class _TextWriter:
    """Stores small layers; they are kept before anybody looks whether they exist."""

    def __init__(self, blobs: Blobs, keep: Keep) -> None:
        self._blobs = blobs
        self._keep = keep

    def layer(self, media_type: str, data: bytes) -> Layer:
        if len(data) > TEXT_LIMIT_BYTES:
            what = media_type.rpartition(".")[2]
            raise InvalidCreate(f"the {what} is longer than {TEXT_LIMIT_BYTES >> 20} MiB")
        digest = Digest.of(data)
        self._keep.add(digest)
        _, is_new = self._blobs.ingest([data], digest)
        if is_new:
            self._keep.made(digest)
        return Layer(media_type, digest, len(data))


def create(
    store: Store, request: CreateRequest, *, check_parameters: ParameterCheck
) -> Iterator[Progress]:
    """Makes the model, reporting as it goes; nothing happens before the first `next`.

    Whoever stops iterating cancels: no manifest is written then. `check_parameters` returns the
    parameters to store, or raises an error of its own, which passes through.
    Raises: InvalidName, InvalidCreate, ModelNotFound, BlobNotFound, InvalidGGUF, UnsupportedFormat,
    SourceNotAllowed, ChangedFile, DiskFull, StoreBusy, StoreNotWritable.
    """
    name = request.name if isinstance(request.name, ModelName) else ModelName.parse(request.name)
    _check_request(request)
    parameters = dict(check_parameters(request.parameters)) if request.parameters else {}
    with store.keep() as keep:
        draft = yield from _start(store, keep, request)
        if request.adapters:
            keep.add(*request.adapters.values())
            adapters = weights_from_blobs(store.blobs, request.adapters, only_adapters=True)
            draft.layers += [item.layer for item in adapters]
        texts = _TextWriter(store.blobs, keep)
        _apply_texts(texts, draft, request, parameters)
        config = texts.layer(CONFIG_TYPE, encode_config(_config(draft, request)))
        for layer in [*draft.layers, config]:
            verb = "creating new" if keep.is_made(layer.digest) else "using existing"
            yield Progress(f"{verb} layer {layer.digest.text}")
        yield Progress("writing manifest")
        store.write_manifest(name, Manifest(config, tuple(draft.layers)))
    yield Progress("success")


def _check_request(request: CreateRequest) -> None:
    for file_name in [*(request.files or {}), *request.adapters]:
        check_relative(file_name)
    if any(message.get("role") not in ROLES for message in request.messages):
        raise InvalidCreate(f"the role of a message must be one of {', '.join(ROLES)}")
    if len(request.adapters) > 1:
        raise InvalidCreate("only one adapter is currently supported")


def _start(store: Store, keep: Keep, request: CreateRequest) -> Generator[Progress, None, _Draft]:
    if request.from_:
        return _from_model(store, keep, request.from_)
    if request.path is None and request.files is None:
        raise InvalidCreate("neither 'from' or 'files' was specified")
    if request.path is not None:
        check_path(request.path)  # before the first report: a refusal can still be the whole answer
    yield Progress("parsing GGUF")
    if request.path is not None:
        weights = yield from weights_from_path(
            store.blobs, keep, request.path, in_place=request.in_place
        )
    else:
        files = request.files or {}
        keep.add(*files.values())
        weights = weights_from_blobs(store.blobs, files)
    return _Draft(_config_of(weights), [item.layer for item in weights])


def _from_model(store: Store, keep: Keep, name: str | ModelName) -> _Draft:
    base = store.resolve(name)
    keep.add(*base.manifest.digests)
    layers = [
        replace(layer, from_=base.name.display()) if layer.media_type == MODEL_TYPE else layer
        for layer in base.manifest.layers
    ]
    return _Draft(base.config, layers, dict(base.parameters))


def _config_of(weights: tuple[Weights, ...]) -> ModelConfig:
    header = next(item.header for item in weights if item.header.role == "model")
    families = dict.fromkeys(
        item.header.architecture for item in weights if item.header.role != "adapter"
    )
    return ModelConfig(
        model_format="gguf",
        model_family=header.architecture,
        model_families=tuple(families),
        model_type=header.parameter_size,
        file_type=header.quantization,
        context_length=header.arch_int("context_length") or 0,
        embedding_length=header.arch_int("embedding_length") or 0,
    )


def _config(draft: _Draft, request: CreateRequest) -> ModelConfig:
    return replace(
        draft.config,
        renderer=request.renderer or draft.config.renderer,
        parser=request.parser or draft.config.parser,
        requires=request.requires or draft.config.requires,
    )


def _apply_texts(
    texts: _TextWriter, draft: _Draft, request: CreateRequest, parameters: Mapping[str, Any]
) -> None:
    layer = texts.layer
    if request.template:
        template = layer(TEMPLATE_TYPE, _bytes(request.template))
        draft.replace_layers((TEMPLATE_TYPE, PROMPT_TYPE), [template])
    if request.system:
        draft.replace_layers((SYSTEM_TYPE,), [layer(SYSTEM_TYPE, _bytes(request.system))])
    if request.messages:
        plain = [
            {"role": message["role"], "content": message.get("content", "")}
            for message in request.messages
        ]
        draft.replace_layers((MESSAGES_TYPE,), [layer(MESSAGES_TYPE, _json(plain))])
    if parameters:
        merged = draft.parameters | dict(parameters)
        draft.replace_layers((PARAMS_TYPE,), [layer(PARAMS_TYPE, _json(merged))])
    known = {item.digest for item in draft.layers if item.media_type == LICENSE_TYPE}
    for text in filter(None, request.licenses):
        license_layer = layer(LICENSE_TYPE, _bytes(text))
        if license_layer.digest not in known:  # a model made again from itself gains no copies
            known.add(license_layer.digest)
            draft.layers.append(license_layer)


def _bytes(text: str) -> bytes:
    return text.encode(errors="replace")  # a lone surrogate from a JSON escape has no UTF-8 form


def _json(value: Any) -> bytes:
    # Sorted, so that equal content has an equal digest whatever order it was given in.
    return msgspec.json.encode(value, order="sorted")
