"""One step's decision: who enters, who decodes, which prompts advance."""

from localrun.core import SamplingParams
from localrun.runner.engine.scheduler import Budget, plan_step
from localrun.runner.engine.sequence import Sequence

BUDGET = Budget(alone=8, beside=4)


def sequence(name: int, n_prompt: int, n_done: int = 0) -> Sequence:
    made = Sequence(name, [0] * n_prompt, SamplingParams(), n_ctx=1000)
    made.n_done = n_done
    return made


def ids(sequences: object) -> list[int]:
    return [s.id for s in sequences]  # type: ignore[attr-defined]


def test_the_oldest_waiting_take_the_free_slots() -> None:
    plan = plan_step([sequence(1, 2), sequence(2, 2), sequence(3, 2)], [], 2, BUDGET)
    assert ids(plan.admit) == [1, 2]


def test_without_a_free_slot_nobody_enters() -> None:
    running = [sequence(1, 2, n_done=2)]
    plan = plan_step([sequence(2, 2)], running, 0, BUDGET)
    assert plan.admit == ()
    assert ids(plan.decode) == [1]


def test_a_prompt_alone_takes_the_whole_budget() -> None:
    plan = plan_step([sequence(1, 20)], [], 1, BUDGET)
    assert [(s.id, n) for s, n in plan.prefill] == [(1, 8)]


def test_a_prompt_beside_streams_takes_small_chunks_and_every_stream_decodes() -> None:
    streams = [sequence(1, 3, n_done=3), sequence(2, 3, n_done=3)]
    plan = plan_step([sequence(3, 20)], streams, 1, BUDGET)
    assert ids(plan.decode) == [1, 2]
    assert [(s.id, n) for s, n in plan.prefill] == [(3, 4)]


def test_prompts_share_the_budget_in_order_of_arrival() -> None:
    running = [sequence(1, 6, n_done=3)]
    plan = plan_step([sequence(2, 20), sequence(3, 20)], running, 2, BUDGET)
    assert [(s.id, n) for s, n in plan.prefill] == [(1, 3), (2, 5)]


def test_nothing_to_do_is_an_empty_plan() -> None:
    assert plan_step([], [], 4, BUDGET).is_empty


def test_a_sequence_ends_at_num_predict_or_at_the_window() -> None:
    params = SamplingParams(num_predict=2)
    short = Sequence(1, [0] * 3, params, n_ctx=100)
    assert short.take(7, is_end=False, now_ns=1) is None
    assert short.take(7, is_end=False, now_ns=2) == "length"
    for unbounded in (-1, -2):
        full = Sequence(2, [0] * 3, SamplingParams(num_predict=unbounded), n_ctx=4)
        assert full.take(7, is_end=False, now_ns=1) == "length"


def test_an_end_token_is_not_part_of_the_completion() -> None:
    ended = Sequence(1, [0], SamplingParams(), n_ctx=100)
    assert ended.take(7, is_end=True, now_ns=1) == "stop"
    assert ended.n_completion == 0
