"""Blobs: nothing is visible before its hash was right, and files in place are watched."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from modelstore import blobs as blobs_module
from modelstore.blobs import Blobs
from modelstore.digest import Digest
from modelstore.errors import (
    BlobNotFound,
    ChangedFile,
    DigestMismatch,
    DiskFull,
    StoreNotWritable,
)

DATA = b"some weights" * 1000
DIGEST = Digest.of(DATA)


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "store")


class _Full:
    def write(self, chunk: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def close(self) -> None:
        pass


def _small_disk(monkeypatch: pytest.MonkeyPatch, free: int, *, total: int = 1 << 30) -> None:
    disk = SimpleNamespace(total=total, free=free)
    monkeypatch.setattr("modelstore.files.shutil.disk_usage", lambda folder: disk)


def _files(blobs: Blobs) -> list[str]:
    return sorted(os.listdir(blobs.folder))


def test_a_stream_becomes_a_blob(blobs: Blobs) -> None:
    assert not blobs.exists(DIGEST)
    assert blobs.ingest([DATA[:7], DATA[7:]], DIGEST) == (DIGEST, True)
    assert blobs.exists(DIGEST)
    assert blobs.size(DIGEST) == len(DATA)
    assert blobs.path(DIGEST).read_bytes() == DATA
    assert list(blobs.iterate()) == [DIGEST]
    assert _files(blobs) == [DIGEST.file_name]


def test_a_blob_that_is_there_is_not_written_again_but_the_stream_is_drained(blobs: Blobs) -> None:
    blobs.ingest([DATA], None)
    inode = blobs.path(DIGEST).stat().st_ino
    chunks = iter([DATA])
    assert blobs.ingest(chunks, DIGEST) == (DIGEST, False)
    assert next(chunks, None) is None
    assert blobs.ingest([DATA], None) == (DIGEST, False)
    assert blobs.path(DIGEST).stat().st_ino == inode
    assert _files(blobs) == [DIGEST.file_name]


def test_a_wrong_hash_leaves_nothing(blobs: Blobs) -> None:
    with pytest.raises(DigestMismatch) as caught:
        blobs.ingest([DATA, b"!"], DIGEST)
    assert caught.value.expected == DIGEST.text
    assert str(caught.value).startswith(f'digest mismatch, expected "{DIGEST.text}", got "sha256:')
    assert _files(blobs) == []


def test_a_sender_that_breaks_off_leaves_nothing(blobs: Blobs) -> None:
    def broken() -> Iterator[bytes]:
        yield DATA
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        blobs.ingest(broken(), DIGEST)
    assert _files(blobs) == []


def test_nothing_is_visible_while_a_blob_is_being_written(blobs: Blobs) -> None:
    with blobs.writer(DIGEST) as writer:
        writer.write(DATA)
        assert not blobs.exists(DIGEST)
        assert list(blobs.iterate()) == []
        assert writer.commit() == (DIGEST, True)
    assert blobs.exists(DIGEST)


def test_many_threads_store_the_same_blob_once(blobs: Blobs) -> None:
    barrier = threading.Barrier(8)
    results: list[tuple[Digest, bool]] = []

    def store() -> None:
        barrier.wait()
        results.append(blobs.ingest([DATA[:100], DATA[100:]], DIGEST))

    threads = [threading.Thread(target=store) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {digest for digest, _ in results} == {DIGEST}
    assert sum(is_new for _, is_new in results) == 1
    assert blobs.path(DIGEST).read_bytes() == DATA
    assert _files(blobs) == [DIGEST.file_name]


@pytest.mark.parametrize("kernel_copies", [True, False])
def test_a_file_is_copied_with_progress(
    blobs: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel_copies: bool
) -> None:
    if not kernel_copies:
        monkeypatch.setattr(os, "copy_file_range", _fails(errno.EXDEV), raising=False)
    source = tmp_path / "source.gguf"
    data = os.urandom(1 << 20) * 3 + b"tail"
    source.write_bytes(data)
    with source.open("rb") as file, blobs.writer(total_bytes=len(data)) as writer:
        counts = list(writer.copy_from(file))
        digest, is_new = writer.commit()
    assert counts == sorted(counts)
    assert counts[-1] == len(data)
    assert (digest, is_new) == (Digest.of(data), True)
    assert blobs.path(digest).read_bytes() == data


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_one_clear_error_and_leaves_nothing(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(blobs_module, "commit", _fails(code))
    with pytest.raises(DiskFull, match="not enough disk space"):
        blobs.ingest([DATA], None)
    assert _files(blobs) == []


def test_a_copy_that_cannot_fit_is_refused_before_it_is_written(
    blobs: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.write_bytes(DATA)
    monkeypatch.setattr(os, "copy_file_range", _fails(errno.EXDEV), raising=False)
    _small_disk(monkeypatch, 100)
    with (
        source.open("rb") as file,
        blobs.writer(total_bytes=len(DATA)) as writer,
        pytest.raises(DiskFull) as caught,
    ):
        list(writer.copy_from(file))
    assert (caught.value.needed_bytes, caught.value.free_bytes) == (len(DATA), 100)
    assert _files(blobs) == []


def test_a_stream_of_known_length_is_refused_before_a_byte_is_read(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs.ingest([DATA], None)
    _small_disk(monkeypatch, 100)
    chunks = iter([b"x" * 101])
    with pytest.raises(DiskFull, match="needs 101 bytes, 100 are free"):
        blobs.ingest(chunks, Digest.of(b"x" * 101), total_bytes=101)
    assert next(chunks)
    assert blobs.ingest([DATA], DIGEST, total_bytes=len(DATA)) == (DIGEST, False)
    assert _files(blobs) == [DIGEST.file_name]


def test_a_stream_of_unknown_length_ends_before_the_disk_is_full(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    _small_disk(monkeypatch, 1 << 20)
    piece = b"x" * (1 << 20)
    sent = iter([piece] * 100)
    with pytest.raises(DiskFull) as caught:
        blobs.ingest(sent, None)
    assert caught.value.needed_bytes > caught.value.free_bytes
    assert len(list(sent)) == 91
    assert _files(blobs) == []


def test_the_figures_of_a_disk_that_fills_up_are_those_from_before(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    _small_disk(monkeypatch, 0, total=0)  # what cannot be told refuses nothing
    with blobs.writer() as writer:
        writer.write(DATA)
        writer._file.close()
        monkeypatch.setattr(writer, "_file", _Full())
        with pytest.raises(DiskFull) as caught:
            writer.write(DATA)
    assert (caught.value.needed_bytes, caught.value.free_bytes) == (2 * len(DATA), len(DATA))


def test_a_full_disk_says_what_a_link_needs(
    blobs: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.write_bytes(DATA)
    monkeypatch.setattr(blobs_module, "write_atomically", _fails(errno.ENOSPC))
    with pytest.raises(DiskFull, match=r"a few KB are needed, [0-9]+ bytes are free"):
        blobs.link_in_place(source)


def test_a_refusing_file_system_is_named_with_the_user(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs_module, "create_file", _fails(errno.EROFS))
    with pytest.raises(StoreNotWritable, match="cannot write to `blobs`"):
        blobs.ingest([DATA], None)


def test_a_missing_blob_is_named(blobs: Blobs) -> None:
    for use in (blobs.size, lambda digest: blobs.read(digest, limit_bytes=9)):
        with pytest.raises(BlobNotFound, match=DIGEST.hex):
            use(DIGEST)
    blobs.delete(DIGEST)  # no error: the outcome is the same


def test_foreign_names_are_not_blobs(blobs: Blobs) -> None:
    blobs.ingest([DATA], None)
    for name in (".DS_Store", f"{DIGEST.file_name}-partial", "sha256-short", ".tmp-0123"):
        (blobs.folder / name).write_bytes(b"x")
    assert list(blobs.iterate()) == [DIGEST]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "outside" / "weights.gguf"
    path.parent.mkdir()
    path.write_bytes(DATA)
    return path


def test_a_file_in_place_is_a_blob_without_a_copy(blobs: Blobs, source: Path) -> None:
    assert blobs.link_in_place(source) == DIGEST
    assert blobs.exists(DIGEST)
    assert blobs.path(DIGEST).is_symlink()
    assert blobs.path(DIGEST).read_bytes() == DATA
    assert blobs.in_place_source(DIGEST) == source
    assert list(blobs.iterate()) == [DIGEST]
    blobs.check_in_place(DIGEST)


def test_a_changed_file_in_place_is_noticed(blobs: Blobs, source: Path) -> None:
    blobs.link_in_place(source)
    before = source.stat()
    source.write_bytes(DATA + b"!")
    with pytest.raises(ChangedFile, match=r"`weights\.gguf`, used in place, has changed") as caught:
        blobs.check_in_place(DIGEST)
    assert str(source.parent) not in str(caught.value)
    assert not blobs.exists(DIGEST)
    source.write_bytes(DATA)  # the same bytes in the same place at the same time: the same file
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    blobs.check_in_place(DIGEST)


def test_a_touched_or_replaced_or_vanished_file_in_place_is_noticed(
    blobs: Blobs, source: Path
) -> None:
    blobs.link_in_place(source)
    stamp = source.stat().st_mtime_ns
    os.utime(source, ns=(stamp, stamp + 1_000_000))
    with pytest.raises(ChangedFile, match="has changed"):
        blobs.check_in_place(DIGEST)
    twin = source.with_name("twin")
    twin.write_bytes(DATA)
    os.utime(twin, ns=(stamp, stamp))
    twin.replace(source)
    with pytest.raises(ChangedFile, match="has changed"):
        blobs.check_in_place(DIGEST)
    source.unlink()
    with pytest.raises(ChangedFile, match="no longer there; put it back, or create") as caught:
        blobs.check_in_place(DIGEST)
    # Nothing there is to be checked, whoever needs it.
    assert "verify" not in str(ChangedFile(*caught.value.args[:2], "m"))
    assert not blobs.exists(DIGEST)


def test_removing_a_file_in_place_removes_only_the_link(blobs: Blobs, source: Path) -> None:
    blobs.link_in_place(source)
    blobs.delete(DIGEST)
    assert source.read_bytes() == DATA
    assert _files(blobs) == []


def test_stored_bytes_take_the_place_of_a_link(blobs: Blobs, source: Path) -> None:
    blobs.link_in_place(source)
    assert blobs.ingest([DATA], DIGEST) == (DIGEST, True)
    source.unlink()
    assert blobs.exists(DIGEST)
    assert _files(blobs) == [DIGEST.file_name]
    source.write_bytes(DATA)
    blobs.link_in_place(source)  # and are kept when the file is offered again
    assert not blobs.path(DIGEST).is_symlink()


def test_a_link_can_be_renewed_after_the_file_moved(blobs: Blobs, source: Path) -> None:
    blobs.link_in_place(source)
    moved = source.rename(source.with_name("moved.gguf"))
    assert blobs.link_in_place(moved) == DIGEST
    blobs.check_in_place(DIGEST)


def test_a_link_that_somebody_made_by_hand_is_followed(blobs: Blobs, source: Path) -> None:
    blobs.ingest([b"other"], None)
    blobs.path(DIGEST).symlink_to(source)
    assert blobs.exists(DIGEST)
    source.unlink()
    with pytest.raises(ChangedFile, match="no longer there"):
        blobs.check_in_place(DIGEST)


def test_a_damaged_sidecar_is_not_trusted(blobs: Blobs, source: Path) -> None:
    blobs.link_in_place(source)
    (blobs.folder / f"{DIGEST.file_name}.in-place").write_bytes(b"{")
    with pytest.raises(ChangedFile, match="damaged"):
        blobs.check_in_place(DIGEST)


def _fails(code: int):  # type: ignore[no-untyped-def]
    def fail(*_args: object, **_kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail
