"""Digests: the one strict parser, and hashing."""

import hashlib
from pathlib import Path

import pytest

from modelstore.digest import Digest, HashingWriter, hash_file
from modelstore.errors import InvalidDigest, SourceNotAllowed

HEX = "0123456789abcdef" * 4


@pytest.mark.parametrize("separator", [":", "-"])
def test_both_separators_are_accepted(separator: str) -> None:
    digest = Digest.parse(f"sha256{separator}{HEX}")
    assert digest.text == f"sha256:{HEX}"
    assert digest.file_name == f"sha256-{HEX}"
    assert str(digest) == digest.text


@pytest.mark.parametrize(
    "text",
    [
        "",
        HEX,
        "sha256:../../x",
        "sha256-..%2f",
        f"sha256:{HEX[:-1]}",
        f"sha256:{HEX}0",
        f"sha256:{HEX.upper()}",
        f"sha512:{HEX}{HEX}",
        f"sha256:{HEX}\n",
        f" sha256:{HEX}",
        f"sha256/{HEX}",
        f"sha256:{HEX[:-1]}٣",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidDigest, match="invalid digest format"):
        Digest.parse(text)


def test_hashing_counts_and_agrees_with_the_standard_library(tmp_path: Path) -> None:
    data = bytes(range(256)) * 9_000
    path = tmp_path / "data"
    path.write_bytes(data)
    writer = HashingWriter()
    writer.write(data[:100])
    writer.write(data[100:])
    assert writer.size_bytes == len(data)
    assert writer.digest == hash_file(path) == Digest.of(data)
    assert writer.digest.hex == hashlib.sha256(data).hexdigest()


def test_only_regular_files_are_hashed(tmp_path: Path) -> None:
    with pytest.raises(SourceNotAllowed):
        hash_file(tmp_path)
