"""SHA-256 digests as values, and hashing of files and streams.

Owns the only parser of digest text: file names in `blobs/` come from a parsed `Digest` and from
nowhere else, so that no text from a registry or a request can become a path.
Source: Ollama's layout accepts `sha256:<hex>` and `sha256-<hex>`; hex is 64 lower-case digits.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from modelstore.errors import InvalidDigest
from modelstore.files import open_regular

CHUNK_BYTES = 1 << 20  # so large that hashlib mostly runs without the interpreter lock

_PATTERN = re.compile(r"sha256[:-]([0-9a-f]{64})", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Digest:
    """A SHA-256 digest; `hex` is 64 lower-case digits. Made by `parse` or `of`."""

    hex: str

    @staticmethod
    def parse(text: str) -> "Digest":
        """Raises: InvalidDigest for anything but `sha256:` or `sha256-` and 64 hex digits."""
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise InvalidDigest(text)
        return Digest(match[1])

    @staticmethod
    def of(data: bytes) -> "Digest":
        """The digest of these bytes."""
        return Digest(hashlib.sha256(data).hexdigest())

    @property
    def text(self) -> str:
        """`sha256:<hex>`, as manifests and the API spell it."""
        return "sha256:" + self.hex

    @property
    def file_name(self) -> str:
        """`sha256-<hex>`, the name of the blob's file."""
        return "sha256-" + self.hex

    def __str__(self) -> str:
        return self.text


class HashingWriter:
    """Counts and hashes what passes through; mutable, for one thread."""

    __slots__ = ("_sha", "size_bytes")

    def __init__(self) -> None:
        self._sha = hashlib.sha256()
        self.size_bytes = 0

    def write(self, chunk: bytes | memoryview) -> None:
        """Adds the next bytes to the hash and to `size_bytes`; keeps none of them."""
        self._sha.update(chunk)
        self.size_bytes += len(chunk)

    @property
    def digest(self) -> Digest:
        """The digest of everything written so far."""
        return Digest(self._sha.hexdigest())


def read_chunks(path: Path) -> Iterator[bytes]:
    """Yields the content of a regular file; OSError is the caller's to translate."""
    with open_regular(path) as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def hash_file(path: Path) -> Digest:
    """The digest of a file's content.

    Raises: SourceNotAllowed when it is not a regular file that can be read.
    """
    writer = HashingWriter()
    for chunk in read_chunks(path):
        writer.write(chunk)
    return writer.digest
