"""What goes into which forward, and who samples."""

import threading

import pytest

from localrun.core import SamplingParams
from localrun.runner.engine.evaluation import calls
from localrun.runner.engine.sampling import SamplerPool
from localrun.runner.engine.scheduler import StepPlan
from localrun.runner.engine.sequence import Sequence


def sequence(kv_id: int, *, deterministic: bool = False) -> Sequence:
    made = Sequence(kv_id, [0] * 100, SamplingParams(deterministic=deterministic), n_ctx=1000)
    made.kv_id = kv_id
    return made


def grouped(
    decode: list[int],
    prefill: dict[int, int],
    *,
    is_pool: bool,
    merges: bool = False,
    special: tuple[int, ...] = (),
    n_batch: int = 512,
) -> list[list[tuple[int, int]]]:
    made = {kv_id: sequence(kv_id, deterministic=kv_id in special) for kv_id in (*decode, *prefill)}
    plan = StepPlan(
        tuple(made[kv_id] for kv_id in decode),
        tuple((made[kv_id], n) for kv_id, n in prefill.items()),
        (),
    )
    found = calls(plan, n_batch, is_pool=is_pool, merges_rows=merges)
    return [[(s.kv_id, n) for s, n in pieces] for pieces in found]


def test_decodes_go_first_and_in_order_of_ids() -> None:
    assert grouped([3, 0, 1], {2: 64}, is_pool=True) == [[(0, 1), (1, 1), (3, 1)], [(2, 64)]]


def test_a_row_of_a_prompt_between_decodes_closes_the_gap() -> None:
    assert grouped([0, 3], {1: 100, 2: 1, 4: 9}, is_pool=False) == [
        [(0, 1), (1, 1), (2, 1), (3, 1)],
        [(1, 99), (4, 9)],
    ]


def test_a_prompt_that_closes_the_gap_keeps_whole_tiles_while_it_goes_on() -> None:
    assert grouped([0, 2], {1: 64}, is_pool=False) == [[(0, 1), (1, 1), (2, 1)], [(1, 64)]]


def test_prompts_share_a_call() -> None:
    for is_pool in (True, False):
        assert grouped([], {1: 64, 0: 30}, is_pool=is_pool) == [[(0, 30), (1, 64)]]


def test_one_call_for_all_where_it_is_faster_and_they_fit() -> None:
    assert grouped([0], {1: 64}, is_pool=True, merges=True) == [[(0, 1), (1, 64)]]
    assert grouped([0], {1: 64}, is_pool=True, merges=True, n_batch=64) == [[(0, 1)], [(1, 64)]]


def test_deterministic_sequences_share_with_nobody() -> None:
    assert grouped([0, 1, 2], {3: 64, 4: 64}, is_pool=False, special=(1, 3)) == [
        [(0, 1), (2, 1)],
        [(4, 64)],
        [(1, 1)],
        [(3, 64)],
    ]


class Chain:
    """Remembers the thread that sampled it."""

    def __init__(self, token: int) -> None:
        self.token = token
        self.thread = ""

    def sample(self, row: int) -> int:
        self.thread = threading.current_thread().name
        return self.token + row

    def close(self) -> None: ...


@pytest.mark.parametrize("n_helpers", [0, 1, 3])
@pytest.mark.parametrize("n_rows", [1, 3, 4, 9])
def test_every_row_is_sampled_once_and_in_order(n_helpers: int, n_rows: int) -> None:
    chains = [Chain(100 * row) for row in range(n_rows)]
    jobs = [(chain, row) for row, chain in enumerate(chains)]
    assert SamplerPool(n_helpers).sample(jobs) == [101 * row for row in range(n_rows)]
    has_helped = any(chain.thread.startswith("sampler") for chain in chains)
    assert has_helped == (n_helpers > 0 and n_rows >= 4)
