"""What the models take on the disk: own and shared bytes, and everything that is no model."""

from pathlib import Path

from partial_writer import leave_partial

from modelstore.digest import Digest
from modelstore.store import Store
from modelstore.usage import Usage, usage
from modelstore.verify import verify
from tests.modelstore.store_writer import CONFIG, add, blob, path_of

MODEL = b"w" * 1000
OTHER = b"o" * 500


def bytes_of(found: Usage, kind: str) -> int:
    return sum(piece.size_bytes for piece in found.pieces if piece.kind == kind)


def test_an_empty_store_takes_nothing(store: Store) -> None:
    found = usage(store)
    assert (found.models, found.n_blobs, found.blobs_bytes) == ((), 0, 0)
    assert found.free_bytes > 0


def test_what_models_share_counts_once_in_the_whole_and_never_as_own(store: Store) -> None:
    add(store, "a", MODEL, system=b"12345")
    add(store, "b", MODEL)
    add(store, "c", OTHER)
    found = usage(store)
    by_name = {one.name.model: one for one in found.models}
    n_config = len(CONFIG)
    assert [one.name.model for one in found.models] == ["a", "b", "c"]
    assert (by_name["a"].own_bytes, by_name["a"].shared_bytes) == (5, 1000 + n_config)
    assert (by_name["b"].own_bytes, by_name["b"].shared_bytes) == (0, 1000 + n_config)
    assert (by_name["c"].own_bytes, by_name["c"].shared_bytes) == (500, n_config)
    assert (found.n_blobs, found.blobs_bytes) == (4, 1505 + n_config)
    assert found.unreferenced == ()


def test_own_bytes_are_what_a_removal_brings(store: Store) -> None:
    add(store, "a", MODEL, system=b"12345")
    add(store, "b", MODEL)
    store.copy("a", "c")
    for name in ("a", "b", "c"):
        before = usage(store)
        own = next(one.own_bytes for one in before.models if one.name.model == name)
        store.delete(name)
        assert before.blobs_bytes - usage(store).blobs_bytes == own


def test_files_in_place_are_not_the_stores(store: Store, tmp_path: Path) -> None:
    outside = tmp_path / "w.gguf"
    outside.write_bytes(MODEL)
    store.blobs.link_in_place(outside)
    digest = Digest.of(MODEL)
    add(store, "m", OTHER)
    found = usage(store)
    assert (found.n_in_place, found.in_place_bytes) == (1, 1000)
    assert found.blobs_bytes == 500 + len(CONFIG)
    outside.unlink()
    assert usage(store).n_in_place == 0
    assert [piece.name for piece in found.unreferenced] == [digest.file_name]


def test_everything_that_is_no_model_is_named(store: Store) -> None:
    add(store, "m", MODEL)
    blob(store, b"orphan")
    leave_partial(store.blobs.folder, OTHER, "big", n_here=100)
    (store.blobs.folder / ".tmp-00").write_bytes(b"123")
    path_of(store, "m", ".tmp-11").write_bytes(b"12")
    store.blobs.path(Digest.of(MODEL)).write_bytes(b"x" * 1000)
    list(verify(store))
    found = usage(store)
    assert [piece.size_bytes for piece in found.unreferenced] == [6]
    assert bytes_of(found, "leftover") == 5
    assert bytes_of(found, "corrupt") == 1000
    assert bytes_of(found, "partial") == 100
    (partial,) = (piece for piece in found.pieces if piece.kind == "partial")
    assert (partial.model, partial.total_bytes) == ("big", 500)
    (model,) = found.models
    assert model.n_missing == 1


def test_a_broken_manifest_is_named_and_hides_no_other_model(store: Store) -> None:
    add(store, "good", MODEL)
    add(store, "bad", OTHER)
    path_of(store, "bad", "latest").write_bytes(b"")
    found = usage(store)
    assert [one.name.model for one in found.models] == ["good"]
    assert found.unreadable == ("bad:latest",)
    assert found.unreferenced == ()  # nobody knows what the broken one needs
