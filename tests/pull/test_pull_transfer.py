"""One blob on its way here: parts, tries, repair, resumption, sharing, disks that are full."""

import contextlib
import errno
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faulty_server import QUICK, Asked, Fault, FaultyRegistry
from hypothesis import given
from hypothesis import strategies as st
from live import wait_until

from modelstore.digest import Digest
from modelstore.errors import (
    BadReply,
    DigestMismatch,
    DiskFull,
    HostUnreachable,
    ServerRefused,
    SignInRequired,
    TransferFailed,
)
from modelstore.manifest import MODEL_TYPE
from modelstore.pull import Puller
from modelstore.registry.access import Pace
from modelstore.sources import Progress
from modelstore.store import Store
from modelstore.transfer.choice import Choice
from modelstore.transfer.effort import Effort, may_pass
from modelstore.transfer.partial import Journal, Partial, read_journal
from modelstore.transfer.ranges import RangeSet, pieces, repair_order
from modelstore.transfer.transfers import Transfers

Make = Callable[..., bytes]
SIZE = 3_000_000
IS_FULL = os.environ.get("LOCALRUN_TEST_FULL") == "1"


# -- pure parts


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60))))
def test_ranges_are_what_a_set_of_bytes_would_be(added: list[tuple[int, int]]) -> None:
    ranges, there = RangeSet(), set[int]()
    for start, end in added:
        ranges.add(start, end)
        there |= set(range(start, end))
    assert ranges.n_bytes == len(there)
    assert {at for start, end in ranges.ranges for at in range(start, end)} == there
    assert {at for start, end in ranges.gaps(70) for at in range(start, end)} == (
        set(range(70)) - there
    )
    assert ranges.prefix_end == next(at for at in range(71) if at not in there)
    assert all(a[1] < b[0] for a, b in zip(ranges.ranges, ranges.ranges[1:], strict=False))


def test_gaps_are_cut_into_pieces_in_order() -> None:
    assert pieces([(0, 5), (10, 12)], 2) == [(0, 2), (2, 4), (4, 5), (10, 12)]


@pytest.mark.parametrize("total", [1, 100, 101, 64 << 10, 10_000_000])
def test_a_repair_looks_at_everything_once_and_at_the_end_first(total: int) -> None:
    order = repair_order(total, 32, 100)
    assert RangeSet(order).ranges == ((0, total),)
    assert sum(end - start for start, end in order) == total
    assert order[0][1] == total
    assert len(order) <= 32


def test_pauses_double() -> None:
    assert [Effort().pause_s(n) for n in range(1, 6)] == [1, 2, 4, 8, 16]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (HostUnreachable("h", "reset"), True),
        (BadReply("h", "html"), True),
        (ServerRefused("h", 500, "x"), True),
        (ServerRefused("h", 429, "x"), True),
        (ServerRefused("h", 404, "x"), False),
        (ServerRefused("h", 403, "x"), False),
        (SignInRequired("h", "x"), False),
        (DiskFull(1, 0), False),
    ],
)
def test_what_may_pass(error: Any, expected: bool) -> None:
    assert may_pass(error) is expected


def test_a_reply_that_is_none_is_tried_twice() -> None:
    assert Effort().tries_after(BadReply("h", "html")) == 2
    assert Effort(n_tries=1).tries_after(BadReply("h", "html")) == 1
    assert Effort().tries_after(HostUnreachable("h", "reset")) == 6


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"total":-1,"completed":[[0,1]]}',
        '{"total":9,"completed":[[0,10]]}',
        '{"total":9,"completed":[[5,5]]}',
        '{"total":9,"completed":[[-1,5]]}',
        '{"total":9,"completed":[["a",5]]}',
    ],
)
def test_a_journal_that_cannot_be_true_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "j"
    path.write_text(text)
    assert read_journal(path) is None


def test_the_journal_never_names_what_has_not_reached_the_disk(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = Digest.of(b"x")
    partial = Partial(store.blobs, key, 100, "m")
    path = store.blobs.folder / f"{key.file_name}-partial.json"
    synced = os.fsync

    def lose(fd: int) -> None:
        if os.fstat(fd).st_size == 100:
            raise OSError(errno.EIO, "lost")
        synced(fd)

    partial.write(0, b"a" * 10)
    partial.checkpoint()
    partial.write(10, b"b" * 10)
    monkeypatch.setattr(os, "fsync", lose)
    with pytest.raises(OSError, match="lost"):
        partial.checkpoint()
    assert read_journal(path) == Journal(100, "m", ((0, 10),))
    partial.close()


# -- against a registry


def offer(registry: FaultyRegistry, data: bytes) -> str:
    registry.put("a/b", (MODEL_TYPE, data))
    return f"{registry.host}/a/b"


def only(data: bytes, plan: Callable[[Asked], Fault | None]) -> Callable[[Asked], Fault | None]:
    """`plan` for the requests of one blob."""
    digest = Digest.of(data).text
    return lambda asked: plan(asked) if asked.path.endswith(digest) else None


def followed(steps: Iterator[Progress]) -> list[Progress]:
    """All steps; `completed` must never fall."""
    seen: list[Progress] = []
    most: dict[str, int] = {}
    for step in steps:
        seen.append(step)
        if step.digest:
            assert (step.completed or 0) >= most.get(step.digest, 0)
            most[step.digest] = step.completed or 0
    return seen


def leftovers(store: Store) -> list[str]:
    return [name for name in os.listdir(store.blobs.folder) if "-partial" in name or "tmp" in name]


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
    assert followed(puller.pull(name))[-1].status == "success"
    assert puller.store.blobs.path(Digest.of(data)).read_bytes() == data
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
    assert followed(puller.pull(name))[-1].status == "success"
    assert puller.store.blobs.path(Digest.of(data)).read_bytes() == data


def test_a_stream_without_ranges_that_breaks_starts_again(
    puller: Puller, registry: FaultyRegistry, gguf: Make
) -> None:
    data = gguf(SIZE)
    name = offer(registry, data)
    registry.plan = only(
        data, lambda asked: Fault(whole=True, reset_at=2_000_000 if asked.number < 2 else None)
    )
    assert followed(puller.pull(name))[-1].status == "success"
    assert puller.store.blobs.path(Digest.of(data)).read_bytes() == data


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


def threads_of(prefix: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(prefix)]


def test_two_pulls_share_one_transfer_and_one_may_leave(
    puller: Puller, registry: FaultyRegistry, gguf: Make
) -> None:
    data = gguf(SIZE)
    name = offer(registry, data)
    gate = threading.Event()
    registry.plan = only(data, lambda asked: Fault(gate=gate))
    first, second = puller.pull(name), puller.pull(name)
    for steps in (first, second):
        next(step for step in steps if step.digest)
    first.close()
    gate.set()
    assert followed(second)[-1].status == "success"
    assert registry.n_bytes == len(data) + 23
    assert puller.store.blobs.path(Digest.of(data)).read_bytes() == data


@pytest.mark.parametrize("fault", [Fault(stall_at=500_000), Fault(status=403), Fault(flip_at=9)])
def test_a_shared_transfer_goes_on_from_the_source_of_the_other(
    puller: Puller, registry: FaultyRegistry, gguf: Make, fault: Fault
) -> None:
    data = gguf(SIZE)
    gate = threading.Event()
    bad = replace(fault, gate=gate)
    stall_s = 60.0 if fault.stall_at is None else 1.0
    puller = replace(puller, access=replace(puller.access, pace=Pace(5.0, stall_s)))
    registry.put("bad/b", (MODEL_TYPE, data))
    registry.put("good/b", (MODEL_TYPE, data))
    registry.plan = only(data, lambda asked: bad if "/bad/" in asked.path else None)
    first, second = puller.pull(f"{registry.host}/bad/b"), puller.pull(f"{registry.host}/good/b")
    for steps in (first, second):
        next(step for step in steps if step.digest)
    gate.set()
    assert followed(second)[-1].status == "success"
    assert followed(first)[-1].status == "success"
    assert puller.store.blobs.path(Digest.of(data)).read_bytes() == data
    assert any("/good/" in asked.path for asked in registry.of(data))


def test_whoever_joined_a_transfer_that_fails_before_his_turn_begins_his_own(
    puller: Puller, registry: FaultyRegistry, gguf: Make
) -> None:
    data = gguf(SIZE)
    gate = threading.Event()
    registry.put("bad/b", (MODEL_TYPE, data))
    registry.put("good/b", (MODEL_TYPE, data))
    registry.plan = only(
        data, lambda asked: Fault(status=500, gate=gate) if "/bad/" in asked.path else None
    )
    patient = replace(puller.access, pace=Pace(5.0, 60.0))  # the gate is no stall
    puller = Puller(puller.store, Transfers(replace(QUICK, n_tries=1)), patient)
    first, second = puller.pull(f"{registry.host}/bad/b"), puller.pull(f"{registry.host}/good/b")
    for steps in (first, second):
        next(step for step in steps if step.digest)
    gate.set()
    with pytest.raises(TransferFailed):
        followed(first)
    assert followed(second)[-1].status == "success"


def test_sources_take_turns_when_they_fail() -> None:
    made = []

    def maker(name: str) -> Callable[[threading.Event], Any]:
        def make(stop: threading.Event) -> Any:
            made.append(name)
            return contextlib.nullcontext(name)

        return make

    choice = Choice(threading.Event())
    choice.offer("a", maker("a"))
    choice.offer("a", maker("not again"))
    assert choice.current() == ("a", "a")
    assert not choice.pass_on("a", for_good=True), "the only one stays"
    choice.offer("b", maker("b"))
    assert choice.current()[0] == "b", "the other one has failed"
    choice.offer("c", maker("c"))
    assert choice.pass_on("a"), "another part has turned already"
    assert not choice.is_tried("c")
    assert choice.pass_on("b") is False, "a has failed before"
    assert choice.pass_on("a", for_good=True)
    assert (choice.current()[0], len(choice)) == ("c", 2)
    assert made == ["a", "b", "c"]
    choice.close()


def test_whoever_waits_hears_something_all_the_time(
    puller: Puller, registry: FaultyRegistry, gguf: Make
) -> None:
    data = gguf(SIZE)
    name = offer(registry, data)
    gate = threading.Event()
    registry.plan = only(data, lambda asked: Fault(gate=gate))
    waiting = Puller(puller.store, Transfers(QUICK), replace(puller.access, pace=Pace(9, 3600)))
    steps = waiting.pull(name)
    first = next(step for step in steps if step.digest)
    assert [next(steps), next(steps)] == [first, first]
    gate.set()
    assert followed(steps)[-1].status == "success"


_OTHER = """
import sys
from modelstore.pull import Puller
from modelstore.registry.access import Access
from modelstore.registry.address import parse_registry
from modelstore.store import Store
from modelstore.transfer.transfers import Transfers
from pathlib import Path
from types import SimpleNamespace

root, host = sys.argv[1:]
puller = Puller(Store(Path(root)), Transfers(), Access((parse_registry("http://" + host),)))
for step in puller.pull(host + "/a/b"):
    print(step.status, flush=True)
"""


def other_process(store: Store, registry: FaultyRegistry) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", _OTHER, str(store.root), registry.host],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_processes_do_not_fetch_the_same_bytes(
    puller: Puller, registry: FaultyRegistry, gguf: Make
) -> None:
    data = gguf(SIZE)
    name = offer(registry, data)
    gate = threading.Event()
    registry.plan = only(data, lambda asked: Fault(gate=gate))
    steps = puller.pull(name)
    next(step for step in steps if step.digest)
    with other_process(puller.store, registry) as other:
        assert other.stdout is not None
        said = iter(other.stdout)
        next(line for line in said if "another process" in line)
        gate.set()
        assert followed(steps)[-1].status == "success"
        assert list(said)[-1] == "success\n"
        assert other.wait(30) == 0
    assert registry.n_bytes == len(data) + 23
    assert leftovers(puller.store) == []


def test_a_process_that_is_killed_leaves_what_the_next_one_goes_on_with(
    puller: Puller, registry: FaultyRegistry, gguf: Make
) -> None:
    data = gguf(40 << 20)
    name = offer(registry, data)
    held_at = 35 << 20
    registry.plan = only(
        data, lambda asked: Fault(stall_at=held_at) if asked.end > held_at else None
    )
    journal = puller.store.blobs.folder / f"{Digest.of(data).file_name}-partial.json"

    def n_saved() -> int:
        found = read_journal(journal)
        return RangeSet(found.completed).n_bytes if found else 0

    with other_process(puller.store, registry) as other:
        wait_until(lambda: n_saved() > 30 << 20, "the journal to say so")
        other.kill()
    sent = registry.n_bytes
    registry.plan = lambda asked: None
    assert followed(puller.pull(name))[-1].status == "success"
    assert registry.n_bytes - sent < 10 << 20
    assert puller.store.blobs.path(Digest.of(data)).read_bytes() == data


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
    assert followed(puller.pull(name))[-1].status == "success"
    assert puller.store.blobs.path(Digest.of(data)).read_bytes() == data


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
