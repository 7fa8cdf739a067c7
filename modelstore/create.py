"""Making a model: from another model, from uploaded blobs, or from a GGUF file on this disk.

Owns the order of things: everything is read, checked and stored before the manifest makes the
model visible, so a refusal lists nothing new. Does not know which parameters exist, how templates
work, where models come from or how weights are rewritten: what knows that is passed in.
Source: Ollama `POST /api/create`: inheritance, error texts, status lines.
"""

import re
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from modelstore.adapters import check_adapter
from modelstore.blobs import Blobs
from modelstore.digest import Digest
from modelstore.errors import (
    InvalidCreate,
    ModelNotFound,
    RegistryError,
    StoreError,
    UnsupportedFormat,
    shown,
)
from modelstore.gguf import Header, read_model_header
from modelstore.jobs import Command
from modelstore.keep import Keep
from modelstore.manifest import (
    ADAPTER_TYPE,
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
from modelstore.quantizing import parse_type
from modelstore.records import TEXT_LIMIT_BYTES, Record
from modelstore.sources import (
    SUCCESS,
    Progress,
    as_model,
    check_relative,
    from_blobs,
    layer_of,
)
from modelstore.store import Store
from modelstore.templates import GGUF, NONE, active_template
from modelstore.weights import Weights, WeightsMaker, source_of_blobs, source_of_path

__all__ = ["CreateRequest", "Fetch", "ParameterCheck", "Progress", "TemplateCheck", "create"]

ParameterCheck = Callable[[Mapping[str, Any]], Mapping[str, Any]]
# Raises an error of its own for a text that is no template.
TemplateCheck = Callable[[str], None]
# Brings a model into the store.
Fetch = Callable[[ModelName], Iterator[Progress]]

# As Go's semver reads it: the parts after the first may be missing.
_VERSION = re.compile(r"v?\d+(\.\d+){0,2}(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """What to make. One of `from_`, `files` and `path` says what it is made from.

    `path` is a GGUF file, any part of a split one, or a folder. Texts that are None or empty leave
    what is inherited. Whether a caller may name files of this machine is not decided here.
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
    quantize: str | None = None


@dataclass(slots=True)
class _Draft:
    """The model while it is being put together; `header` is that of its weights."""

    config: ModelConfig
    layers: list[Layer]
    header: Header | None = None
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
    store: Store,
    request: CreateRequest,
    *,
    check_parameters: ParameterCheck,
    check_template: TemplateCheck | None = None,
    fetch: Fetch | None = None,
    job: Command = (),
) -> Iterator[Progress]:
    """Makes the model, reporting as it goes; nothing happens before the first `next`.

    Whoever stops iterating cancels: no manifest is written then. `check_parameters` returns the
    parameters to store, or raises an error of its own, which passes through; so do those of
    `check_template` and `fetch`, which pulls the model that `from_` names if it is not there. `job`
    starts the program that converts and quantizes (see `jobs`).
    Raises: InvalidName, InvalidCreate, ModelNotFound, BlobNotFound, InvalidGGUF, UnsupportedFormat,
    SourceNotAllowed, ChangedFile, JobFailed, DiskFull, StoreBusy, StoreNotWritable.
    """
    name = request.name if isinstance(request.name, ModelName) else ModelName.parse(request.name)
    _check_request(request)
    parameters = dict(check_parameters(request.parameters)) if request.parameters else {}
    if request.template and check_template is not None:
        check_template(request.template)
    with store.keep() as keep:
        quantize = parse_type(request.quantize) if request.quantize else None
        maker = WeightsMaker(store.blobs, keep, job, quantize, request.in_place)
        draft = yield from _start(store, request, maker, fetch)
        if request.adapters:
            draft.replace_layers((ADAPTER_TYPE,), [_adapter(store, keep, draft, request.adapters)])
        texts = _TextWriter(store.blobs, keep)
        _apply_texts(texts, draft, request, parameters)
        config = texts.layer(CONFIG_TYPE, encode_config(_config(draft, request)))
        for layer in [*draft.layers, config]:
            verb = "creating new" if keep.is_made(layer.digest) else "using existing"
            yield Progress(f"{verb} layer {layer.digest.text}")
        yield Progress("writing manifest")
        store.write_manifest(name, Manifest(config, tuple(draft.layers)))
        if warning := _about_template(store, name):
            yield Progress(f"warning: {warning}")
    yield Progress(SUCCESS)


def _about_template(store: Store, name: ModelName) -> str:
    """Tells when the model will not answer like one of chats, or perhaps not."""
    try:
        record = store.resolve(name)
        if record.template or not record.model_paths:
            return ""
        header = read_model_header(record.model_paths)
        origin = active_template(record, header).origin
    except StoreError:  # it was made, and by now it is replaced or removed
        return ""
    if header.is_embedding_model or origin == GGUF:
        return ""
    if origin == NONE:
        return (
            "there is no chat template, so the model continues text instead of answering; a "
            "TEMPLATE changes that"
        )
    return (
        f"the file has no chat template; by its vocabulary it is {origin}, which may be wrong; a "
        "TEMPLATE settles it"
    )


def _check_request(request: CreateRequest) -> None:
    for file_name in [*(request.files or {}), *request.adapters]:
        check_relative(file_name)
    if any(message.get("role") not in ROLES for message in request.messages):
        raise InvalidCreate(f"the role of a message must be one of {', '.join(ROLES)}")
    if len(request.adapters) > 1:
        raise InvalidCreate("only one adapter is currently supported")
    if any(name.endswith(".safetensors") for name in request.adapters):
        raise UnsupportedFormat(
            "safetensors adapters are not supported; convert it with llama.cpp's "
            "convert_lora_to_gguf.py first"
        )
    if request.requires and _VERSION.fullmatch(request.requires) is None:
        version = shown(request.requires)
        raise InvalidCreate(f"`requires` is `{version}`; it must be a version such as 0.14.0")


def _start(
    store: Store, request: CreateRequest, maker: WeightsMaker, fetch: Fetch | None
) -> Generator[Progress, None, _Draft]:
    if request.from_:
        return (yield from _from_model(store, request, maker, fetch))
    if request.path is not None:
        source = source_of_path(request.path)
    elif request.files is not None:
        source = source_of_blobs(store.blobs, maker.keep, request.files)
    else:
        raise InvalidCreate("neither 'from' or 'files' was specified")
    # Before the first report: a refusal can still be the whole answer.
    candidates = maker.look(source)
    if candidates is not None:
        yield Progress("parsing GGUF")
    weights = yield from maker.make(source, candidates)
    return _Draft(_config_of(weights), list(weights.layers), weights.header)


def _from_model(
    store: Store, request: CreateRequest, maker: WeightsMaker, fetch: Fetch | None
) -> Generator[Progress, None, _Draft]:
    name = request.from_
    assert name is not None
    try:
        base = _held(store, maker.keep, name)
    except ModelNotFound as missing:
        if fetch is None:
            raise
        try:
            yield from fetch(name if isinstance(name, ModelName) else ModelName.parse(name))
        except RegistryError as error:
            raise ModelNotFound(missing.name, str(error)) from error
        base = _held(store, maker.keep, name)
    store.check_files(base)
    layers = [
        replace(layer, from_=base.name.display()) if layer.media_type == MODEL_TYPE else layer
        for layer in base.manifest.layers
    ]
    draft = _Draft(base.config, layers, parameters=dict(base.parameters))
    if base.model_paths and request.adapters:
        draft.header = read_model_header(base.model_paths)
    if maker.quantize is not None:
        yield from _requantize(draft, base, maker)
    return draft


def _held(store: Store, keep: Keep, name: str | ModelName) -> Record:
    """The model, once its blobs are held and it still is what it was before they were."""
    while True:
        base = store.resolve(name)
        keep.add(*base.manifest.digests)
        if store.resolve(name).digest == base.digest:
            return base


def _requantize(
    draft: _Draft, base: Record, maker: WeightsMaker
) -> Generator[Progress, None, None]:
    parts = {f"part {number}": digest for number, digest in enumerate(base.model_digests, 1)}
    weights = yield from maker.requantize(as_model(from_blobs(maker.blobs, parts)))
    others = [layer for layer in draft.layers if layer.media_type != MODEL_TYPE]
    draft.layers = [*weights.layers, *others]
    draft.header = weights.header
    draft.config = replace(draft.config, file_type=weights.header.quantization)


def _adapter(store: Store, keep: Keep, draft: _Draft, adapters: Mapping[str, Digest]) -> Layer:
    keep.add(*adapters.values())
    (adapter,) = from_blobs(store.blobs, adapters)
    if draft.header is None:
        raise InvalidCreate("there are no weights that the adapter could change")
    check_adapter(adapter.header, draft.header)
    return layer_of(adapter)


def _config_of(weights: Weights) -> ModelConfig:
    header = weights.header
    return ModelConfig(
        model_format="gguf",
        model_family=header.architecture,
        model_families=weights.families,
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
