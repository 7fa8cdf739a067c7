"""What a transfer is made of: ranges, pauses, choices, the journal."""

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelstore.digest import Digest
from modelstore.errors import (
    BadReply,
    DiskFull,
    HostUnreachable,
    ServerRefused,
    SignInRequired,
)
from modelstore.store import Store
from modelstore.transfer.choice import Choice
from modelstore.transfer.effort import Effort, may_pass
from modelstore.transfer.partial import Journal, Partial, read_journal
from modelstore.transfer.ranges import RangeSet, pieces, repair_order


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
