"""Whose turn it is among those who wait."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sequences import make

from localrun.runner.engine.scheduler import (
    FairLine,
)
from localrun.runner.engine.sequence import Sequence


class Line:
    """A FairLine that is told of clients by letters: `a10` asks for 10 tokens for `a`."""

    def __init__(self) -> None:
        self.line = FairLine()
        self.made: list[Sequence] = []

    def join(self, *wishes: str) -> list[Sequence]:
        joined = []
        for wish in wishes:
            n_tokens = int(wish[1:])
            one = make(len(self.made), n_tokens - 1, client=wish[0], num_predict=1)
            self.made.append(one)
            self.line.join(one)
            joined.append(one)
        return joined

    def serve(self, n: int) -> str:
        """The clients of the next `n` to get slots."""
        return "".join(self._serve_one() for _ in range(n))

    def _serve_one(self) -> str:
        first = next(iter(self.line))
        self.line.leave(first)
        return first.client


@pytest.mark.parametrize(
    ("wishes", "order"),
    [
        ([], ""),
        (["a10", "a900", "a10"], "aaa"),
        (["a10", "b10"], "ab"),
        (["a10", "a10", "a10", "b10", "b10", "b10"], "ababab"),
        (["a10", "a10", "a10", "b10"], "abaa"),
        (["a10", "a10", "a10", "a10", "b20", "b20"], "abaaba"),
        (["a10", "a10", "b10", "b10", "c10", "c10"], "abcabc"),
        (["a1000", "a10", "b10", "b10", "b10"], "abbba"),
    ],
)
def test_clients_take_turns_by_the_tokens_they_ask_for(wishes: list[str], order: str) -> None:
    line = Line()
    line.join(*wishes)
    assert len(line.line) == len(wishes)
    assert bool(line.line) == bool(wishes)
    assert line.serve(len(wishes)) == order


def test_one_client_is_served_in_order_of_arrival() -> None:
    line = Line()
    joined = line.join("a10", "a900", "a10", "a1")
    assert list(line.line) == joined


def test_a_late_client_waits_for_nobodys_queue_and_is_paid_nothing_for_its_past() -> None:
    line = Line()
    line.join(*["a10"] * 8)
    assert line.serve(4) == "aaaa"
    line.join(*["b10"] * 6)
    assert line.serve(10) == "bababababb"


def test_a_client_that_cancels_does_not_push_others_behind_its_queue() -> None:
    line = Line()
    *_, last = line.join(*["a10"] * 8)
    line.line.leave(last)
    line.join("b10", "b10")
    assert line.serve(9) == "abab" + "aaaaa"


def test_one_that_overtakes_does_not_push_newcomers_back() -> None:
    line = Line()
    joined = line.join(*["a10"] * 8)
    line.line.leave(joined[6])
    line.join("b10")
    assert line.serve(3) == "aba"


def test_an_empty_line_forgets_who_was_there() -> None:
    line = Line()
    line.join("a1000")
    line.serve(1)
    line.join("a10", "b10", "a10")
    assert line.serve(3) == "aba"


def test_a_sequence_that_does_not_wait_cannot_leave() -> None:
    line = Line()
    (one,) = line.join("a10")
    assert line.line.find(one.id) is one
    assert line.line.find(99) is None
    line.line.leave(one)
    assert line.line.find(one.id) is None
    with pytest.raises(ValueError, match="not in list"):
        line.line.leave(one)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(2, 50)), min_size=2, max_size=60))
def test_two_clients_that_wait_get_equal_shares(wishes: list[tuple[str, int]]) -> None:
    """At any time while both wait: no further apart than the largest requests of both."""
    line = FairLine()
    for name, (client, n_tokens) in enumerate(wishes):
        line.join(make(name, n_tokens - 1, client=client, num_predict=1))
    bound = sum(max((n for client, n in wishes if client == name), default=0) for name in "ab")
    got = {"a": 0, "b": 0}
    while {s.client for s in line} == {"a", "b"}:
        first = next(iter(line))
        line.leave(first)
        got[first.client] += first.n_prompt + 1
        assert abs(got["a"] - got["b"]) <= bound
