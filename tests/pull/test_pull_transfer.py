"""One blob on its way here: parts, tries, repair, resumption, disks that are full."""

import errno
import os
import random
from types import SimpleNamespace
from typing import Any

import pytest
from faulty_server import QUICK, Asked, Fault, FaultyRegistry
from live import wait_until
from transfer_steps import SIZE, Make, arrives, followed, leftovers, offer, only, threads_of

from modelstore.digest import Digest
from modelstore.errors import (
    DigestMismatch,
    DiskFull,
    ServerRefused,
    TransferFailed,
)
from modelstore.pull import Puller
from modelstore.transfer.partial import read_journal
from modelstore.transfer.ranges import RangeSet, pieces

IS_FULL = os.environ.get("LOCALRUN_TEST_FULL") == "1"


def test_a_blob_comes_in_parts(puller: Puller, registry: FaultyRegistry, gguf: Make) -> None:
    data = gguf(SIZE)
    name = offer(registry, data)
    followed(puller.pull(name))
    store = puller.store
    assert store.blobs.path(Digest.of(data)).read_bytes() == data
    asked = registry.of(data)
    assert [(a.start, a.end) for a in sorted(asked, key=lambda a: a.start)] == pieces(
        [(0, len(data))], 256 << 10
    )
    assert leftovers(store) == []
    assert len({a.port for a in asked}) <= QUICK.n_streams  # connections are used again
    assert registry.n_bytes == len(data) + len(b'{"model_format":"gguf"}')


@pytest.mark.parametrize("at", [0, 1_000_000, SIZE - 1, SIZE - 200_000])
def test_one_flipped_byte_costs_less_than_the_file_again(
    puller: Puller, registry: FaultyRegistry, gguf: Make, at: int
) -> None:
    data = gguf(SIZE)
    seen: set[int] = set()

    def flip_once(asked: Asked) -> Fault | None:
        if asked.start <= at < asked.end and at not in seen:
            seen.add(at)
            return Fault(flip_at=at)
        return None

    name = offer(registry, data)
    registry.plan = only(data, flip_once)
    arrives(puller, name, data)
    assert registry.n_bytes < 2 * len(data)


def test_a_blob_that_stays_wrong_is_never_seen(
    puller: Puller, registry: FaultyRegistry, gguf: Make
) -> None:
    data = gguf(SIZE)
    name = offer(registry, data)
    registry.plan = only(data, lambda asked: Fault(flip_at=5))
    with pytest.raises(DigestMismatch):
        followed(puller.pull(name))
    assert not puller.store.blobs.exists(Digest.of(data))
    assert puller.store.list() == []
    assert leftovers(puller.store) == []
    registry.plan = lambda asked: None
    assert followed(puller.pull(name))[-1].status == "success"


def test_a_server_without_ranges_sends_everything_once(
    puller: Puller, registry: FaultyRegistry, gguf: Make
) -> None:
    data = gguf(SIZE)
    name = offer(registry, data)
    registry.plan = only(data, lambda asked: Fault(whole=True))
    followed(puller.pull(name))
    assert len(registry.of(data)) == 1
    assert puller.store.blobs.path(Digest.of(data)).read_bytes() == data


def test_a_whole_file_in_the_middle_starts_at_offset_0(
    puller: Puller, registry: FaultyRegistry, gguf: Make
) -> None:
    data = gguf(SIZE)
    name = offer(registry, data)
    registry.plan = only(data, lambda asked: Fault(whole=True) if asked.number in (3, 5) else None)
    arrives(puller, name, data)


def test_a_stream_without_ranges_that_breaks_starts_again(
    puller: Puller, registry: FaultyRegistry, gguf: Make
) -> None:
    data = gguf(SIZE)
    name = offer(registry, data)
    registry.plan = only(
        data, lambda asked: Fault(whole=True, reset_at=2_000_000 if asked.number < 2 else None)
    )
    arrives(puller, name, data)


def test_stalls_and_resets_are_tried_again_from_the_last_good_byte(
    puller: Puller, registry: FaultyRegistry, gguf: Make
) -> None:
    data = gguf(SIZE)
    stall_at, reset_at = int(SIZE * 0.95), 5_000
    faults = {stall_at: Fault(stall_at=stall_at), reset_at: Fault(reset_at=reset_at)}

    def once(asked: Asked) -> Fault | None:
        hit = next((at for at in faults if asked.start < at < asked.end), None)
        return None if hit is None else faults.pop(hit)

    name = offer(registry, data)
    registry.plan = only(data, once)
    steps = followed(puller.pull(name))
    assert steps[-1].status == "success"
    assert any("stalled" in step.status and "try 2 of 6" in step.status for step in steps)
    assert puller.store.blobs.path(Digest.of(data)).read_bytes() == data
    resumed = {asked.start for asked in registry.of(data)}
    # A reset may take with it what was still on its way.
    assert stall_at in resumed
    assert registry.n_bytes < len(data) * 1.1


@pytest.mark.parametrize(
    ("fault", "words", "n_tries"),
    [
        (Fault(stall_at=0), "stalled", 6),
        (Fault(status=500), "status 500", 6),
        (Fault(status=429), "status 429", 6),
        (Fault(html=True), "page of HTML", 2),
        (Fault(claims_total=5), "a part of 5 bytes", 2),
        (Fault(starts_off_by=1), "were asked for", 2),
        (Fault(whole=True, claims_total=SIZE + 1), "bytes where", 2),
    ],
)
def test_a_server_that_never_behaves_ends_with_one_error(
    puller: Puller, registry: FaultyRegistry, gguf: Make, fault: Fault, words: str, n_tries: int
) -> None:
    data = gguf(SIZE)
    name = offer(registry, data)
    registry.plan = only(data, lambda asked: fault)
    with pytest.raises(TransferFailed, match="max retries exceeded") as caught:
        followed(puller.pull(name))
    assert words in str(caught.value)
    assert "secret of the server" not in str(caught.value)
    assert sum(asked.start == 0 for asked in registry.of(data)) == n_tries
    assert puller.store.list() == []


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_refusal_that_is_meant_ends_at_once(
    puller: Puller, registry: FaultyRegistry, gguf: Make, status: int
) -> None:
    data = gguf(1000)
    name = offer(registry, data)
    registry.plan = only(data, lambda asked: Fault(status=status))
    with pytest.raises(ServerRefused) as caught:
        followed(puller.pull(name))
    assert caught.value.status == status
    assert len(registry.of(data)) == 1


def test_leaving_stops_the_transfer_and_the_next_pull_goes_on(
    puller: Puller, registry: FaultyRegistry, gguf: Make
) -> None:
    data = gguf(SIZE)
    name = offer(registry, data)
    held_at = 1_000_000
    registry.plan = only(
        data, lambda asked: Fault(stall_at=held_at) if asked.end > held_at else None
    )
    steps = puller.pull(name)
    for step in steps:
        if step.completed and step.completed > 500_000:
            break
    steps.close()
    partial = f"{Digest.of(data).file_name}-partial"
    wait_until(lambda: not threads_of("pull "), "the transfer to end")
    journal = read_journal(puller.store.blobs.folder / f"{partial}.json")
    assert journal is not None
    assert journal.model == f"{name}:latest"
    assert RangeSet(journal.completed).n_bytes > 500_000
    sent = registry.n_bytes
    registry.plan = lambda asked: None
    assert followed(puller.pull(name))[-1].status == "success"
    assert registry.n_bytes - sent < len(data) - 500_000
    assert puller.store.blobs.path(Digest.of(data)).read_bytes() == data
    assert leftovers(puller.store) == []


def test_a_blob_that_cannot_fit_is_refused_before_it_is_asked_for(
    puller: Puller, registry: FaultyRegistry, gguf: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = gguf(SIZE)
    name = offer(registry, data)
    disk = SimpleNamespace(total=1 << 40, free=1_000_000)
    monkeypatch.setattr("modelstore.files.shutil.disk_usage", lambda folder: disk)
    with pytest.raises(DiskFull) as caught:
        followed(puller.pull(name))
    assert (caught.value.needed_bytes, caught.value.free_bytes) == (len(data) + 23, 1_000_000)
    assert registry.of(data) == []
    assert leftovers(puller.store) == []


def test_a_disk_that_fills_up_ends_the_pull_and_nothing_else(
    puller: Puller, registry: FaultyRegistry, gguf: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = gguf(SIZE)
    name = offer(registry, data)
    write, room = os.pwrite, [1_000_000]

    def pwrite(fd: int, chunk: Any, at: int) -> int:
        room[0] -= len(chunk)
        if room[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, chunk, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(DiskFull):
        followed(puller.pull(name))
    assert puller.store.list() == []
    room[0] = 2 * SIZE
    arrives(puller, name, data)


@pytest.mark.soak
def test_whatever_goes_wrong_the_blob_is_right(
    puller: Puller, registry: FaultyRegistry, gguf: Make
) -> None:
    data = gguf(SIZE)
    name = offer(registry, data)
    blob = Digest.of(data)
    for seed in range(100 if IS_FULL else 6):
        chance = random.Random(seed)

        def mishap(asked: Asked, chance: random.Random = chance) -> Fault | None:
            at = chance.randrange(asked.start, asked.end) if asked.start < asked.end else 0
            return chance.choice(
                [
                    *[None] * 6,
                    Fault(reset_at=at),
                    Fault(stall_at=at) if chance.random() < 0.2 else None,
                    Fault(whole=chance.random() < 0.2, reset_at=at),
                    Fault(status=503),
                    Fault(html=True),
                    Fault(flip_at=at) if chance.random() < 0.3 else None,
                ]
            )

        registry.plan = only(data, mishap)
        for _ in range(20):
            try:
                assert followed(puller.pull(name))[-1].status == "success"
                break
            except (TransferFailed, DigestMismatch):
                assert not puller.store.blobs.exists(blob)
        assert puller.store.blobs.path(blob).read_bytes() == data, seed
        assert leftovers(puller.store) == []
        puller.store.delete(name)
        assert not puller.store.blobs.exists(blob)
