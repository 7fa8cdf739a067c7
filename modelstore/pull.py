"""Pulling a model from a registry, or a GGUF file from a URL, into the store.

Owns the order of things: the manifest is judged first, then every blob is fetched and checked, and
only then does the manifest make the model visible. A pull that fails leaves what was there. Also
brings single blobs of a model that is here, for a repair. Knows no HTTP (see `registry`) and no
threads (see `transfer`).
Source: Ollama `server/images.go` (status lines, and the words of a missing model).
"""

import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from modelstore.create import CreateRequest, create
from modelstore.digest import Digest
from modelstore.errors import (
    BadManifest,
    CorruptManifest,
    DigestMismatch,
    InvalidDigest,
    RegistryError,
    StoreError,
    UnsupportedFormat,
)
from modelstore.files import check_room
from modelstore.gguf import read_header
from modelstore.keep import Keep
from modelstore.manifest import (
    ADAPTER_TYPE,
    DRAFT_TYPE,
    MODEL_TYPE,
    PROJECTOR_TYPE,
    TENSOR_TYPE,
    Layer,
    Manifest,
    decode_config,
    decode_manifest,
    what_instead,
)
from modelstore.names import ModelName
from modelstore.pull_names import GgufUrl, parse_pull
from modelstore.records import TEXT_LIMIT_BYTES
from modelstore.registry.access import Access
from modelstore.registry.client import RegistryClient
from modelstore.registry.sources import (
    BlobSource,
    RemoteFile,
    UrlSource,
    look_at,
)
from modelstore.registry.web import Web
from modelstore.sources import SUCCESS, Progress
from modelstore.store import Store
from modelstore.transfer.choice import MakeSource
from modelstore.transfer.download import State, Wanted
from modelstore.transfer.partial import n_bytes_there
from modelstore.transfer.transfers import Transfers

# Whoever watches should see every few seconds that somebody is still at it; also how soon a
# client that has gone is noticed.
HEARTBEAT_S = 1.0

_GGUF_TYPES = (MODEL_TYPE, PROJECTOR_TYPE, ADAPTER_TYPE, DRAFT_TYPE)


@dataclass(frozen=True, slots=True)
class Puller:
    """What every pull of one process has in common."""

    store: Store
    transfers: Transfers
    access: Access

    def pull(
        self, source: str | ModelName | GgufUrl, *, insecure: bool = False
    ) -> Generator[Progress, None, None]:
        """Fetches `source`, reporting as it goes; nothing happens before the first `next`.

        Whoever stops iterating is not interested any more: a transfer that nobody else wants ends
        then, and the next pull goes on from there. While something is waited for, the last report
        comes again every `HEARTBEAT_S`.
        Raises: InvalidName, every RegistryError, DigestMismatch, InvalidGGUF, UnsupportedFormat,
        DiskFull, StoreBusy, StoreNotWritable, Stopped.
        """
        wanted = parse_pull(source) if isinstance(source, str) else source
        if isinstance(wanted, GgufUrl):
            yield from self._pull_files(wanted, insecure=insecure)
        else:
            yield from self._pull_model(wanted, insecure=insecure)
        yield Progress(SUCCESS)

    def _pull_model(self, name: ModelName, *, insecure: bool) -> Iterator[Progress]:
        yield Progress("pulling manifest")
        with (
            RegistryClient(
                name, self.access, insecure=insecure, stop=self.transfers.stopping
            ) as client,
            self.store.keep() as keep,
        ):
            data = client.manifest()
            manifest = _judged(name, data)
            keep.add(*manifest.digests)
            self._check_sizes(name, manifest)
            layers = _once([*manifest.layers, manifest.config])
            self._check_room({layer.digest: layer.size_bytes for layer in layers})
            for layer in layers:
                yield from self._pull_layer(client, name, layer)
            yield Progress("verifying sha256 digest")
            self._check_sizes(name, manifest)
            self._check_blobs(keep, name, manifest)
            yield Progress("writing manifest")
            old = self.store.digests(name)
            self.store.write_manifest_bytes(name, data)
        if old - manifest.digests:
            yield Progress("removing unused layers")

    def fetch_blob(self, name: ModelName, layer: Layer) -> Generator[Progress, None, None]:
        """Brings one blob that the manifest in the store names, by its digest.

        What the registry has under the name by now is not looked at, and no manifest changes.
        Raises: as `pull`; ServerRefused with status 404 where the registry has no such blob.
        """
        with (
            RegistryClient(name, self.access, stop=self.transfers.stopping) as client,
            self.store.keep() as keep,
        ):
            keep.add(layer.digest)
            self._check_room({layer.digest: layer.size_bytes})
            if not self.store.blobs.exists(layer.digest):
                keep.made(layer.digest)  # goes again if the model was removed meanwhile
            yield from self._pull_layer(client, name, layer)

    def _pull_layer(
        self, client: RegistryClient, name: ModelName, layer: Layer
    ) -> Iterator[Progress]:
        digest, total = layer.digest, layer.size_bytes
        status = f"pulling {digest.hex[:12]}"
        if self.store.blobs.exists(digest):
            yield Progress(status, digest.text, total, total)
            return

        def make_source(stop: threading.Event) -> BlobSource:
            return BlobSource(client.twin(stop), digest, total)

        wanted = Wanted(digest, digest, total, name.display())
        yield from self._transfer(wanted, status, make_source)

    def _pull_files(self, url: GgufUrl, *, insecure: bool) -> Iterator[Progress]:
        yield Progress("looking for the file")
        policy = self.access.policy(insecure=insecure)
        web = Web(policy, stop=self.transfers.stopping, pace=self.access.pace)
        try:
            files = [look_at(web, self.access, one) for one in url.urls]
        finally:
            web.close()
        self._check_room({file.key: file.total for file in files})
        found: dict[str, Digest] = {}
        with self.store.keep() as keep:
            for file, file_name in zip(files, url.files, strict=True):
                digest = yield from self._pull_file(file, file_name, url.name, insecure=insecure)
                keep.add(digest)
                keep.made(digest)  # goes again unless the model is made
                found[file_name] = digest
            request = CreateRequest(url.name, files=found)
            for step in create(self.store, request, check_parameters=lambda none: none):
                if step.status != SUCCESS:
                    yield step

    def _pull_file(
        self, file: RemoteFile, file_name: str, name: ModelName, *, insecure: bool
    ) -> Generator[Progress, None, Digest]:
        policy = self.access.policy(insecure=insecure)

        def make_source(stop: threading.Event) -> UrlSource:
            web = Web(policy, stop=stop, pace=self.access.pace)
            return UrlSource(web, self.access, file)

        wanted = Wanted(file.key, None, file.total, name.display())
        return (yield from self._transfer(wanted, f"pulling {file_name}", make_source))

    def _transfer(
        self, wanted: Wanted, status: str, make_source: MakeSource
    ) -> Generator[Progress, None, Digest]:
        key, total, most = wanted.key.text, wanted.total, 0
        while True:
            with self.transfers.join(self.store.blobs, wanted, make_source) as download:
                state = State(0)
                try:
                    while state.digest is None:
                        state = download.watch(state, HEARTBEAT_S)
                        shown = f"{status}: {state.note}" if state.note else status
                        most = max(most, state.completed)
                        yield Progress(shown, key, total, most)
                    return state.digest
                except (RegistryError, DigestMismatch):
                    # Somebody else's transfer, which failed before it came to our source.
                    if download.has_tried(wanted.model):
                        raise

    def _check_room(self, sizes: dict[Digest, int]) -> None:
        """Raises: DiskFull when what is missing of these blobs cannot fit."""
        blobs = self.store.blobs
        needed = sum(
            total - n_bytes_there(blobs, digest, total)
            for digest, total in sizes.items()
            if not blobs.exists(digest)
        )
        check_room(blobs.folder, needed)

    def _check_sizes(self, name: ModelName, manifest: Manifest) -> None:
        """Raises: BadManifest when a blob that is here has another size than it says."""
        blobs = self.store.blobs
        for layer in (manifest.config, *manifest.layers):
            if not blobs.exists(layer.digest):
                continue
            size_bytes = blobs.size(layer.digest)
            if size_bytes != layer.size_bytes:
                raise BadManifest(
                    name.full(),
                    f"it says that blob {layer.digest.hex[:12]} has {layer.size_bytes} bytes, and "
                    f"it has {size_bytes}",
                )

    def _check_blobs(self, keep: Keep, name: ModelName, manifest: Manifest) -> None:
        """Raises: InvalidGGUF, BadManifest; what is unusable does not stay."""
        blobs = self.store.blobs
        for layer in (*manifest.of_type(*_GGUF_TYPES), manifest.config):
            try:
                if layer is manifest.config:
                    data = blobs.read(layer.digest, limit_bytes=TEXT_LIMIT_BYTES)
                    decode_config(data, name.display())
                else:
                    read_header(blobs.path(layer.digest))
            except CorruptManifest as error:
                keep.made(layer.digest)
                raise BadManifest(name.full(), "its config is not a config") from error
            except StoreError:
                keep.made(layer.digest)
                raise


def _judged(name: ModelName, data: bytes) -> Manifest:
    """The manifest, when it is one that may be acted upon.

    Raises: BadManifest, in words that repeat nothing of what a server has sent; UnsupportedFormat.
    """
    try:
        manifest = decode_manifest(data, name.full())
    except CorruptManifest as error:
        is_digest = isinstance(error.__cause__, InvalidDigest)
        digest_problem = "a digest in it is not sha256 and 64 hex digits"
        problem = digest_problem if is_digest else what_instead(data)
        raise BadManifest(name.full(), problem) from error
    if manifest.of_type(TENSOR_TYPE) or not manifest.of_type(MODEL_TYPE, ADAPTER_TYPE):
        raise UnsupportedFormat(
            f"`{name.display()}` has no GGUF weights; models for MLX or of safetensors cannot run "
            "here: look for a GGUF version"
        )
    return manifest


def _once(layers: list[Layer]) -> list[Layer]:
    """Each digest once, where it comes first."""
    return list({layer.digest: layer for layer in reversed(layers)}.values())[::-1]
