"""Manifests and config blobs: bytes to values and back, exactly in Ollama's JSON.

Owns the wire spellings and the media types. No I/O: the store reads and writes the bytes. Digests
are parsed here, so nothing that passed the decoder can name a path outside `blobs/`.
Source: Ollama `manifest/`, `types/model/config.go`; OCI image manifest, schema version 2.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from modelstore.digest import Digest
from modelstore.errors import CorruptManifest, InvalidDigest

MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
_OLLAMA = "application/vnd.ollama.image."
MODEL_TYPE = _OLLAMA + "model"
PROJECTOR_TYPE = _OLLAMA + "projector"
ADAPTER_TYPE = _OLLAMA + "adapter"
DRAFT_TYPE = _OLLAMA + "draft"
TEMPLATE_TYPE = _OLLAMA + "template"
PROMPT_TYPE = _OLLAMA + "prompt"  # the old name of a template
SYSTEM_TYPE = _OLLAMA + "system"
PARAMS_TYPE = _OLLAMA + "params"
MESSAGES_TYPE = _OLLAMA + "messages"
LICENSE_TYPE = _OLLAMA + "license"
TENSOR_TYPE = _OLLAMA + "tensor"  # safetensors models, which this engine cannot run

# The largest real manifests (safetensors models with a layer per tensor) stay below 1 MiB.
MANIFEST_LIMIT_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Layer:
    """One blob of a model and what it is for."""

    media_type: str
    digest: Digest
    size_bytes: int
    from_: str = ""  # the model that this layer was taken from
    name: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A model as a list of blobs."""

    config: Layer
    layers: tuple[Layer, ...]

    @property
    def digests(self) -> frozenset[Digest]:
        """Every blob that this manifest keeps alive."""
        return frozenset([self.config.digest, *(layer.digest for layer in self.layers)])

    def of_type(self, *media_types: str) -> tuple[Layer, ...]:
        """The layers of these media types, in manifest order."""
        return tuple(layer for layer in self.layers if layer.media_type in media_types)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What listings need to know without opening the weights."""

    model_format: str = ""
    model_family: str = ""
    model_families: tuple[str, ...] | None = None
    model_type: str = ""  # the size label, such as `134.52M`
    file_type: str = ""  # the quantization label, such as `Q4_1`
    renderer: str = ""
    parser: str = ""
    requires: str = ""
    remote_host: str = ""
    remote_model: str = ""
    capabilities: tuple[str, ...] = ()
    context_length: int = 0
    embedding_length: int = 0
    base_name: str = ""
    architecture: str = "amd64"
    os: str = "linux"
    others: dict[str, Any] = field(default_factory=dict)  # keys that this version does not know


class _WireLayer(msgspec.Struct, rename="camel", omit_defaults=True):
    media_type: str
    digest: str
    size: int
    from_: str = msgspec.field(default="", name="from")
    name: str = ""


class _WireManifest(msgspec.Struct, rename="camel"):
    schema_version: int = 2
    media_type: str = MANIFEST_TYPE
    config: _WireLayer | None = None
    layers: list[_WireLayer] | None = None


_MANIFEST_DECODER = msgspec.json.Decoder(_WireManifest)
_CONFIG_ALWAYS = frozenset(
    ["model_format", "model_family", "model_families", "model_type", "file_type"]
)
_CONFIG_TYPES: dict[str, Any] = {
    "model_families": tuple[str, ...] | None,
    "capabilities": tuple[str, ...] | None,
    "context_length": int | None,
    "embedding_length": int | None,
}
_CONFIG_FIELDS = tuple(name for name in ModelConfig.__dataclass_fields__ if name != "others")


def decode_manifest(data: bytes, path_name: str) -> Manifest:
    """Parses a manifest; `path_name` names it in errors. Raises: CorruptManifest."""
    if not data:
        raise CorruptManifest(path_name, "the file is empty")
    try:
        wire = _MANIFEST_DECODER.decode(data)
        if wire.config is None:
            raise CorruptManifest(path_name, "it has no config")
        return Manifest(_layer(wire.config), tuple(map(_layer, wire.layers or ())))
    except (msgspec.MsgspecError, ValueError, RecursionError, InvalidDigest) as error:
        raise CorruptManifest(path_name, str(error)) from error


def what_instead(data: bytes) -> str:
    """What bytes are that are no manifest, in words that repeat nothing of them."""
    text = data.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not text:
        return "the answer is empty"
    if text.startswith(b"<"):
        return "the answer is a page of HTML or XML"
    try:
        found = msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return "the answer is not JSON"
    if not isinstance(found, dict):
        return "the answer is JSON, but no object"
    if "manifests" in found:
        return "it is an index of manifests, such as container images have, and not one of a model"
    missing = [name for name in ("config", "layers") if not found.get(name)]
    if missing:
        return f"it has no {' and no '.join(missing)}"
    return "its fields are not those of a manifest"


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as Ollama writes it; equal manifests give equal bytes, hence equal digests."""
    return msgspec.json.encode(
        _WireManifest(
            config=_wire(manifest.config), layers=[_wire(layer) for layer in manifest.layers]
        )
    )


def decode_config(data: bytes, path_name: str) -> ModelConfig:
    """Parses a config blob, keeping keys it does not know. Raises: CorruptManifest."""
    try:
        raw = msgspec.json.decode(data, type=dict[str, Any])
        known = {}
        for name in _CONFIG_FIELDS:
            value = raw.pop(name, None)
            if value is not None:
                known[name] = msgspec.convert(value, _CONFIG_TYPES.get(name, str))
        return ModelConfig(**known, others=raw)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptManifest(path_name, f"its config: {error}") from error


def encode_config(config: ModelConfig) -> bytes:
    """The config blob; optional keys appear only when they say something."""
    wire: dict[str, Any] = {}
    for name in _CONFIG_FIELDS:
        value = getattr(config, name)
        if value or name in _CONFIG_ALWAYS:
            wire[name] = value
    return msgspec.json.encode(wire | config.others)


def _layer(wire: _WireLayer) -> Layer:
    if wire.size < 0:
        raise ValueError("a layer has a negative size")
    return Layer(wire.media_type, Digest.parse(wire.digest), wire.size, wire.from_, wire.name)


def _wire(layer: Layer) -> _WireLayer:
    return _WireLayer(
        layer.media_type, layer.digest.text, layer.size_bytes, layer.from_, layer.name
    )
