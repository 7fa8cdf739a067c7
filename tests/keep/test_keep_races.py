"""Readers beside writers: a model that goes meanwhile is not found, and nothing else happens."""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from modelstore.digest import Digest
from modelstore.errors import ModelNotFound
from modelstore.show import render_modelfile
from modelstore.store import Store
from modelstore.usage import usage
from modelstore.verify import verify
from tests.modelstore.gguf_writer import tiny_metadata, tiny_tensors, write_gguf
from tests.modelstore.model_maker import make

N_ROUNDS = 15

Step = Callable[[], object]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny_metadata(), tiny_tensors())
    return path


class _Crowd:
    """Threads that work on one store; whatever but ModelNotFound they get is a failure."""

    def __init__(self) -> None:
        self._has_ended = threading.Event()
        self._failures: list[BaseException] = []

    def run(self, writers: list[tuple[Step, ...]], readers: list[Step]) -> list[BaseException]:
        writing = [threading.Thread(target=self._write, args=(steps,)) for steps in writers]
        reading = [threading.Thread(target=self._read, args=(step,)) for step in readers]
        for thread in (*reading, *writing):
            thread.start()
        for thread in writing:
            thread.join(60)
        self._has_ended.set()
        for thread in reading:
            thread.join(60)
        return self._failures

    def _write(self, steps: tuple[Step, ...]) -> None:
        for _ in range(N_ROUNDS):
            for step in steps:
                self._try(step)

    def _read(self, step: Step) -> None:
        while not self._has_ended.is_set() and not self._failures:
            self._try(step)

    def _try(self, step: Step) -> None:
        try:
            step()
        except ModelNotFound:
            pass
        except Exception as error:  # noqa: BLE001 - what it is, is the test's to say
            self._failures.append(error)


def test_readers_survive_every_change(store: Store, path: Path, tmp_path: Path) -> None:
    make(store, "stays", path=path)
    other = tmp_path / "other.gguf"
    write_gguf(other, tiny_metadata(general__name="other"), tiny_tensors())
    numbers = iter(range(10_000))
    writers: list[tuple[Step, ...]] = [
        (
            lambda: make(store, "goes", from_="stays", system=f"system {next(numbers)}"),
            lambda: store.delete("goes"),
        ),
        (
            lambda: make(store, "linked", path=other, in_place=True),
            lambda: store.delete("linked"),
        ),
    ]
    readers: list[Step] = [
        store.list,
        lambda: render_modelfile(store.resolve("goes")),
        lambda: store.check_files(store.resolve("linked")),
        lambda: store.copy("goes", "copied"),
        lambda: make(store, "made", from_="goes"),
        lambda: usage(store),
        lambda: list(verify(store, ["goes"])),
    ]
    assert _Crowd().run(writers, readers) == []
    assert "stays:latest" in [one.name.display() for one in store.list()]


@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize("look", [Store.list, lambda store: store.resolve("m")])
def test_a_model_that_goes_while_it_is_read_is_not_found(
    store: Store,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    look: Callable[[Store], object],
    is_before: bool,
) -> None:
    make(store, "m", path=path, system="a system")
    reading = Store(store.root)
    read = store.blobs.read

    def removed_meanwhile(digest: Digest, *, limit_bytes: int) -> bytes:
        data = b"" if is_before else read(digest, limit_bytes=limit_bytes)
        with contextlib.suppress(ModelNotFound):
            store.delete("m")
        return data or read(digest, limit_bytes=limit_bytes)

    monkeypatch.setattr(reading.blobs, "read", removed_meanwhile)
    with contextlib.suppress(ModelNotFound):
        look(reading)
    assert reading.list() == []


def test_an_error_counts_only_while_the_manifest_is_the_same(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(store, "m", path=path, system="old")
    read = store.blobs.read
    is_replaced: list[bool] = []

    def replaced_meanwhile(digest: Digest, *, limit_bytes: int) -> bytes:
        if not is_replaced:
            is_replaced.append(True)
            make(store, "m", path=path, system="new")
        return read(digest, limit_bytes=limit_bytes)

    fresh = Store(store.root)
    monkeypatch.setattr(fresh.blobs, "read", replaced_meanwhile)
    assert fresh.resolve("m").system == "new"
