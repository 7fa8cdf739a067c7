"""Making models: what is stored, what is inherited, and that a refusal lists nothing."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from modelstore import blobs as blobs_module
from modelstore.create import CreateRequest, Progress, create
from modelstore.digest import Digest
from modelstore.errors import (
    BlobNotFound,
    ChangedFile,
    DiskFull,
    IncompleteGGUF,
    InvalidCreate,
    InvalidGGUF,
    InvalidName,
    ModelNotFound,
    SourceNotAllowed,
    StoreError,
    UnsupportedFormat,
)
from modelstore.store import Store
from tests.modelstore.gguf_writer import Layout, tiny_metadata, tiny_tensors, write_gguf
from tests.modelstore.test_store_gguf import HOSTILE


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def gguf_path(tmp_path: Path) -> Path:
    path = tmp_path / "Tiny Model.gguf"
    write_gguf(path, tiny_metadata(), tiny_tensors())
    return path


class UnknownParameter(Exception):
    pass


def checked(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    if "bogus" in parameters:
        raise UnknownParameter("bogus")
    return parameters


def make(store: Store, name: str = "m", **fields: Any) -> list[Progress]:
    return list(create(store, CreateRequest(name, **fields), check_parameters=checked))


def upload(store: Store, path: Path) -> Digest:
    return store.blobs.ingest_file(path)[0]


def variant(tmp_path: Path, **metadata: Any) -> Path:
    path = tmp_path / "variant.gguf"
    write_gguf(path, tiny_metadata(**metadata), tiny_tensors())
    return path


def test_an_uploaded_file_becomes_a_model(store: Store, gguf_path: Path) -> None:
    digest = upload(store, gguf_path)
    lines = make(store, files={"tiny.gguf": digest})
    record = store.resolve("m")
    assert [line.status for line in lines] == [
        "parsing GGUF",
        f"using existing layer {digest.text}",
        f"creating new layer {record.manifest.config.digest.text}",
        "writing manifest",
        "success",
    ]
    assert record.model_digest == digest
    config = record.config
    assert (config.model_format, config.model_family, config.model_families) == (
        "gguf",
        "llama",
        ("llama",),
    )
    assert (config.model_type, config.file_type) == ("288", "F16")
    assert (config.context_length, config.embedding_length) == (2048, 32)
    assert store.blobs.path(digest).read_bytes() == gguf_path.read_bytes()


def test_all_texts_and_parameters_are_stored(store: Store, gguf_path: Path) -> None:
    make(
        store,
        path=gguf_path,
        template="{{ .Prompt }}",
        system="Be kind.",
        licenses=("MIT", "more"),
        parameters={"temperature": 0.5, "stop": ["<a>"]},
        messages=({"role": "user", "content": "hi"},),
        renderer="r",
        parser="p",
        requires="0.9",
    )
    record = store.resolve("m")
    assert record.template == "{{ .Prompt }}"
    assert record.system == "Be kind."
    assert record.licenses == ("MIT", "more")
    assert record.parameters == {"temperature": 0.5, "stop": ["<a>"]}
    assert record.messages == ({"role": "user", "content": "hi"},)
    assert (record.config.renderer, record.config.parser, record.config.requires) == (
        "r",
        "p",
        "0.9",
    )


def test_a_model_inherits_replaces_merges_and_appends(store: Store, gguf_path: Path) -> None:
    make(
        store,
        "Base:v1",
        path=gguf_path,
        template="old",
        system="old",
        licenses=("first",),
        parameters={"temperature": 0.5, "top_k": 3},
        messages=({"role": "user", "content": "old"},),
        parser="p",
    )
    base = store.resolve("base:v1")
    make(
        store,
        "child",
        from_="base:v1",
        template="new",
        licenses=("second",),
        parameters={"temperature": 0.9},
        messages=({"role": "user", "content": "new"},),
    )
    child = store.resolve("child")
    assert child.model_digest == base.model_digest
    assert child.parent_model == "Base:v1"
    assert (child.template, child.system) == ("new", "old")
    assert child.licenses == ("first", "second")
    assert child.parameters == {"temperature": 0.9, "top_k": 3}
    assert child.messages == ({"role": "user", "content": "new"},)
    assert child.config.parser == "p"
    assert store.resolve("base:v1") == base


def test_empty_texts_leave_what_is_inherited(store: Store, gguf_path: Path) -> None:
    make(store, "base", path=gguf_path, template="t", system="s")
    make(store, "child", from_="base", template="", system="")
    child = store.resolve("child")
    assert (child.template, child.system) == ("t", "s")


def test_making_the_same_model_again_gives_the_same_digest(store: Store, gguf_path: Path) -> None:
    make(store, path=gguf_path, licenses=("MIT",), parameters={"top_k": 1, "min_p": 0.1})
    first = store.resolve("m").digest
    make(store, path=gguf_path, licenses=("MIT",), parameters={"min_p": 0.1, "top_k": 1})
    assert store.resolve("m").digest == first
    lines = make(store, from_="m", licenses=("MIT",))
    assert store.resolve("m").licenses == ("MIT",)
    assert all("creating" not in line.status for line in lines)


def test_a_model_made_anew_releases_the_old_weights(
    store: Store, gguf_path: Path, tmp_path: Path
) -> None:
    make(store, path=gguf_path)
    old = store.resolve("m").model_digest
    make(store, path=variant(tmp_path, general__name="Other"))
    assert old is not None
    assert not store.blobs.exists(old)


def test_copying_a_file_reports_its_progress(store: Store, gguf_path: Path) -> None:
    lines = make(store, path=gguf_path)
    size_bytes = gguf_path.stat().st_size
    assert Progress("copying Tiny Model.gguf", total=size_bytes, completed=size_bytes) in lines
    digest = store.resolve("m").model_digest
    assert digest is not None
    assert Progress(f"creating new layer {digest.text}") in lines
    gguf_path.unlink()
    store.check_files(store.resolve("m"))


def test_a_file_can_be_used_where_it_is(store: Store, gguf_path: Path) -> None:
    lines = make(store, path=gguf_path, in_place=True)
    assert lines[1].status == "hashing Tiny Model.gguf"
    record = store.resolve("m")
    assert record.model_path is not None
    assert record.model_path.is_symlink()
    store.check_files(record)
    write_gguf(gguf_path, tiny_metadata(), tiny_tensors(fill=1))
    os.utime(gguf_path, ns=(1, 1))
    with pytest.raises(ChangedFile):
        store.check_files(record)
    make(store, "again", path=gguf_path, in_place=True)
    store.check_files(store.resolve("again"))
    store.delete("m")
    store.delete("again")
    assert gguf_path.exists()
    assert os.listdir(store.blobs.folder) == []


@pytest.mark.parametrize(
    ("kind", "role", "paths"),
    [("adapter", "lora.gguf", "adapter_paths"), ("mmproj", "mmproj.gguf", "projector_paths")],
)
def test_files_find_their_role(
    store: Store, gguf_path: Path, tmp_path: Path, kind: str, role: str, paths: str
) -> None:
    other = upload(store, variant(tmp_path, general__type=kind, general__architecture="clip"))
    make(store, files={role: other, "model.gguf": upload(store, gguf_path)})
    record = store.resolve("m")
    assert getattr(record, paths) == (store.blobs.path(other),)
    assert record.model_digest == Digest.of(gguf_path.read_bytes())
    assert record.config.model_family == "llama"
    families = ("clip", "llama") if kind == "mmproj" else ("llama",)
    assert record.config.model_families == families


def test_an_adapter_joins_a_model(store: Store, gguf_path: Path, tmp_path: Path) -> None:
    make(store, "base", path=gguf_path)
    adapter = upload(store, variant(tmp_path, general__type="adapter"))
    make(store, "child", from_="base", adapters={"lora.gguf": adapter})
    assert store.resolve("child").adapter_paths == (store.blobs.path(adapter),)
    with pytest.raises(InvalidCreate, match="only one adapter"):
        make(store, from_="base", adapters={"a": adapter, "b": adapter})
    with pytest.raises(InvalidCreate, match="not a GGUF adapter"):
        make(store, from_="base", adapters={"a": Digest.of(gguf_path.read_bytes())})


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
        ({"path": Path("/")}, UnsupportedFormat, "folder"),
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


def test_the_magic_counts_where_the_suffix_is_missing(store: Store, gguf_path: Path) -> None:
    make(store, files={"model": upload(store, gguf_path)})
    assert store.resolve("m").config.model_family == "llama"


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
        ({"split__count": 3}, UnsupportedFormat, "one of 3 parts"),
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


def test_whoever_stops_listening_cancels(store: Store, gguf_path: Path) -> None:
    progress = create(store, CreateRequest("m", path=gguf_path), check_parameters=checked)
    next(progress)
    next(progress)
    progress.close()  # type: ignore[attr-defined]
    assert store.list() == []
    assert os.listdir(store.blobs.folder) == []


def test_a_refusal_after_the_copy_removes_the_copy(store: Store, gguf_path: Path) -> None:
    with pytest.raises(BlobNotFound):
        make(store, path=gguf_path, adapters={"x.gguf": ABSENT})
    assert os.listdir(store.blobs.folder) == []


def test_many_threads_make_and_remove_models_that_share_blobs(
    store: Store, gguf_path: Path
) -> None:
    make(store, "base", path=gguf_path)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for round_ in range(6):
                make(store, f"m{number}", from_="base", system=f"round {round_}")
                assert store.resolve(f"m{number}").system == f"round {round_}"
            store.delete(f"m{number}")
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    needed = {digest.file_name for digest in store.resolve("base").manifest.digests}
    assert set(os.listdir(store.blobs.folder)) == needed


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


def test_a_real_model_is_registered_in_place(store: Store, smollm2_path: Path) -> None:
    make(store, "smollm2:135m", path=smollm2_path, in_place=True)
    config = store.resolve("smollm2:135m").config
    assert (config.model_family, config.model_type, config.file_type) == (
        "llama",
        "134.52M",
        "Q4_1",
    )
