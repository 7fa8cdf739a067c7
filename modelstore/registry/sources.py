"""What a transfer reads from: a blob of a registry, or a file at a URL.

Owns the judgement whether a reply is the one that was asked for: its range, its length, and that it
is not some other server's HTML page.
"""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import httpx

from modelstore.digest import Digest
from modelstore.errors import BadReply
from modelstore.registry.access import Access
from modelstore.registry.client import RegistryClient
from modelstore.registry.web import Web, host_of, refused
from modelstore.transfer.source import Delivery

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)", re.ASCII)
_HTML = re.compile(rb"\s*<(?:!doctype\s+html|html)", re.IGNORECASE)


class BlobSource:
    """One blob of a model's registry, of a size that its manifest has promised."""

    def __init__(self, client: RegistryClient, digest: Digest, total: int) -> None:
        self._client = client
        self._digest = digest
        self._total = total

    @contextlib.contextmanager
    def open(self, start: int, end: int) -> Iterator[Delivery]:
        """See `Source`."""
        with self._client.blob(self._digest, f"{start}-{end - 1}") as response:
            yield delivery_of(response, start, end, self._total)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file at a URL; `version` changes with its content, as far as its server says."""

    url: str
    total: int
    version: str

    @property
    def key(self) -> Digest:
        """A stand-in for the digest, which nobody knows yet."""
        return Digest.of(f"{self.url}\n{self.total}\n{self.version}".encode())


class UrlSource:
    """A file at a URL, fetched over connections of its own."""

    def __init__(self, web: Web, access: Access, file: RemoteFile) -> None:
        self._web = web
        self._access = access
        self._file = file

    @contextlib.contextmanager
    def open(self, start: int, end: int) -> Iterator[Delivery]:
        """See `Source`."""
        headers = {"Range": f"bytes={start}-{end - 1}"}
        if self._file.version.startswith('"'):
            # Another file by now comes as a whole, so that no two are mixed.
            headers["If-Range"] = self._file.version
        with self._web.open(
            "GET", self._file.url, headers=headers, authorization=self._access.authorization
        ) as response:
            if response.status_code not in (200, 206):
                raise refused(response, "a part of the file")
            yield delivery_of(response, start, end, self._file.total)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._web.close()


def look_at(web: Web, access: Access, url: str) -> RemoteFile:
    """How large the file at `url` is.

    Raises: ServerRefused, BadReply when it does not say, and what any request raises.
    """
    headers = {"Range": "bytes=0-0"}  # not HEAD: signed URLs are often for GET alone
    with web.open("GET", url, headers=headers, authorization=access.authorization) as response:
        if response.status_code not in (200, 206):
            raise refused(response, "the file", has_hint=True)
        found = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
        text = found[3] if found else response.headers.get("content-length", "")
        if not text.isdecimal() or response.headers.get("content-type", "").startswith("text/html"):
            raise BadReply(host_of(url), "it does not say how long the file is, or has none")
        version = response.headers.get("etag") or response.headers.get("last-modified", "")
        return RemoteFile(url, int(text), version)


def delivery_of(response: httpx.Response, start: int, end: int, total: int) -> Delivery:
    """The bytes of a reply with status 200 or 206.

    Raises: BadReply when it is about something else; so does iterating, for a page of HTML.
    """
    host = host_of(str(response.url))
    is_whole = response.status_code == 200
    if is_whole:
        first = 0
        problem = _wrong_length(response.headers.get("content-length", ""), total)
    else:
        first = start
        problem = _wrong_range(response.headers.get("content-range", ""), start, end, total)
    if response.headers.get("content-type", "").lower().startswith("text/html"):
        problem = "a page of HTML instead of the file"
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        problem = "the file in an encoding that was not asked for"
    if problem:
        raise BadReply(host, problem)
    return Delivery(host, first, is_whole, _checked(response, host, first))


def _wrong_length(announced: str, total: int) -> str:
    if announced.isdecimal() and int(announced) != total:
        return f"{announced} bytes where {total} belong"
    return ""


def _wrong_range(text: str, start: int, end: int, total: int) -> str:
    match = _CONTENT_RANGE.fullmatch(text.strip())
    if match is None:
        return "a part without a range"
    if int(match[1]) != start or not start <= int(match[2]) < end:
        return f"bytes {match[1]}-{match[2]} where {start}-{end - 1} were asked for"
    if match[3] != "*" and int(match[3]) != total:
        return f"a part of {match[3]} bytes where {total} belong"
    return ""


def _checked(response: httpx.Response, host: str, first: int) -> Iterator[bytes]:
    is_beginning = first == 0
    for chunk in response.iter_raw():
        if is_beginning and chunk:
            is_beginning = False
            if _HTML.match(chunk):
                raise BadReply(host, "a page of HTML instead of the file")
        yield chunk
