"""Models are checked against their digests; what is damaged no longer serves until repaired."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from modelstore.digest import Digest
from modelstore.errors import BlobNotFound, ChangedFile, ModelNotFound, ServerRefused
from modelstore.manifest import Layer
from modelstore.names import ModelName
from modelstore.pruning import PruneRules
from modelstore.sources import Progress
from modelstore.store import MARKER_NAME, Store
from modelstore.verify import Health, verify
from tests.modelstore.store_writer import CONFIG, add, blob_files, manifest, path_of

WEIGHTS = b"w" * 3_000_000
BLOB = Digest.of(WEIGHTS)


def healths(store: Store, *names: str, **options: object) -> dict[str, Health]:
    steps = list(verify(store, names, **options))  # type: ignore[arg-type]
    return {step.model: step for step in steps if isinstance(step, Health)}


def kinds(health: Health) -> list[str]:
    return [problem.kind for problem in health.problems]


def test_whole_models_are_well_and_progress_is_by_bytes(store: Store) -> None:
    add(store, "a", WEIGHTS)
    add(store, "b", WEIGHTS, system=b"text")
    steps = list(verify(store))
    progress = [step for step in steps if isinstance(step, Progress)]
    counts = [step.completed or 0 for step in progress]
    assert counts == sorted(counts)
    assert {step.total for step in progress} == {counts[-1]}
    assert counts[-1] == len(WEIGHTS) + len(CONFIG) + len(b"text")
    found = [step for step in steps if isinstance(step, Health)]
    assert [(one.model, one.is_well) for one in found] == [("a:latest", True), ("b:latest", True)]


@pytest.mark.parametrize(
    ("damage", "kind", "word"),
    [
        (b"x" + WEIGHTS[1:], "corrupt", "another content"),
        (WEIGHTS[:-1], "truncated", "has 2999999 of 3000000 bytes"),
        (WEIGHTS + b"x", "corrupt", "another content"),
        (b"", "truncated", "has 0 of 3000000 bytes"),
    ],
)
def test_a_damaged_blob_is_named_and_set_aside(
    store: Store, damage: bytes, kind: str, word: str
) -> None:
    add(store, "bad", WEIGHTS)
    add(store, "good", b"other weights")
    store.blobs.path(BLOB).write_bytes(damage)
    found = healths(store)
    assert found["good:latest"].is_well
    (problem,) = found["bad:latest"].problems
    assert (problem.kind, problem.digest) == (kind, BLOB)
    assert word in problem.text
    assert "the weights" in problem.text
    assert not store.blobs.exists(BLOB)
    assert BLOB.file_name + "-corrupt" in blob_files(store)
    with pytest.raises(BlobNotFound):
        store.check_files(store.resolve("bad"))
    assert kinds(healths(store)["bad:latest"]) == ["missing"]
    report = store.prune(PruneRules(min_age_s=0))
    assert [piece.kind for piece in report.gone] == ["corrupt"]


def test_who_has_the_file_open_keeps_it(store: Store) -> None:
    add(store, "m", WEIGHTS)
    store.blobs.path(BLOB).write_bytes(b"short")
    with store.blobs.path(BLOB).open("rb") as loaded:
        assert not healths(store)["m:latest"].is_well
        assert loaded.read() == b"short"


def test_a_model_that_shares_a_damaged_blob_is_damaged_too(store: Store) -> None:
    add(store, "a", WEIGHTS)
    add(store, "b", b"more", system=WEIGHTS)
    store.blobs.path(BLOB).write_bytes(b"x" * 3_000_000)
    found = healths(store)
    assert kinds(found["a:latest"]) == kinds(found["b:latest"]) == ["corrupt"]


def test_only_the_named_models_are_read(store: Store) -> None:
    add(store, "a", WEIGHTS)
    add(store, "B:x", b"other")
    store.blobs.path(BLOB).write_bytes(b"damaged")
    assert list(healths(store, "b:X")) == ["B:x"]
    assert store.blobs.exists(BLOB), "a model that was not asked about is left alone"
    with pytest.raises(ModelNotFound, match="nosuch"):
        healths(store, "a", "nosuch")


def test_a_file_in_place_is_checked_by_its_record_and_by_its_content(
    store: Store, tmp_path: Path
) -> None:
    outside = tmp_path / "w.gguf"
    outside.write_bytes(WEIGHTS)
    described = manifest(store, WEIGHTS)
    store.blobs.delete(BLOB)
    store.blobs.link_in_place(outside)
    store.write_manifest("m", described)
    assert healths(store)["m:latest"].is_well
    before = outside.stat()
    for times in (None, (before.st_atime_ns, before.st_mtime_ns)):  # the latter: a failing disk
        with outside.open("r+b") as file:
            file.write(b"x")
        if times is not None:
            os.utime(outside, ns=times)
        for options in ({}, {"repair": True, "fetch": never}):
            (problem, *reasons) = healths(store, **options)["m:latest"].problems
            assert problem.kind == "changed"
            assert "`w.gguf`, used in place, has another content" in problem.text
            assert len(reasons) == ("fetch" in options)
        assert outside.stat().st_size == len(WEIGHTS), "the file is not ours to remove"
        assert store.blobs.path(BLOB).is_symlink()
        with pytest.raises(ChangedFile, match="`localrun verify m:latest`"):
            store.check_files(store.resolve("m"))
        outside.write_bytes(WEIGHTS)
        (note,) = healths(store)["m:latest"].notes
        assert "`w.gguf`" in note
        store.check_files(store.resolve("m"))
        assert healths(store)["m:latest"].notes == ()
    outside.unlink()
    assert kinds(healths(store, repair=True, fetch=never)["m:latest"]) == ["changed", "unrepaired"]
    copy = tmp_path / "copy"
    copy.write_bytes(WEIGHTS)
    copy.rename(outside)
    assert healths(store)["m:latest"].is_well
    store.check_files(store.resolve("m"))


def never(name: ModelName, layer: Layer) -> Iterator[Progress]:
    raise AssertionError("a file in place is not fetched")
    yield


def test_a_folder_of_somebody_else_is_only_reported_on_until_a_repair(store: Store) -> None:
    add(store, "m", WEIGHTS)
    (store.root / MARKER_NAME).unlink()
    store.blobs.path(BLOB).write_bytes(b"damaged")
    before = blob_files(store)
    (problem,) = healths(store)["m:latest"].problems
    assert "`--repair` sets it aside" in problem.text
    assert blob_files(store) == before
    found = healths(store, repair=True)["m:latest"]
    assert kinds(found) == ["missing", "unrepaired"]
    assert BLOB.file_name + "-corrupt" in blob_files(store)


def test_a_size_that_only_the_manifest_has_is_reported_and_not_listed(store: Store) -> None:
    made = manifest(store, WEIGHTS)
    (layer,) = made.layers
    store.write_manifest("m", replace(made, layers=(replace(layer, size_bytes=10**12),)))
    (problem,) = healths(store)["m:latest"].problems
    assert problem.kind == "size"
    assert "has 3000000 bytes, and the manifest says 1000000000000" in problem.text
    assert kinds(healths(store, repair=True, fetch=never)["m:latest"]) == ["size", "unrepaired"]
    (listing,) = store.list()
    assert listing.size_bytes == len(WEIGHTS) + len(CONFIG)


def test_a_broken_manifest_is_reported_beside_the_others(store: Store) -> None:
    add(store, "good")
    add(store, "bad")
    path_of(store, "bad", "latest").write_bytes(b"{")
    for found in (healths(store), healths(store, "bad", "good")):
        assert kinds(found["bad:latest"]) == ["manifest"]
        assert found["good:latest"].is_well


def test_a_blob_that_was_replaced_while_it_was_read_stays(store: Store) -> None:
    add(store, "m", b"x" * (20 << 20))
    digest = Digest.of(b"x" * (20 << 20))
    path = store.blobs.path(digest)
    path.write_bytes(b"y" * (20 << 20))
    steps = verify(store)
    next(steps)
    next(steps)  # in the middle of the damaged file
    path.unlink()
    store.blobs.ingest([b"x" * (20 << 20)], digest)
    assert all(step.is_well for step in steps if isinstance(step, Health))
    assert store.blobs.exists(digest)


def test_a_model_that_is_removed_meanwhile_is_not_damaged(store: Store) -> None:
    add(store, "a", WEIGHTS)
    add(store, "b", b"other")
    steps = verify(store)
    next(steps)
    store.delete("a")
    assert [step.model for step in steps if isinstance(step, Health)] == ["b:latest"]


def test_a_repair_pulls_what_is_damaged_and_looks_again(store: Store) -> None:
    add(store, "bad", WEIGHTS)
    add(store, "good", b"other")
    store.blobs.path(BLOB).write_bytes(b"x" * 3_000_000)
    before = path_of(store, "bad", "latest").read_bytes()
    asked = []

    def fetch(name: ModelName, layer: Layer) -> Iterator[Progress]:
        asked.append((name.display(), layer.digest))
        yield Progress("pulling")
        store.blobs.ingest([WEIGHTS], BLOB)

    found = healths(store, repair=True, fetch=fetch)
    assert asked == [("bad:latest", BLOB)]
    assert path_of(store, "bad", "latest").read_bytes() == before
    assert found["bad:latest"].is_repaired
    assert found["bad:latest"].is_well
    assert not found["good:latest"].is_repaired
    assert healths(store)["bad:latest"].is_well


def test_a_repair_that_fails_says_why_and_goes_on(store: Store) -> None:
    for name in ("a", "b"):
        add(store, name, name.encode())
        store.blobs.delete(Digest.of(name.encode()))

    def fetch(name: ModelName, layer: Layer) -> Iterator[Progress]:
        if name.model == "a":
            raise ServerRefused("h", 404, "blob")
        yield Progress("pulling")

    found = healths(store, repair=True, fetch=fetch)
    assert kinds(found["a:latest"]) == ["missing", "unrepaired"]
    assert found["a:latest"].problems[1].text == (
        "not repaired: the registry does not have this blob; `localrun pull a:latest` would "
        "replace the model"
    )
    assert kinds(found["b:latest"]) == ["missing"], "the pull brought nothing"
    assert kinds(healths(store, "b", repair=True)["b:latest"]) == ["missing", "unrepaired"]


def test_a_store_that_cannot_be_written_is_verified_all_the_same(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store, "m", WEIGHTS)
    store.blobs.path(BLOB).write_bytes(b"damaged")

    def refuse(self: Path, target: Path) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "replace", refuse)
    (problem,) = healths(store)["m:latest"].problems
    assert "could not be set aside" in problem.text
    assert store.blobs.path(BLOB).exists()
