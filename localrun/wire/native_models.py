"""Ollama's dialect for models: requests to show, copy, delete, create, pull; lists; descriptions.

Owns the wire names of these routes and nothing of the store: names, digests and paths stay text.
Where a field is absent rather than empty, its default is UNSET.
Source: Ollama `api/types.go`.
"""

from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from localrun.errors import BadRequest
from localrun.options import check_options
from localrun.wire.bodies import decode, required_model

_encode = msgspec.json.Encoder().encode


class _Named(msgspec.Struct, kw_only=True):
    """`name` is the old spelling of `model`; some clients send both."""

    model: str | None = None
    name: str | None = None


class _Show(_Named, kw_only=True):
    verbose: bool | None = None
    system: str | None = None
    options: dict[str, Any] | None = None


class _Copy(msgspec.Struct):
    source: str | None = None
    destination: str | None = None


class _StoredMessage(msgspec.Struct):
    role: str
    content: str | None = None


class _Create(_Named, kw_only=True, rename={"from_": "from"}):
    stream: bool | None = None
    from_: str | None = None
    files: dict[str, str] | None = None
    adapters: dict[str, str] | None = None
    draft_files: dict[str, str] | None = None
    path: str | None = None
    in_place: bool | None = None
    quantize: str | None = None
    quantization: str | None = None
    template: str | None = None
    system: str | None = None
    license: str | list[str] | None = None
    parameters: dict[str, Any] | None = None
    messages: list[_StoredMessage] | None = None
    renderer: str | None = None
    parser: str | None = None
    requires: str | None = None


class _Pull(_Named, kw_only=True):
    """`username` and `password` are in Ollama's API too, and ignored there and here."""

    stream: bool | None = None
    insecure: bool | None = None


_NAMED = msgspec.json.Decoder(_Named)
_SHOW = msgspec.json.Decoder(_Show)
_COPY = msgspec.json.Decoder(_Copy)
_CREATE = msgspec.json.Decoder(_Create)
_PULL = msgspec.json.Decoder(_Pull)


class PullModel(msgspec.Struct, frozen=True):
    """A request to fetch `model`, a name or the URL of a GGUF file, from where it is."""

    model: str
    stream: bool
    insecure: bool


class CreateModel(msgspec.Struct, frozen=True, kw_only=True):
    """A request to create a model: of `from_`, `files` and `path` at least one is wanted.

    `files` and `adapters` map file names to digests; `path` is a file of the daemon's machine.
    """

    model: str
    stream: bool
    from_: str | None
    files: dict[str, str] | None
    adapters: dict[str, str]
    path: str | None
    in_place: bool
    template: str | None
    system: str | None
    licenses: tuple[str, ...]
    parameters: dict[str, Any]
    messages: tuple[dict[str, str], ...]
    renderer: str | None
    parser: str | None
    requires: str | None
    quantize: str | None


def decode_delete(body: bytes) -> str:
    """The name in a request to delete. Raises BadRequest."""
    wire = decode(_NAMED, body)
    return required_model(wire.model or wire.name)


class ShowModel(msgspec.Struct, frozen=True):
    """A request to show a model, as it would be with another system text and further options."""

    model: str
    verbose: bool = False
    system: str = ""
    options: dict[str, Any] = {}


def decode_show(body: bytes) -> ShowModel:
    """The request of POST /api/show. Raises BadRequest."""
    wire = decode(_SHOW, body)
    options, _unknown = check_options(wire.options or {})
    model = required_model(wire.model or wire.name)
    return ShowModel(model, wire.verbose is True, wire.system or "", options)


def decode_copy(body: bytes) -> tuple[str, str]:
    """(source, destination) of a request to copy. Raises BadRequest."""
    wire = decode(_COPY, body)
    return wire.source or "", wire.destination or ""


def decode_create(body: bytes) -> CreateModel:
    """The request of POST /api/create. Raises BadRequest."""
    wire = decode(_CREATE, body)
    if wire.draft_files:
        raise BadRequest(
            "draft_files", "there is no speculative decoding here; create the model without a draft"
        )
    return CreateModel(
        model=required_model(wire.model or wire.name),
        stream=wire.stream is not False,
        from_=wire.from_ or None,
        files=wire.files,
        adapters=wire.adapters or {},
        path=wire.path or None,
        in_place=wire.in_place is True,
        template=wire.template,
        system=wire.system,
        licenses=(wire.license,) if isinstance(wire.license, str) else tuple(wire.license or ()),
        parameters=wire.parameters or {},
        messages=tuple(
            {"role": message.role.lower(), "content": message.content or ""}
            for message in wire.messages or ()
        ),
        renderer=wire.renderer,
        parser=wire.parser,
        requires=wire.requires,
        quantize=wire.quantize or wire.quantization or None,
    )


def decode_pull(body: bytes) -> PullModel:
    """The request of POST /api/pull or /api/push. Raises BadRequest."""
    wire = decode(_PULL, body)
    model = required_model(wire.model or wire.name)
    return PullModel(model, wire.stream is not False, wire.insecure is True)


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """What lists say about a model's weights."""

    parent_model: str = ""
    format: str = ""
    family: str = ""
    families: tuple[str, ...] | None = None
    parameter_size: str = ""
    quantization_level: str = ""
    context_length: int | UnsetType = UNSET
    embedding_length: int | UnsetType = UNSET


class InstalledModel(msgspec.Struct, frozen=True, kw_only=True):
    """A row of /api/tags; `size` in bytes, `digest` without a prefix.

    Ours: `incomplete` when weights are not there, or changed where they are used in place.
    """

    name: str
    model: str
    modified_at: datetime
    size: int
    digest: str
    details: Details
    capabilities: list[str] | UnsetType = UNSET
    incomplete: bool | UnsetType = UNSET


class Slots(msgspec.Struct, frozen=True):
    """Sequences that a runner can and does carry."""

    total: int
    busy: int


class Kv(msgspec.Struct, frozen=True):
    """Cells of a runner's KV cache; `used` ones include those `retained` for their prefix only."""

    cells: int
    used: int
    retained: int
    free: int
    used_max: int


class DevicePart(msgspec.Struct, frozen=True):
    """What a model has on one device, in bytes: `size` is the other three together."""

    name: str
    size: int
    weights: int
    kv: int
    compute: int


class RunningModel(msgspec.Struct, frozen=True, kw_only=True):
    """A row of /api/ps; sizes in bytes. What follows `context_length` is ours."""

    name: str
    model: str
    size: int
    digest: str
    details: Details
    expires_at: str
    size_vram: int
    context_length: int
    slots: Slots
    queued: int
    state: str
    layout: str | UnsetType = UNSET
    kv: Kv | UnsetType = UNSET
    devices: tuple[DevicePart, ...] | UnsetType = UNSET


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """The reply of /api/show; `model_info` is always present, since clients insist on it."""

    license: str | UnsetType = UNSET
    modelfile: str
    parameters: str | UnsetType = UNSET
    template: str
    # Ours: modelfile, gguf, fallback:NAME or none.
    template_origin: str = "none"
    system: str | UnsetType = UNSET
    details: Details
    messages: tuple[dict[str, str], ...] | UnsetType = UNSET
    model_info: dict[str, Any]
    projector_info: dict[str, Any] | UnsetType = UNSET
    tensors: list[dict[str, Any]] | UnsetType = UNSET
    capabilities: list[str]
    modified_at: datetime
    requires: str | UnsetType = UNSET
    # Ours: why the model cannot run, and what to do.
    problem: str | UnsetType = UNSET


def encode_models(models: list[InstalledModel] | list[RunningModel]) -> bytes:
    """The list of /api/tags or /api/ps."""
    return _encode({"models": models})


def encode_description(description: Description) -> bytes:
    """The reply of /api/show."""
    return _encode(description)


def encode_version(version: str, localrun: str, pid: int) -> bytes:
    """The reply of /api/version: clients gate on the first, our CLI looks at the others."""
    return _encode({"version": version, "localrun": localrun, "pid": pid})


def encode_struct(reply: msgspec.Struct) -> bytes:
    """A reply of a route that is ours, as it is: a diagnosis, figures of the store."""
    return _encode(reply)


def encode_progress(
    status: str, digest: str | None, total: int | None, completed: int | None
) -> bytes:
    """One step of a long operation; sizes in bytes, left out when zero or unknown."""
    step: dict[str, Any] = {"status": status}
    sizes = {"digest": digest, "total": total, "completed": completed}
    return _encode(step | {name: value for name, value in sizes.items() if value})
