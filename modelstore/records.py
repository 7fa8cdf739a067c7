"""What the store hands out about a model: `Listing` for tables, `Record` for everything else.

Owns the reading of the small layers (template, system, parameters, messages, licenses). Knows
manifests and blobs, but not where manifests lie or how names are matched.
Source: Ollama's layer media types; legacy `prompt` layers count as templates.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from modelstore.blobs import Blobs
from modelstore.digest import Digest
from modelstore.errors import BlobNotFound, CorruptManifest, IncompleteModel
from modelstore.manifest import (
    ADAPTER_TYPE,
    LICENSE_TYPE,
    MESSAGES_TYPE,
    MODEL_TYPE,
    PARAMS_TYPE,
    PROJECTOR_TYPE,
    PROMPT_TYPE,
    SYSTEM_TYPE,
    TEMPLATE_TYPE,
    Layer,
    Manifest,
    ModelConfig,
)
from modelstore.names import ModelName

# A text layer is prose or a template; the longest licenses have about 100 KiB. A manifest that
# calls gigabytes of weights a system prompt must not bring them into memory.
TEXT_LIMIT_BYTES = 4 << 20

_Json = TypeVar("_Json")


@dataclass(frozen=True, slots=True)
class Listing:
    """One line of a list of models; made without opening any layer but the config."""

    name: ModelName
    digest: str  # hex sha256 of the manifest's bytes, without a prefix
    size_bytes: int
    modified_at: datetime
    config: ModelConfig
    model_path: Path | None
    model_digest: Digest | None
    parent_model: str
    has_projector: bool
    weight_digests: tuple[Digest, ...] = ()  # as `Record.weight_digests`


@dataclass(frozen=True, slots=True)
class Record:
    """A resolved model: paths of its large layers and the content of its small ones."""

    name: ModelName
    digest: str  # hex sha256 of the manifest's bytes, without a prefix
    size_bytes: int
    modified_at: datetime
    manifest: Manifest
    config: ModelConfig
    model_paths: tuple[Path, ...]  # one, or the parts of a split model in order
    model_digests: tuple[Digest, ...]
    adapter_paths: tuple[Path, ...]
    projector_paths: tuple[Path, ...]
    template: str | None
    system: str | None
    parameters: Mapping[str, Any]
    messages: tuple[dict[str, str], ...]
    licenses: tuple[str, ...]
    parent_model: str

    @property
    def model_path(self) -> Path | None:
        """The file with the model's metadata: the only one, or the first part."""
        return next(iter(self.model_paths), None)

    @property
    def model_digest(self) -> Digest | None:
        """Names the weights: the digest of the only file, or one over those of all parts."""
        if len(self.model_digests) <= 1:
            return next(iter(self.model_digests), None)
        return Digest.of("\n".join(digest.text for digest in self.model_digests).encode())

    @property
    def weight_digests(self) -> tuple[Digest, ...]:
        """The blobs that the engine opens: model, adapters, projectors."""
        return _weight_digests(self.manifest)


def build_listing(
    name: ModelName, digest: str, modified_at: datetime, parts: tuple[Manifest, ModelConfig, Blobs]
) -> Listing:
    """Puts a line together; looks at sizes, and opens nothing."""
    manifest, config, blobs = parts
    model = next(iter(manifest.of_type(MODEL_TYPE)), None)
    return Listing(
        name=name,
        digest=digest,
        size_bytes=sum(layer_bytes(layer, blobs) for layer in (manifest.config, *manifest.layers)),
        modified_at=modified_at,
        config=config,
        model_path=blobs.path(model.digest) if model else None,
        model_digest=model.digest if model else None,
        parent_model=model.from_ if model else "",
        has_projector=bool(manifest.of_type(PROJECTOR_TYPE)),
        weight_digests=_weight_digests(manifest),
    )


def build_record(listing: Listing, manifest: Manifest, blobs: Blobs) -> Record:
    """Reads the small layers. Raises: IncompleteModel, CorruptManifest."""
    read = _LayerReader(listing.name.display(), manifest, blobs)
    return Record(
        name=listing.name,
        digest=listing.digest,
        size_bytes=listing.size_bytes,
        modified_at=listing.modified_at,
        manifest=manifest,
        config=listing.config,
        model_paths=read.paths(MODEL_TYPE),
        model_digests=tuple(layer.digest for layer in manifest.of_type(MODEL_TYPE)),
        adapter_paths=read.paths(ADAPTER_TYPE),
        projector_paths=read.paths(PROJECTOR_TYPE),
        template=read.last_text(TEMPLATE_TYPE, PROMPT_TYPE),
        system=read.last_text(SYSTEM_TYPE),
        parameters=read.json(PARAMS_TYPE, dict[str, Any]) or {},
        messages=tuple(_plain(m) for m in read.json(MESSAGES_TYPE, list[dict[str, Any]]) or []),
        licenses=read.texts(LICENSE_TYPE),
        parent_model=listing.parent_model,
    )


def layer_bytes(layer: Layer, blobs: Blobs) -> int:
    """The size of its file; the manifest is believed only about one that is not there."""
    try:
        return blobs.size(layer.digest)
    except BlobNotFound:
        return layer.size_bytes


def read_part(blobs: Blobs, layer: Layer, name: str, *, limit_bytes: int) -> bytes:
    """At most so much of a layer of the model `name`, or of its config. Raises: IncompleteModel."""
    try:
        return blobs.read(layer.digest, limit_bytes=limit_bytes)
    except BlobNotFound as error:
        raise IncompleteModel(name, layer.digest.text) from error


def _weight_digests(manifest: Manifest) -> tuple[Digest, ...]:
    layers = manifest.of_type(MODEL_TYPE, ADAPTER_TYPE, PROJECTOR_TYPE)
    return tuple(layer.digest for layer in layers)


class _LayerReader:
    def __init__(self, name: str, manifest: Manifest, blobs: Blobs) -> None:
        self._name = name
        self._manifest = manifest
        self._blobs = blobs

    def paths(self, media_type: str) -> tuple[Path, ...]:
        layers = self._manifest.of_type(media_type)
        return tuple(self._blobs.path(layer.digest) for layer in layers)

    def texts(self, *media_types: str) -> tuple[str, ...]:
        layers = self._manifest.of_type(*media_types)
        return tuple(self._read(layer).decode(errors="replace") for layer in layers)

    def last_text(self, *media_types: str) -> str | None:
        texts = self.texts(*media_types)
        return texts[-1] if texts else None

    def json(self, media_type: str, kind: type[_Json]) -> _Json | None:
        layers = self._manifest.of_type(media_type)
        if not layers:
            return None
        data = self._read(layers[-1])
        try:
            return msgspec.json.decode(data or b"null", type=kind | None)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            what = media_type.rpartition(".")[2]
            raise CorruptManifest(self._name, f"its {what} layer: {error}") from error

    def _read(self, layer: Layer) -> bytes:
        data = read_part(self._blobs, layer, self._name, limit_bytes=TEXT_LIMIT_BYTES + 1)
        if len(data) > TEXT_LIMIT_BYTES:
            what = layer.media_type.rpartition(".")[2]
            raise CorruptManifest(
                self._name, f"its {what} layer is larger than {TEXT_LIMIT_BYTES >> 20} MiB"
            )
        return data


def _plain(message: dict[str, Any]) -> dict[str, str]:
    return {
        "role": str(message.get("role", "")),
        "content": str(message.get("content") or ""),
    }
