"""Uploads to a registry: is a blob there, can it be had from another repository, else in pieces.

Owns the protocol of one upload: its sessions, locations and ranges. Stands on `RegistryClient`;
reads a file that the caller has opened, and does not know what it holds.
Source: the OCI distribution specification ("Pushing blobs"), and Ollama's `server/upload.go`.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO
from urllib.parse import quote

import httpx

from modelstore.digest import Digest
from modelstore.errors import BadReply, SignInRequired, StoreError, TransferFailed
from modelstore.registry.client import RegistryClient
from modelstore.registry.web import host_of, refused
from modelstore.transfer.effort import Effort, may_pass

# One request should last about a second: progress is told, and a failure costs, one request.
_FIRST_BYTES = 1 << 20
_LEAST_BYTES = 256 << 10
_MOST_BYTES = 64 << 20
_WANTED_S = 1.0

_READ_BYTES = 256 << 10


def next_size(size_bytes: int, took_s: float, least_bytes: int = _LEAST_BYTES) -> int:
    """How large the piece should be after one of `size_bytes` that took so long."""
    if took_s < _WANTED_S / 2:
        size_bytes *= 2
    elif took_s > _WANTED_S * 2:
        size_bytes //= 2
    return max(min(size_bytes, _MOST_BYTES), least_bytes)


@dataclass(frozen=True, slots=True)
class Uploads:
    """Uploads into one repository.

    Every method raises what `RegistryClient` does, and ServerRefused.
    """

    client: RegistryClient
    effort: Effort = field(default_factory=Effort)
    pause: Callable[[float], object] = time.sleep
    clock_s: Callable[[], float] = time.monotonic

    def has(self, digest: Digest) -> bool:
        """Tells whether the repository has the blob."""
        with self.client.send("HEAD", f"blobs/{digest.text}") as response:
            if response.status_code not in (200, 404):
                raise refused(response, f"blob {_short(digest)}")
            return response.status_code == 200

    def send(
        self, digest: Digest, file: BinaryIO, total: int, *, mount_from: str = ""
    ) -> Iterator[int]:
        """Uploads a file, yielding how many of its `total` bytes are there.

        A registry that has the blob in its repository `mount_from` takes it over from there. What
        breaks is tried again, from where the registry says that it stands.
        Raises: TransferFailed when the tries of one piece are used up.
        """
        upload = _Upload(self, digest, file, total, mount_from)
        n_failures = 0
        best = 0
        while not upload.is_done:
            try:
                upload.step()
            except StoreError as error:
                n_failures += 1
                if not may_pass(error):
                    raise
                if n_failures >= self.effort.n_tries:
                    what = f"the upload of blob {_short(digest)}"
                    raise TransferFailed(what, n_failures, str(error)) from error
                self.pause(self.effort.pause_s(n_failures))
                upload.has_failed = True
            else:
                if upload.offset > best:
                    n_failures = 0
            best = max(best, upload.offset)
            yield best

    def put_manifest(self, tag: str, data: bytes, media_type: str) -> None:
        """Makes the model visible; all blobs that it names must be there."""
        headers = {"Content-Type": media_type}
        with self.client.send("PUT", f"manifests/{tag}", headers=headers, content=data) as response:
            if response.status_code not in (200, 201):
                raise refused(response, "taking the manifest")


class _Upload:
    """One blob under way; `step` does one request that brings it on, or finds out where it is."""

    def __init__(
        self, uploads: Uploads, digest: Digest, file: BinaryIO, total: int, mount_from: str
    ) -> None:
        self.offset = 0
        self.is_done = False
        self.has_failed = False
        self._client = uploads.client
        self._clock_s = uploads.clock_s
        self._digest = digest
        self._file = file
        self._total = total
        self._mount_from = mount_from
        self._location = ""
        self._is_mended = False  # a piece broke, and the upload went on from there
        self._size = _FIRST_BYTES
        self._least = _LEAST_BYTES

    def step(self) -> None:
        if not self._location:
            self._begin()
        elif self.has_failed:
            self._ask()
        elif self.offset < self._total:
            self._send_piece()
        else:
            self._end()

    def _begin(self) -> None:
        mount_from, self._mount_from = self._mount_from, ""
        query = f"?mount={self._digest.text}&from={quote(mount_from)}" if mount_from else ""
        try:
            with self._client.send("POST", f"blobs/uploads/{query}", content=b"") as response:
                self._take_session(response, is_mount=bool(mount_from))
        except SignInRequired:
            if not mount_from:  # else it is the other repository that is closed to us
                raise

    def _take_session(self, response: httpx.Response, *, is_mount: bool) -> None:
        if response.status_code == 201 and is_mount:
            self.offset = self._total
            self.is_done = True
            return
        if response.status_code != 202:
            if is_mount:
                return  # it need not even say whether there is such a repository
            raise refused(response, f"an upload of blob {_short(self._digest)}")
        least = response.headers.get("oci-chunk-min-length", "")
        self._least = max(_LEAST_BYTES, int(least) if least.isdecimal() else 0)
        self._size = max(self._size, self._least)
        self.offset = 0
        self._location = _location(response)
        self.has_failed = self._is_mended = False

    def _send_piece(self) -> None:
        size = min(self._size, self._total - self.offset)
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(size),
            "Content-Range": f"{self.offset}-{self.offset + size - 1}",
        }
        began_s = self._clock_s()
        piece = _Piece(self._file, self.offset, size)
        with self._client.send("PATCH", self._location, headers=headers, content=piece) as response:
            if response.status_code == 416:
                self.has_failed = True  # it stands elsewhere: ask
                return
            self._check(response, 202, 204)
            self._location = _location(response)
        self.offset += size
        self._size = next_size(self._size, self._clock_s() - began_s, self._least)

    def _ask(self) -> None:
        with self._client.send("GET", self._location) as response:
            self._check(response, 202, 204)
            self.offset = min(_end_of_range(response), self._total)
            # Of nothing and of one byte the registry says the same: begin anew.
            self._location = _location(response, self._location) if self.offset else ""
            self.has_failed = False
            self._is_mended = True
        self._size = max(self._size // 2, self._least)

    def _end(self) -> None:
        separator = "&" if "?" in self._location else "?"
        url = f"{self._location}{separator}digest={quote(self._digest.text)}"
        with self._client.send("PUT", url, headers={"Content-Length": "0"}) as response:
            if response.status_code == 400 and self._is_mended:
                # A piece that broke may have gone on arriving after the registry was asked.
                self._location = ""
                raise BadReply(host_of(str(response.url)), "it has not what was sent")
            self._check(response, 201, 204)
        self.is_done = True

    def _check(self, response: httpx.Response, *right: int) -> None:
        if response.status_code == 404:
            self._location = ""
            raise BadReply(host_of(str(response.url)), "it has forgotten the upload")
        if response.status_code not in right:
            raise refused(response, f"the upload of blob {_short(self._digest)}")


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a file, as often as it is iterated."""

    file: BinaryIO
    offset: int
    size: int

    def __iter__(self) -> Iterator[bytes]:
        self.file.seek(self.offset)
        left = self.size
        while left:
            chunk = self.file.read(min(_READ_BYTES, left))
            if not chunk:
                return  # it was cut meanwhile; the length that was announced shows it
            left -= len(chunk)
            yield chunk


def _location(response: httpx.Response, default: str = "") -> str:
    """Where an upload goes on: a full URL with the query that the registry gave it."""
    found = response.headers.get("docker-upload-location") or response.headers.get("location")
    here = str(response.url)
    if not found:
        if default:
            return default
        raise BadReply(host_of(here), "an upload without a location")
    try:
        return str(response.url.join(found))
    except (httpx.InvalidURL, ValueError) as error:
        raise BadReply(host_of(here), "an upload at a URL that is none") from error


def _end_of_range(response: httpx.Response) -> int:
    """The bytes that have arrived, out of `Range: 0-<last>`; none looks like `0-0`."""
    _, _, last = response.headers.get("range", "").rpartition("-")
    if not last.isdecimal():
        return 0
    return int(last) + 1 if int(last) else 0


def _short(digest: Digest) -> str:
    return digest.hex[:12]
