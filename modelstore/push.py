"""Pushing a model of the store to a registry.

Owns the order of things: all blobs first, then the manifest, byte for byte as it is here, which
makes the model visible there. What the registry has is not sent. Knows no HTTP (see `registry`).
Source: Ollama `server/images.go` (status lines).
"""

import threading
from collections.abc import Generator, Iterator

from modelstore.errors import InvalidName, ModelNotFound, SignInRequired
from modelstore.files import open_regular
from modelstore.manifest import MANIFEST_TYPE, Layer, decode_manifest
from modelstore.names import DEFAULT_HOST, ModelName
from modelstore.registry.access import Access
from modelstore.registry.client import RegistryClient
from modelstore.registry.push import Uploads
from modelstore.sources import SUCCESS, Progress
from modelstore.store import Store
from modelstore.transfer.effort import Effort


def push(
    store: Store,
    access: Access,
    name: ModelName,
    *,
    insecure: bool = False,
    effort: Effort | None = None,
    stop: threading.Event | None = None,
) -> Generator[Progress, None, None]:
    """Sends a model to the registry that its name begins with, reporting as it goes.

    Setting `stop` ends it between two pieces of a request.
    Raises: ModelNotFound, CorruptManifest, IncompleteModel, ChangedFile, SourceNotAllowed, every
    RegistryError, Stopped; SignInRequired before anything is sent when the name has no registry of
    its own, unless there is no such model here either.
    """
    if name.host == DEFAULT_HOST:
        store.resolve(name)  # first whether there is anything to push
        raise SignInRequired(
            name.host,
            "it takes models only with a signing key, which localrun does not have; copy the model "
            "to a name with another registry (`localrun cp MODEL host/user/model`) and push that",
        )
    yield Progress("retrieving manifest")
    try:
        data = store.manifest_bytes(name)
    except ModelNotFound:
        yield Progress("couldn't retrieve manifest")
        raise
    manifest = decode_manifest(data, name.display())
    layers = {layer.digest: layer for layer in (*manifest.layers, manifest.config)}
    stop = stop or threading.Event()
    with (
        store.keep() as keep,
        RegistryClient(name, access, insecure=insecure, stop=stop) as client,
    ):
        keep.add(*layers)
        store.check_blobs(name, layers)
        uploads = Uploads(client, effort or Effort(), pause=stop.wait)
        for layer in layers.values():
            yield from _push_layer(store, uploads, name, layer)
        yield Progress("pushing manifest")
        uploads.put_manifest(name.tag, data, MANIFEST_TYPE)
    yield Progress(SUCCESS)


def _push_layer(
    store: Store, uploads: Uploads, name: ModelName, layer: Layer
) -> Iterator[Progress]:
    status = f"pushing {layer.digest.hex[:12]}"
    total = store.blobs.size(layer.digest)
    yield Progress(status, layer.digest.text, total, 0)
    if uploads.has(layer.digest):
        yield Progress(status, layer.digest.text, total, total)
        return
    with open_regular(store.blobs.path(layer.digest)) as file:
        source = _mount_source(name, layer)
        for completed in uploads.send(layer.digest, file, total, mount_from=source):
            yield Progress(status, layer.digest.text, total, completed)


def _mount_source(name: ModelName, layer: Layer) -> str:
    """The repository that the layer was taken from, when it is at the same registry."""
    try:
        parent = ModelName.parse(layer.from_) if layer.from_ else name
    except InvalidName:  # others put the path of a file there
        return ""
    is_elsewhere = parent.host != name.host or parent.parts[:3] == name.parts[:3]
    return "" if is_elsewhere else f"{parent.namespace}/{parent.model}"
