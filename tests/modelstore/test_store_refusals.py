"""Models that are not made: each reason has its own error, and nothing is listed or left."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from modelstore import blobs as blobs_module
from modelstore.digest import Digest
from modelstore.errors import (
    BlobNotFound,
    DiskFull,
    IncompleteGGUF,
    IncompleteSplit,
    InvalidCreate,
    InvalidGGUF,
    InvalidName,
    ModelNotFound,
    SourceNotAllowed,
    StoreError,
)
from modelstore.store import Store
from tests.modelstore.gguf_writer import Layout, tiny_metadata, tiny_tensors, write_gguf
from tests.modelstore.model_maker import UnknownParameter, make, upload, variant
from tests.modelstore.test_store_gguf import HOSTILE

ABSENT = Digest.of(b"never uploaded")


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({}, InvalidCreate, "neither 'from' or 'files' was specified"),
        ({"files": {}}, InvalidCreate, "unknown type"),
        ({"files": {"../x.gguf": ABSENT}}, InvalidCreate, "file path must be relative"),
        ({"files": {"/x.gguf": ABSENT}}, InvalidCreate, "file path must be relative"),
        ({"files": {"a\\x.gguf": ABSENT}}, InvalidCreate, "file path must be relative"),
        ({"files": {"": ABSENT}}, InvalidCreate, "file path must be relative"),
        ({"from_": "x", "adapters": {"/x": ABSENT}}, InvalidCreate, "file path must be relative"),
        ({"files": {"x.gguf": ABSENT}}, BlobNotFound, ABSENT.text),
        ({"from_": "absent"}, ModelNotFound, "model 'absent:latest' not found"),
        ({"from_": "../x"}, InvalidName, "namespace"),
        ({"name": "a//b", "from_": "x"}, InvalidName, "namespace is empty"),
        ({"path": Path("absent.gguf")}, SourceNotAllowed, "cannot read `absent.gguf`"),
        ({"path": Path("/proc/self/fd")}, InvalidCreate, "has neither GGUF nor safetensors files"),
        ({"path": Path("/dev/zero")}, SourceNotAllowed, "`zero` is not a regular file"),
        ({"from_": "x", "messages": ({"role": "robot"},)}, InvalidCreate, "role of a message"),
        ({"from_": "x", "parameters": {"bogus": 1}}, UnknownParameter, "bogus"),
    ],
)
def test_each_bad_request_has_its_own_error(
    store: Store, fields: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind) as caught:
        make(store, **fields)
    assert text in str(caught.value)
    assert store.list() == []


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("x.gguf", b"GGML old", "supplied file was not in GGUF format"),
        ("x.bin", b"whatever", "unknown type"),
        ("x.safetensors", b"\x08\0\0\0\0\0\0\0{}", "safetensors"),
    ],
)
def test_a_blob_that_is_no_gguf_is_refused(store: Store, name: str, data: bytes, text: str) -> None:
    digest, _ = store.blobs.ingest([data], None)
    with pytest.raises(StoreError, match=text):
        make(store, files={name: digest})


def _cuts(layout: Layout) -> list[int]:
    return [
        10,
        layout.counts_end + 3,
        layout.pairs_end - 1,
        layout.tensor_table_end - 5,
        layout.data_offset + 100,
        layout.size_bytes - 1,
    ]


@pytest.mark.parametrize("cut", range(6))
@pytest.mark.parametrize("way", ["upload", "copy", "in_place"])
def test_a_cut_file_is_refused_and_not_listed(
    store: Store, gguf_path: Path, way: str, cut: int
) -> None:
    make(store, "good", path=gguf_path)
    layout = write_gguf(gguf_path, tiny_metadata(), tiny_tensors())
    os.truncate(gguf_path, _cuts(layout)[cut])
    fields: dict[str, Any] = {"path": gguf_path, "in_place": way == "in_place"}
    if way == "upload":
        fields = {"files": {"x.gguf": upload(store, gguf_path)}}
    with pytest.raises(IncompleteGGUF, match="file is incomplete: has"):
        make(store, **fields)
    assert [listing.name.model for listing in store.list()] == ["good"]
    store.check_files(store.resolve("good"))


@pytest.mark.parametrize("fault", HOSTILE)
def test_a_hostile_upload_is_refused(store: Store, tmp_path: Path, fault: str) -> None:
    path = tmp_path / "hostile.gguf"
    write_gguf(path, {"general.architecture": "llama"}, **HOSTILE[fault])
    with pytest.raises(InvalidGGUF, match=r"^invalid GGUF: "):
        make(store, files={"x.gguf": upload(store, path)})
    assert store.list() == []


@pytest.mark.parametrize(
    ("metadata", "kind", "text"),
    [
        ({"general__architecture": None}, InvalidGGUF, "`general.architecture` is missing"),
        ({"split__count": 3}, IncompleteSplit, "split into 3 files, of which `part 2` and 1 more"),
        ({"general__type": "adapter"}, InvalidCreate, "exactly one file must be a model"),
        ({"general__architecture": "clip"}, InvalidCreate, "found 1 (projector)"),
    ],
)
def test_a_file_that_is_no_whole_model_is_refused(
    store: Store, tmp_path: Path, metadata: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind) as caught:
        make(store, path=variant(tmp_path, **metadata))
    assert text in str(caught.value)
    assert store.list() == []


def test_two_models_in_one_request_are_refused(
    store: Store, gguf_path: Path, tmp_path: Path
) -> None:
    files = {"a.gguf": upload(store, gguf_path), "b.gguf": upload(store, variant(tmp_path, x=1))}
    with pytest.raises(InvalidCreate, match=r"found 2 \(model\)"):
        make(store, files=files)


def test_a_refusal_after_the_copy_removes_the_copy(store: Store, gguf_path: Path) -> None:
    with pytest.raises(BlobNotFound):
        make(store, path=gguf_path, adapters={"x.gguf": ABSENT})
    assert os.listdir(store.blobs.folder) == []


def test_a_full_disk_while_copying_leaves_nothing(
    store: Store, gguf_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(blobs_module, "commit", full)
    with pytest.raises(DiskFull):
        make(store, path=gguf_path)
    assert store.list() == []
    assert os.listdir(store.blobs.folder) == []


def test_no_message_holds_a_folder_of_this_machine(
    store: Store, gguf_path: Path, tmp_path: Path
) -> None:
    os.truncate(gguf_path, 30)
    for path in (gguf_path, tmp_path / "absent", tmp_path):
        with pytest.raises(StoreError) as caught:
            make(store, path=path)
        assert os.fspath(tmp_path.parent) not in str(caught.value)
