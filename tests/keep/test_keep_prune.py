"""What prune takes, spares and says; what removing a model takes of its downloads."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from partial_writer import leave_partial

from modelstore.digest import Digest
from modelstore.errors import DownloadUnderway, ModelNotFound
from modelstore.files import create_file, write_atomically
from modelstore.pruning import AT_START, BY_COMMAND, RESUMABLE_AGE_S, PruneRules
from modelstore.store import MARKER_NAME, Store
from tests.modelstore.store_writer import add, blob, blob_files, names, path_of, referenced

HOUR_S = 3600.0
WEIGHTS = b"weights of something large"


def make_old(path: Path, age_s: float) -> None:
    past = time.time() - age_s
    os.utime(path, (past, past), follow_symlinks=False)


def everything(store: Store) -> set[str]:
    return {str(path) for path in store.root.rglob("*")}


def test_a_dry_run_says_the_same_and_removes_nothing(store: Store) -> None:
    add(store, "m")
    orphan = blob(store, b"orphan")
    leave_partial(store.blobs.folder, WEIGHTS, "big:1b", n_here=9)
    (store.blobs.folder / ".tmp-00").write_bytes(b"123")
    make_old(store.blobs.path(orphan), HOUR_S)
    before = everything(store)
    rules = PruneRules(min_age_s=300, partial_age_s=0, dry_run=True)
    said = store.prune(rules)
    assert everything(store) == before
    assert [(piece.kind, piece.model) for piece in said.gone] == [
        ("leftover", ""),
        ("partial", "big:1b"),
        ("blob", ""),
    ]
    partial = said.gone[1]
    assert partial.total_bytes == len(WEIGHTS)
    assert partial.size_bytes == 9  # without the journal
    done = store.prune(BY_COMMAND)
    assert (done.gone, done.freed_bytes) == (said.gone, said.freed_bytes)
    assert blob_files(store) == referenced(store)


def test_a_sparse_download_counts_with_what_it_takes_on_the_disk(store: Store) -> None:
    data = leave_partial(store.blobs.folder, WEIGHTS, "big")
    with data.open("r+b") as file:
        file.truncate(1 << 30)
    (piece,) = store.pieces()
    assert piece.size_bytes < 1 << 20


def test_only_partial_downloads_go_when_nothing_else_is_asked_for(store: Store) -> None:
    orphan = blob(store, b"orphan")
    leave_partial(store.blobs.folder, WEIGHTS, "big")
    report = store.prune(PruneRules(min_age_s=0, partial_age_s=0, only_partials=True))
    assert [piece.kind for piece in report.gone] == ["partial"]
    assert store.blobs.exists(orphan)


@pytest.mark.parametrize(
    ("rules", "age_s", "goes"),
    [
        (AT_START, RESUMABLE_AGE_S - 60, False),
        (AT_START, RESUMABLE_AGE_S + 60, True),
        (BY_COMMAND, 0, True),
    ],
)
def test_a_download_that_can_be_resumed_outlives_a_start_but_no_command(
    store: Store, rules: PruneRules, age_s: float, goes: bool
) -> None:
    leave_partial(store.blobs.folder, WEIGHTS, "big", age_s=age_s)
    store.prune(rules)
    assert (blob_files(store) == set()) is goes


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_download_that_somebody_transfers_stays(store: Store, dry_run: bool) -> None:
    data = leave_partial(store.blobs.folder, WEIGHTS, "big", age_s=RESUMABLE_AGE_S * 2)
    rules = PruneRules(min_age_s=0, partial_age_s=0, dry_run=dry_run)
    with FileLock(f"{data}.lock"):
        report = store.prune(rules)
        assert (report.gone, report.n_spared) == ((), 1)
        with pytest.raises(DownloadUnderway, match="is being downloaded"):
            store.delete("big")
    assert data.exists()
    assert len(store.prune(rules).gone) == 1


def test_the_downloads_of_ollama_have_no_locks_so_their_age_counts(store: Store) -> None:
    partial = store.blobs.folder / f"{Digest.of(WEIGHTS).file_name}-partial-0"
    partial.write_bytes(b"{}")
    assert store.prune(PruneRules(min_age_s=0, partial_age_s=0)).gone == ()
    make_old(partial, HOUR_S + 60)
    assert len(store.prune(BY_COMMAND).gone) == 1


def test_a_lock_that_a_finished_download_left_goes(store: Store) -> None:
    lock = store.blobs.folder / f"{Digest.of(WEIGHTS).file_name}-partial.lock"
    lock.touch()
    assert [piece.kind for piece in store.prune(AT_START).gone] == ["leftover"]
    assert not lock.exists()


def test_a_file_that_is_being_written_stays_whatever_its_age(store: Store) -> None:
    with store.blobs.writer() as writer:
        writer.write(b"slowly")
        for name in blob_files(store):
            make_old(store.blobs.folder / name, 1e6)
        assert store.prune(PruneRules(min_age_s=0)).n_spared == 1
        digest, is_new = writer.commit()
    assert is_new
    assert store.blobs.exists(digest)


def test_a_file_whose_writer_is_gone_goes_at_once(store: Store) -> None:
    add(store, "m")
    for temp in (store.blobs.folder / ".tmp-aa", path_of(store, "m", ".tmp-bb")):
        create_file(temp).close()
    assert [piece.kind for piece in store.prune(AT_START).gone] == ["leftover"] * 2
    assert names(store) == ["m:latest"]


def test_writers_and_a_pruner_never_meet(store: Store) -> None:
    """A file that is taken for abandoned between its making and its locking is made anew."""
    ends = threading.Event()

    def prune() -> None:
        while not ends.is_set():
            store.prune(PruneRules(min_age_s=0, partial_age_s=0))

    pruner = threading.Thread(target=prune)
    pruner.start()
    try:
        for number in range(200):
            write_atomically(store.blobs.folder / "note.txt", b"%d" % number)
            with store.keep() as keep:
                keep.add(Digest.of(b"w"))
                add(store, "m", b"w", system=b"%d" % number)
    finally:
        ends.set()
        pruner.join()
    assert store.resolve("m").system == "199"
    store.check_files(store.resolve("m"))


def test_what_an_operation_under_way_has_brought_is_not_old(store: Store) -> None:
    uploaded = blob(store, b"uploaded first")

    def chunks() -> Iterator[bytes]:
        yield b"a second"
        report = store.prune(PruneRules(min_age_s=30))
        assert (report.gone, report.n_spared) == ((), 2)
        yield b" upload"

    make_old(store.blobs.path(uploaded), 20)  # as long as the second one takes, and longer
    store.blobs.ingest(chunks(), None)
    with store.keep():
        later = blob(store, b"made meanwhile")
        assert later not in store.prune(PruneRules(min_age_s=0)).digests
    assert later in store.prune(PruneRules(min_age_s=0)).digests


def test_the_reason_why_nothing_goes_has_a_name(store: Store) -> None:
    add(store, "m")
    add(store, "broken")
    orphan = blob(store, b"orphan")
    path_of(store, "broken", "latest").write_bytes(b"{")
    report = store.prune(PruneRules(min_age_s=0))
    assert (report.unreadable, report.gone) == (("broken:latest",), ())
    assert store.blobs.exists(orphan)


def test_a_folder_that_cannot_be_listed_is_no_empty_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store, "m")
    before = blob_files(store)
    real = os.listdir

    def refuse(path: str | os.PathLike[str]) -> list[str]:
        if os.fspath(path).endswith("library/m"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "listdir", refuse)  # root may list everything
    report = store.prune(PruneRules(min_age_s=0))
    assert report.gone == ()
    assert report.unreadable == ("registry.ollama.ai/library/m/",)
    assert blob_files(store) == before


def test_a_foreign_folder_is_pruned_only_when_asked_and_then_by_its_own_age(
    store: Store, tmp_path: Path
) -> None:
    (store.root / MARKER_NAME).unlink()
    foreign = Store(store.root)
    young, old = blob(foreign, b"young"), blob(foreign, b"old")
    make_old(foreign.blobs.path(old), HOUR_S + 60)
    assert foreign.prune(PruneRules(min_age_s=0)).is_refused
    assert foreign.blobs.exists(old)
    report = foreign.prune(PruneRules(min_age_s=0, partial_age_s=0, foreign=True))
    assert report.digests == (old,)
    assert foreign.blobs.exists(young)


def test_removing_a_model_that_is_only_a_partial_download_frees_it(store: Store) -> None:
    leave_partial(store.blobs.folder, WEIGHTS, "Hf.co/User/Big:Q4")
    leave_partial(store.blobs.folder, b"another", "other")
    with pytest.raises(ModelNotFound):
        store.delete("big")
    store.delete("hf.co/user/big:q4")
    assert [piece.model for piece in store.pieces()] == ["other"]
    with pytest.raises(ModelNotFound):
        store.delete("hf.co/user/big:q4")


def test_removing_a_model_takes_its_unfinished_update_along(store: Store) -> None:
    add(store, "m")
    leave_partial(store.blobs.folder, WEIGHTS, "m:latest")
    store.delete("m")
    assert blob_files(store) == set()


def test_a_damaged_journal_makes_a_download_of_nobody(store: Store) -> None:
    data = leave_partial(store.blobs.folder, WEIGHTS, "m")
    for damage in (b"", b"\xff", b'{"model": 3}', b"[" * 5000):
        data.with_name(data.name + ".json").write_bytes(damage)
        (piece,) = store.pieces()
        assert (piece.kind, piece.model) == ("partial", "")
    assert store.prune(BY_COMMAND).freed_bytes > 0
