"""The store: listing, resolving, copying, and surviving what lies around in its folder."""

import hashlib
import logging
import os
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from modelstore.digest import Digest
from modelstore.errors import (
    BlobNotFound,
    ChangedFile,
    CorruptManifest,
    InvalidName,
    ModelNotFound,
    StoreNotWritable,
)
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
    encode_manifest,
)
from modelstore.names import DEFAULT_HOST
from modelstore.pruning import PruneRules
from modelstore.store import MARKER_NAME, Store
from tests.modelstore.store_writer import (
    CONFIG,
    add,
    blob,
    blob_files,
    manifest,
    names,
    path_of,
    referenced,
)


def test_a_new_folder_is_ours(store: Store) -> None:
    assert store.is_ours
    assert (store.root / MARKER_NAME).is_file()
    assert store.list() == []


def test_an_existing_folder_is_used_but_not_marked(tmp_path: Path) -> None:
    (tmp_path / "manifests").mkdir()
    store = Store(tmp_path)
    assert not store.is_ours
    add(store, "m")
    assert names(store) == ["m:latest"]
    orphan = blob(store, b"orphan")
    assert store.prune(PruneRules(min_age_s=0)).digests == ()
    assert store.blobs.exists(orphan)
    assert not Store(tmp_path).is_ours


def test_a_model_is_resolved_with_all_its_parts(store: Store) -> None:
    add(
        store,
        "user/m:7b",
        template=b"{{ .Prompt }}",
        system=b"Be kind.",
        params=b'{"stop": ["<end>"], "temperature": 0.5}',
        messages=b'[{"role": "user", "content": "hi"}]',
        license_1=b"MIT",
        license_2=b"and more",
        adapter=b"lora",
        projector=b"clip",
    )
    record = store.resolve("user/m:7b")
    assert record.name.display() == "user/m:7b"
    assert record.template == "{{ .Prompt }}"
    assert record.system == "Be kind."
    assert record.parameters == {"stop": ["<end>"], "temperature": 0.5}
    assert record.messages == ({"role": "user", "content": "hi"},)
    assert record.licenses == ("MIT", "and more")
    assert record.parent_model == "base:latest"
    assert record.config.model_family == "llama"
    assert record.model_digest == Digest.of(b"weights")
    assert record.model_path == store.blobs.path(Digest.of(b"weights"))
    assert [path.read_bytes() for path in record.adapter_paths] == [b"lora"]
    assert [path.read_bytes() for path in record.projector_paths] == [b"clip"]
    layers = (record.manifest.config, *record.manifest.layers)
    assert record.size_bytes == sum(layer.size_bytes for layer in layers)
    path = store.root / "manifests" / DEFAULT_HOST / "user" / "m" / "7b"
    assert record.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert _microseconds(record.modified_at) == path.stat().st_mtime_ns // 1_000
    store.check_files(record)


@pytest.mark.parametrize("changed_ns", [1_796_048_102_034_901_999, 1_796_048_102_034_901_500])
def test_the_time_of_a_change_is_exact(store: Store, changed_ns: int) -> None:
    add(store, "m")
    os.utime(path_of(store, "m", "latest"), ns=(changed_ns, changed_ns))
    assert _microseconds(store.resolve("m").modified_at) == changed_ns // 1_000


def _microseconds(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def test_a_bare_model_has_empty_parts(store: Store) -> None:
    add(store, "m")
    record = store.resolve("m")
    assert (record.template, record.system) == (None, None)
    assert (record.parameters, record.messages, record.licenses) == ({}, (), ())


def test_the_old_name_of_a_template_layer_is_understood(store: Store) -> None:
    add(store, "m", prompt=b"old {{ .Prompt }}")
    assert store.resolve("m").template == "old {{ .Prompt }}"
    assert store.resolve("m").manifest.layers[1].media_type == PROMPT_TYPE


def test_the_list_is_sorted_by_change_latest_first(store: Store) -> None:
    for age, name in enumerate(["new", "mid", "old"]):
        add(store, name)
        stamp = 1_700_000_000 - age
        os.utime(path_of(store, name, "latest"), (stamp, stamp))
    assert [listing.name.model for listing in store.list()] == ["new", "mid", "old"]


def test_unknown_and_invalid_names_are_different_errors(store: Store) -> None:
    for use in (store.resolve, store.delete):
        with pytest.raises(ModelNotFound, match="model 'm:latest' not found"):
            use("m")
        with pytest.raises(InvalidName):
            use("../m")
    assert not store.exists("m")


@pytest.mark.parametrize("spelling", ["MyTiny:Q4_K_M", "mytiny:q4_k_m", "MYTINY:Q4_K_M"])
def test_every_spelling_reaches_the_same_model(store: Store, spelling: str) -> None:
    add(store, "MyTiny:Q4_K_M")
    assert store.exists(spelling)
    assert store.resolve(spelling).name.display() == "MyTiny:Q4_K_M"
    add(store, "mytiny:q4_k_m", b"other")
    assert names(store) == ["MyTiny:Q4_K_M"]
    assert store.resolve(spelling).model_digest == Digest.of(b"other")
    assert store.delete(spelling).display() == "MyTiny:Q4_K_M"
    assert names(store) == []
    assert blob_files(store) == set()


def test_a_new_tag_joins_the_folder_that_exists_in_another_case(store: Store) -> None:
    add(store, "User/Tiny:A")
    add(store, "user/tiny:b")
    assert names(store) == ["User/Tiny:A", "User/Tiny:b"]


def test_all_folders_that_differ_in_case_are_searched(store: Store) -> None:
    add(store, "tiny:a")
    folder = path_of(store, "TINY")
    folder.mkdir()
    (folder / "b").write_bytes(path_of(store, "tiny", "a").read_bytes())
    assert store.resolve("tiny:B").name.display() == "TINY:b"
    assert store.resolve("Tiny:A").name.display() == "tiny:a"


@pytest.mark.parametrize("damage", [b"", b'{"schemaVersion": 2, "config', b"\0" * 300])
def test_one_broken_manifest_spoils_only_itself(
    store: Store, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b", "c"):
        add(store, name, name.encode())
    path_of(store, "c", "latest").write_bytes(damage)
    with caplog.at_level(logging.WARNING):
        assert names(store) == ["a:latest", "b:latest"]
    assert "c:latest is not listed" in caplog.text
    with pytest.raises(CorruptManifest, match="c:latest"):
        store.resolve("c")
    add(store, "d")
    store.delete("a")
    assert store.blobs.exists(Digest.of(b"c")), "blobs stay while a manifest is unreadable"
    assert store.delete("c").display() == "c:latest"
    assert names(store) == ["b:latest", "d:latest"]
    store.prune(PruneRules(min_age_s=0))
    assert blob_files(store) == referenced(store)


def test_a_broken_manifest_is_repaired_by_writing_it_again(store: Store) -> None:
    add(store, "c")
    path_of(store, "c", "latest").write_bytes(b"")
    add(store, "c")
    assert names(store) == ["c:latest"]


def test_a_folder_in_the_place_of_a_manifest_does_no_harm(store: Store) -> None:
    add(store, "a")
    path_of(store, "c", "latest").mkdir(parents=True)
    assert names(store) == ["a:latest"]
    with pytest.raises(CorruptManifest):
        store.resolve("c")
    store.delete("c")
    assert not path_of(store, "c").exists()
    path_of(store, "c", "latest").mkdir(parents=True)
    add(store, "c")
    assert names(store) == ["a:latest", "c:latest"]
    (path_of(store, "d", "latest") / "keep").mkdir(parents=True)
    with pytest.raises(CorruptManifest, match="folder with files"):
        store.delete("d")


@pytest.mark.parametrize(
    ("layer", "data"),
    [("params", b"[1]"), ("params", b"{"), ("messages", b'{"a": 1}'), ("messages", b"[3]")],
)
def test_a_broken_small_layer_is_named(store: Store, layer: str, data: bytes) -> None:
    add(store, "m", **{layer: data})
    with pytest.raises(CorruptManifest, match=f"its {layer} layer"):
        store.resolve("m")
    assert names(store) == ["m:latest"]


def test_a_missing_small_layer_is_named(store: Store) -> None:
    add(store, "m", system=b"text")
    store.blobs.delete(Digest.of(b"text"))
    with pytest.raises(BlobNotFound):
        store.resolve("m")


def test_weights_named_as_a_text_are_not_read_into_memory(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modelstore.records.TEXT_LIMIT_BYTES", 10)
    add(store, "m", system=b"x" * 11)
    with pytest.raises(CorruptManifest, match="its system layer is larger"):
        store.resolve("m")


def test_stray_files_are_skipped_quietly(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    add(store, "tiny")
    folder = path_of(store, "tiny")
    (folder / ".DS_Store").write_bytes(b"\0")
    (folder / "latest~").write_bytes(b"backup")
    (folder.parent / "tiny.meta").write_text("text")
    (folder.parent / "empty").mkdir()
    (store.root / "manifests" / "notes.txt").write_text("text")
    with caplog.at_level(logging.WARNING):
        assert names(store) == ["tiny:latest"]
        before = blob_files(store)
        assert store.prune(PruneRules(min_age_s=0)).digests == ()
    assert caplog.text == ""
    assert blob_files(store) == before
    assert (folder / ".DS_Store").exists()


def test_a_copy_shares_everything_and_keeps_the_digest(store: Store) -> None:
    add(store, "Source:a")
    store.copy("source:A", "hf.co/u/Target:b")
    source, target = store.resolve("source:a"), store.resolve("hf.co/u/target:b")
    assert source.digest == target.digest
    assert target.name.display() == "hf.co/u/Target:b"


def test_a_copy_onto_itself_changes_nothing(store: Store) -> None:
    add(store, "M:a")
    before = path_of(store, "M", "a").stat()
    assert store.copy("M:a", "m:A").display() == "M:a"
    assert path_of(store, "M", "a").stat().st_ino == before.st_ino


def test_a_manifest_with_a_missing_blob_is_not_written(store: Store) -> None:
    broken = manifest(store, b"weights")
    store.blobs.delete(Digest.of(b"weights"))
    with pytest.raises(BlobNotFound):
        store.write_manifest("m", broken)
    assert names(store) == []
    assert not path_of(store).exists()


def test_an_overwritten_model_is_seen_at_once(store: Store) -> None:
    for round_ in range(20):
        add(store, "m", system=b"%d" % round_)
        assert store.resolve("m").system == str(round_)


def test_leftovers_of_a_crash_are_invisible(store: Store) -> None:
    add(store, "m")
    (store.blobs.folder / ".tmp-aa").write_bytes(b"half a blob")
    path_of(store, "m", ".tmp-bb").write_bytes(b"half a manifest")
    assert names(store) == ["m:latest"]


def test_a_relocated_store_is_followed_through_links(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "store").symlink_to(tmp_path / "disk")
    store = Store(tmp_path / "store")
    add(store, "m")
    assert (tmp_path / "disk" / "manifests" / DEFAULT_HOST / "library" / "m" / "latest").is_file()
    other = tmp_path / "bigger"
    store.blobs.folder.rename(other)
    (tmp_path / "disk" / "blobs").symlink_to(other)
    store = Store(tmp_path / "store")
    assert names(store) == ["m:latest"]
    add(store, "n", b"more")
    assert (other / Digest.of(b"more").file_name).is_file()


def test_check_files_names_what_is_gone_or_changed(store: Store, tmp_path: Path) -> None:
    outside = tmp_path / "w.gguf"
    outside.write_bytes(b"in place")
    store.blobs.link_in_place(outside)
    add(store, "linked", b"in place")  # ingesting stores the bytes, so link them anew
    store.blobs.delete(Digest.of(b"in place"))
    store.blobs.link_in_place(outside)
    record = store.resolve("linked")
    store.check_files(record)
    outside.write_bytes(b"changed, and longer")
    with pytest.raises(ChangedFile):
        store.check_files(record)
    add(store, "stored", b"bytes")
    store.blobs.delete(Digest.of(b"bytes"))
    with pytest.raises(BlobNotFound):
        store.check_files(store.resolve("stored"))


def test_a_store_that_cannot_be_written_can_be_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store, "m")

    def refuse(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise PermissionError(13, "Permission denied")
        return real_open(path, flags, *args, **kwargs)

    real_open = os.open
    monkeypatch.setattr(os, "open", refuse)  # root ignores modes, so chmod would prove nothing
    reader = Store(store.root)
    assert reader.resolve("m").config.model_family == "llama"
    assert [listing.name.model for listing in reader.list()] == ["m"]
    with pytest.raises(StoreNotWritable, match="as user"):
        reader.delete("m")
    with pytest.raises(StoreNotWritable, match="as user"):
        reader.blobs.ingest([b"new"], None)


def test_a_store_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreNotWritable, match="cannot write to `store`"):
        Store(tmp_path / "file" / "store")


def test_threads_change_and_read_the_store_together(store: Store) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for round_ in range(8):
                with store.keep() as keep:
                    keep.add(*(Digest.of(data) for data in (CONFIG, b"%d" % round_)))
                    keep.add(Digest.of(b"w%d" % number))
                    add(store, f"own{number}:x", b"w%d" % number, system=b"%d" % round_)
                assert store.resolve(f"own{number}:x").system == str(round_)
                store.list()
            store.delete(f"own{number}:x")
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert store.list() == []
    assert blob_files(store) == set()


def test_listing_a_hundred_models_is_quick(store: Store) -> None:
    for number in range(100):
        add(store, f"model{number}:tag", b"%d" % number)
    fresh = Store(store.root)
    started = time.perf_counter()
    assert len(fresh.list()) == 100
    cold_s = time.perf_counter() - started
    started = time.perf_counter()
    fresh.list()
    warm_s = time.perf_counter() - started
    assert cold_s < 0.5  # about 11 ms alone on a machine
    assert warm_s < 0.1  # about 2 ms


def test_media_types_are_the_references(store: Store) -> None:
    prefix = "application/vnd.ollama.image."
    kinds = {
        "model": MODEL_TYPE,
        "projector": PROJECTOR_TYPE,
        "adapter": ADAPTER_TYPE,
        "template": TEMPLATE_TYPE,
        "system": SYSTEM_TYPE,
        "params": PARAMS_TYPE,
        "messages": MESSAGES_TYPE,
        "license": LICENSE_TYPE,
    }
    assert kinds == {kind: prefix + kind for kind in kinds}
    assert encode_manifest(manifest(store, b"w")).startswith(b'{"schemaVersion":2,')
