"""One sequence: its window, its end, and the leader that it waits for."""

import pytest
from sequences import make

from localrun.core import SamplingParams
from localrun.runner.engine.sequence import Sequence


@pytest.mark.parametrize(
    ("n_prompt", "num_predict", "n_ctx", "n_predict"),
    [
        (3, 2, 100, 2),
        (3, -1, 100, 97),
        (3, -2, 100, 97),
        (3, 500, 100, 97),
        (3, 0, 100, 0),
        (100, -1, 100, 0),
        (150, 5, 100, 0),
    ],
)
def test_a_completion_ends_with_num_predict_or_the_window(
    n_prompt: int, num_predict: int, n_ctx: int, n_predict: int
) -> None:
    params = SamplingParams(num_predict=num_predict)
    sequence = Sequence(1, [0] * n_prompt, params, n_ctx=n_ctx)
    assert sequence.n_predict == n_predict
    reasons = [sequence.take(7, is_end=False, now_ns=n) for n in range(1, n_predict + 1)]
    assert reasons[:-1] == [None] * len(reasons[:-1])
    assert reasons[-1:] == ["length"] * len(reasons[-1:])
    assert sequence.n_completion == n_predict


@pytest.mark.parametrize(("cap", "n_ctx", "n_predict"), [(50, 50, 47), (200, 100, 97), (2, 2, 0)])
def test_a_window_only_shrinks(cap: int, n_ctx: int, n_predict: int) -> None:
    sequence = Sequence(1, [0] * 3, SamplingParams(), n_ctx=100)
    sequence.cap(cap)
    assert (sequence.n_ctx, sequence.n_predict) == (n_ctx, n_predict)


def test_an_end_token_is_not_part_of_the_completion() -> None:
    sequence = make(1, 1)
    assert sequence.take(7, is_end=True, now_ns=5) == "stop"
    assert sequence.n_completion == 0
    assert (sequence.first_token_ns, sequence.last_token_ns) == (5, 5)


def test_a_sequence_knows_its_first_and_last_token() -> None:
    sequence = make(1, 4, n_done=4)
    assert sequence.n_pending == 0
    for now_ns in (5, 6, 9):
        sequence.take(7, is_end=False, now_ns=now_ns)
    assert (sequence.first_token_ns, sequence.last_token_ns) == (5, 9)
    assert (sequence.n_pending, sequence.n_completion) == (3, 3)


@pytest.mark.parametrize(
    ("kv_id", "n_done", "is_held"), [(0, 39, True), (0, 40, False), (-1, 39, False)]
)
def test_a_sequence_is_held_while_its_leader_computes(
    kv_id: int, n_done: int, is_held: bool
) -> None:
    leader, follower = make(1, 50, n_done), make(2, 50)
    assert not follower.is_held
    leader.kv_id = kv_id
    follower.leader, follower.n_awaited = leader, 40
    assert follower.is_held is is_held
