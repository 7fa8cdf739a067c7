"""What goes from a store (blobs nobody needs, leftovers) and what is spared."""

import os
import time
from pathlib import Path

import pytest

from modelstore.digest import Digest
from modelstore.errors import (
    InvalidName,
    ModelNotFound,
)
from modelstore.pruning import PruneRules
from modelstore.store import Store
from tests.modelstore.store_writer import add, blob, blob_files, names, path_of, referenced


def test_disk_space_comes_back_after_each_step(store: Store) -> None:
    add(store, "a", b"one", system=b"shared")
    assert blob_files(store) == referenced(store)
    add(store, "a", b"two", system=b"shared")
    assert blob_files(store) == referenced(store)
    add(store, "b", b"three", system=b"shared")
    store.copy("b", "c")
    store.delete("b")
    assert blob_files(store) == referenced(store)
    assert Digest.of(b"three").file_name in blob_files(store)
    store.delete("a")
    store.delete("c")
    assert blob_files(store) == set()
    assert os.listdir(store.root / "manifests") == []


def test_a_copy_over_another_model_releases_its_blobs(store: Store) -> None:
    add(store, "a", b"one")
    add(store, "b", b"two")
    store.copy("a", "b")
    assert blob_files(store) == referenced(store)
    with pytest.raises(ModelNotFound):
        store.copy("absent", "x")
    with pytest.raises(InvalidName):
        store.copy("a", "x:")


def test_pruning_takes_old_orphans_and_leftovers_only(store: Store) -> None:
    add(store, "m")
    old, young = blob(store, b"old"), blob(store, b"young")
    temp = store.blobs.folder / ".tmp-00"
    partial = store.blobs.folder / f"{old.file_name}-partial-0"
    stray = store.blobs.folder / "readme.txt"
    sidecar = store.blobs.folder / f"sha256-{'0' * 64}.in-place"
    leftover = path_of(store, "m", ".tmp-11")
    for path in (temp, partial, stray, sidecar, leftover):
        path.write_bytes(b"12345")
    past = time.time() - 7200
    for path in (temp, partial, stray, sidecar, leftover, store.blobs.path(old)):
        os.utime(path, (past, past))
    gone = store.prune()
    n_leftovers = len(gone.gone) - len(gone.digests)
    assert (gone.digests, n_leftovers, gone.freed_bytes) == ((old,), 4, 23)
    assert not any(path.exists() for path in (temp, partial, sidecar, leftover))
    assert stray.exists()
    assert not store.blobs.exists(old)
    assert store.blobs.exists(young)
    assert names(store) == ["m:latest"]
    store.check_files(store.resolve("m"))


def test_asking_for_a_blob_again_makes_it_young(store: Store) -> None:
    digest = blob(store, b"uploaded again")
    past = time.time() - 7200
    os.utime(store.blobs.path(digest), (past, past))
    store.blobs.ingest([b"uploaded again"], digest)
    assert store.prune().digests == ()


def test_nothing_is_pruned_while_a_manifest_is_broken(store: Store) -> None:
    add(store, "m")
    orphan = blob(store, b"orphan")
    path_of(store, "m", "latest").write_bytes(b"")
    assert store.prune(PruneRules(min_age_s=0)).digests == ()
    assert store.blobs.exists(orphan)


def test_a_linked_blob_is_removed_without_its_target(store: Store, tmp_path: Path) -> None:
    add(store, "m")
    digest = Digest.of(b"weights")
    target = store.blobs.path(digest).rename(tmp_path / "elsewhere")
    store.blobs.path(digest).symlink_to(target)
    store.check_files(store.resolve("m"))
    store.delete("m")
    assert target.read_bytes() == b"weights"
    assert blob_files(store) == set()


def test_blobs_that_are_kept_outlive_a_removal_until_they_are_let_go(store: Store) -> None:
    add(store, "m")
    digest = Digest.of(b"weights")
    with store.keep() as keep, store.keep() as other:
        keep.add(digest)
        other.add(digest)
        store.delete("m")
        assert blob_files(store) == {digest.file_name}
        assert store.prune(PruneRules(min_age_s=0)).digests == ()
    assert blob_files(store) == set()


def test_new_blobs_that_no_manifest_came_to_name_go_again(store: Store) -> None:
    with store.keep() as keep:
        keep.made(blob(store, b"abandoned"))
        add(store, "m")
        keep.made(Digest.of(b"weights"))
    assert blob_files(store) == referenced(store)
