"""Writes small models into a store, and tells what lies in its folder. For use by any test."""

import os
from pathlib import Path

from modelstore.digest import Digest
from modelstore.manifest import (
    CONFIG_TYPE,
    MODEL_TYPE,
    Layer,
    Manifest,
    ModelConfig,
    encode_config,
)
from modelstore.names import DEFAULT_HOST
from modelstore.store import Store

CONFIG = encode_config(ModelConfig(model_format="gguf", model_family="llama"))


def blob(store: Store, data: bytes) -> Digest:
    return store.blobs.ingest([data], None)[0]


def manifest(store: Store, weights: bytes, **texts: bytes) -> Manifest:
    """A manifest over fresh blobs; `texts` are extra layers by the last word of their type."""
    layers = [Layer(MODEL_TYPE, blob(store, weights), len(weights), from_="base:latest")]
    for kind, text in texts.items():
        media_type = f"application/vnd.ollama.image.{kind.rstrip('_0123456789')}"
        layers.append(Layer(media_type, blob(store, text), len(text)))
    return Manifest(Layer(CONFIG_TYPE, blob(store, CONFIG), len(CONFIG)), tuple(layers))


def add(store: Store, name: str, weights: bytes = b"weights", **texts: bytes) -> None:
    store.write_manifest(name, manifest(store, weights, **texts))


def path_of(store: Store, *parts: str) -> Path:
    return store.root.joinpath("manifests", DEFAULT_HOST, "library", *parts)


def names(store: Store) -> list[str]:
    return sorted(listing.name.display() for listing in store.list())


def blob_files(store: Store) -> set[str]:
    return set(os.listdir(store.blobs.folder))


def referenced(store: Store) -> set[str]:
    records = [store.resolve(listing.name) for listing in store.list()]
    return {digest.file_name for record in records for digest in record.manifest.digests}
