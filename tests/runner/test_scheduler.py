"""Decisions alone: who enters, who evaluates how many rows, and who yields."""

import math
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sequences import make, prompt, stream

from localrun.runner.engine.scheduler import (
    DETERMINISTIC_ROWS,
    DYNAMIC_DELAY_S,
    MAX_OVERTAKEN,
    STATIC_DELAY_S,
    Budget,
    Expectation,
    StepPlan,
    batch_may_start,
    next_to_enter,
    plan_decodes,
    plan_step,
)
from localrun.runner.engine.sequence import Sequence

BUDGET = Budget(alone=16, beside=8, ending=10)


def decide(
    running: Seq[Sequence],
    n_free: float = math.inf,
    *,
    own: Mapping[int, int] | None = None,
    lost_s: Mapping[int, float] | None = None,
    budget: Budget = BUDGET,
) -> tuple[list[int], list[tuple[int, int]], list[int]]:
    """Ids that decode, rows of prompts by id, ids that yield.

    By default a sequence's cells are all its own, and losing them costs a second each.
    """
    plan = plan_step(
        running,
        budget,
        n_free,
        lambda s: (own or {}).get(s.id, s.n_done),
        lambda s: (lost_s or {}).get(s.id, float(s.n_done)),
    )
    assert plan.is_empty == (not plan.decode and not plan.prefill)
    assert plan_decodes(running, n_free) in (plan, None)
    decode, prefill, preempt = plan
    return [s.id for s in decode], [(s.id, n) for s, n in prefill], [s.id for s in preempt]


# ---- rows of a step


@pytest.mark.parametrize(
    ("running", "decode", "prefill"),
    [
        pytest.param([], [], [], id="nobody"),
        pytest.param([prompt(1, 20)], [], [(1, 16)], id="a prompt alone takes the whole budget"),
        pytest.param([prompt(1, 5)], [], [(1, 5)], id="no more rows than there are"),
        pytest.param(
            [stream(1), prompt(2, 20), stream(3)], [1, 3], [(2, 8)], id="streams come first"
        ),
        pytest.param(
            [prompt(1, 20), stream(2)], [2], [(1, 8)], id="a stream that came later counts too"
        ),
        pytest.param(
            [prompt(1, 20), prompt(2, 20), prompt(3, 4)],
            [],
            [(1, 12), (3, 4)],
            id="the last quarter is for a short one",
        ),
        pytest.param(
            [prompt(1, 20), prompt(2, 5)], [], [(1, 16)], id="unless none is short enough"
        ),
        pytest.param(
            [prompt(1, 12), prompt(2, 20)], [], [(1, 12)], id="a few rows begin no other prompt"
        ),
        pytest.param(
            [prompt(1, 16), prompt(2, 20)], [], [(1, 16)], id="one that ends may have all"
        ),
        pytest.param(
            [stream(0), prompt(1, 20), prompt(2, 2), prompt(3, 2)],
            [0],
            [(1, 6), (2, 2)],
            id="one short one has all that the first leaves",
        ),
        pytest.param(
            [stream(0), *(prompt(n, 20) for n in range(1, 9))],
            [0],
            [(1, 8)],
            id="the budget is a limit for many prompts too",
        ),
        pytest.param(
            [stream(0), *(prompt(n, 3) for n in range(1, 9))],
            [0],
            [(1, 3), (2, 3)],
            id="prompts that end make way for others",
        ),
        pytest.param(
            [prompt(1, 200, deterministic=True)],
            [],
            [(1, 16)],
            id="a deterministic chunk has at most a batch",
        ),
        pytest.param(
            [stream(0), prompt(1, 200, deterministic=True)],
            [0],
            [(1, 16)],
            id="a deterministic chunk is the same beside streams",
        ),
        pytest.param(
            [prompt(1, 9), prompt(2, 200, deterministic=True)],
            [],
            [(1, 9)],
            id="a deterministic chunk waits rather than shrink",
        ),
        pytest.param(
            [prompt(1, 200, deterministic=True), prompt(2, 9)],
            [],
            [(1, 16)],
            id="nothing is left behind a deterministic chunk",
        ),
    ],
)
def test_rows_of_a_step(
    running: list[Sequence], decode: list[int], prefill: list[tuple[int, int]]
) -> None:
    assert decide(running) == (decode, prefill, [])


@pytest.mark.parametrize(
    ("n_first", "expected"),
    [(400, [(1, 400), (2, 112)]), (448, [(1, 448), (2, 64)]), (449, [(1, 449)])],
)
def test_a_prompt_is_begun_with_many_rows(n_first: int, expected: list[tuple[int, int]]) -> None:
    running = [prompt(1, n_first), prompt(2, 300)]
    _, prefill, _ = decide(running, budget=Budget(alone=512, beside=64, ending=80))
    assert prefill == expected


@pytest.mark.parametrize(("n_rows", "expected"), [(200, DETERMINISTIC_ROWS), (10, 10), (65, 64)])
@pytest.mark.parametrize("others", [[], [stream(2)], [prompt(2, 300)], [stream(2), prompt(3, 9)]])
def test_a_deterministic_chunk_depends_on_nothing_but_its_prompt(
    others: list[Sequence], n_rows: int, expected: int
) -> None:
    running = [prompt(1, n_rows, deterministic=True), *others]
    _, prefill, _ = decide(running, budget=Budget(alone=512, beside=16, ending=16))
    assert prefill[0] == (1, expected)


@pytest.mark.parametrize(
    ("running", "n_free", "is_simple"),
    [
        ([stream(1), stream(2)], 2, True),
        ([], 0, True),
        ([stream(1), stream(2)], 1, False),
        ([stream(1), prompt(2, 5)], 100, False),
    ],
)
def test_a_step_of_decodes_with_cells_for_all_needs_no_questions(
    running: list[Sequence], n_free: float, *, is_simple: bool
) -> None:
    found = plan_decodes(running, n_free)
    assert found == (StepPlan(tuple(running), (), ()) if is_simple else None)


# ---- too few cells


@pytest.mark.parametrize(
    ("running", "n_free", "rest", "expected"),
    [
        pytest.param([stream(1), stream(2)], 2, {}, ([1, 2], [], []), id="just enough"),
        pytest.param([stream(1), stream(2)], 1, {}, ([1], [], []), id="the last one waits"),
        pytest.param([stream(1), stream(2)], 0, {}, ([1], [], [2]), id="the later one yields"),
        pytest.param([stream(1)], 0, {}, ([], [], []), id="nobody came later"),
        pytest.param(
            [stream(1), stream(2), stream(3)], 0, {}, ([1, 2], [], [3]), id="the latest of equals"
        ),
        pytest.param(
            [stream(1), stream(2), stream(3)],
            0,
            {"lost_s": {2: 1.0, 3: 5.0}},
            ([1, 3], [], [2]),
            id="the one with least work lost",
        ),
        pytest.param(
            [stream(1), stream(2), stream(3)],
            0,
            {"own": {2: 10, 3: 1}, "lost_s": {2: 5.0, 3: 1.0}},
            ([1, 3], [], [2]),
            id="least work lost for each cell",
        ),
        pytest.param(
            [stream(1), stream(2), stream(3)],
            0,
            {"own": {2: 10, 3: 0}},
            ([1, 3], [], [2]),
            id="one that would free nothing is spared",
        ),
        pytest.param(
            [stream(n) for n in range(1, 6)],
            0,
            {"own": dict.fromkeys(range(1, 6), 1)},
            ([1, 2], [], [5, 4]),
            id="at most two a step",
        ),
        pytest.param(
            [stream(1), stream(2, deterministic=True)],
            0,
            {"own": {2: 1}},
            ([1], [], [2]),
            id="a deterministic one yields like any other",
        ),
        pytest.param(
            [prompt(1, 30, n_done=50), stream(2, 3)],
            2,
            {},
            ([], [(1, 5)], [2]),
            id="a prompt goes as far as cells go",
        ),
        pytest.param(
            [stream(1), prompt(2, 30)], 6, {}, ([1], [(2, 5)], []), id="a late prompt takes no more"
        ),
        pytest.param(
            [prompt(1, 16, n_done=50, deterministic=True), stream(2, 3)],
            2,
            {},
            ([], [], [2]),
            id="a deterministic chunk is not cut",
        ),
        pytest.param(
            [prompt(1, 16, n_done=50, deterministic=True), stream(2, 14)],
            2,
            {},
            ([], [(1, 16)], [2]),
            id="but takes cells from others",
        ),
    ],
)
def test_cells_are_taken_from_those_who_came_later(
    running: list[Sequence], n_free: int, rest: dict[str, Any], expected: Any
) -> None:
    assert decide(running, n_free, **rest) == expected


@st.composite
def crowds(draw: st.DrawFn) -> tuple[list[Sequence], int, dict[int, int], dict[int, float]]:
    """Sequences in order of arrival, free cells, cells of their own, work lost."""
    running = [
        draw(
            st.builds(stream, st.just(name)) | st.builds(prompt, st.just(name), st.integers(2, 30))
        )
        for name in range(draw(st.integers(1, 8)))
    ]
    own = {s.id: draw(st.integers(0, 6)) for s in running}
    lost_s = {s.id: draw(st.sampled_from([0.0, 1.0, 2.0])) for s in running}
    return running, draw(st.integers(0, 40)), own, lost_s


@given(crowds())
def test_every_plan_keeps_its_promises(
    crowd: tuple[list[Sequence], int, dict[int, int], dict[int, float]],
) -> None:
    running, n_free, own, lost_s = crowd
    decode, prefill, preempt = decide(running, n_free, own=own, lost_s=lost_s)
    rows = dict.fromkeys(decode, 1) | dict(prefill)
    n_freed = sum(own[name] for name in preempt)
    assert sum(rows.values()) <= n_free + n_freed
    assert len(preempt) <= 2
    assert not set(preempt) & set(rows)
    assert 0 not in preempt
    assert all(0 < n <= running[name].n_pending for name, n in rows.items())
    limit = BUDGET.beside if any(s.n_pending == 1 for s in running) else BUDGET.alone
    # The end of a prompt may stretch the step a little, never the batch.
    most = min(limit * 1.25, BUDGET.alone)
    assert sum(n for _, n in prefill) <= most
    if n_free or any(own[s.id] for s in running[1:]):
        assert 0 in rows, "the oldest does not advance"
    if n_free >= len(running) + most:
        assert decode == [s.id for s in running if s.n_pending == 1]
        assert not preempt


# ---- who enters


def first_of(
    waiting: Iterable[Sequence], *, held: Iterable[int] = (), too_large: Iterable[int] = ()
) -> int | None:
    found = next_to_enter(
        waiting, lambda s: s.id in set(held), lambda s: s.id not in set(too_large)
    )
    return None if found is None else found.id


@pytest.mark.parametrize(
    ("n_waiting", "held", "too_large", "expected"),
    [
        (0, [], [], None),
        (3, [], [], 0),
        (3, [0], [], 1),
        (3, [], [0], 1),
        (3, [0, 1, 2], [], None),
        (3, [], [0, 1, 2], None),
        (3, [0], [1], 2),
        (200, [], range(60), 60),
        (200, [], range(100), None),
        (200, range(100), [], None),
    ],
)
def test_the_first_that_may_and_fits_enters(
    n_waiting: int, held: list[int], too_large: list[int], expected: int | None
) -> None:
    waiting = [prompt(n, 5) for n in range(n_waiting)]
    assert first_of(waiting, held=held, too_large=too_large) == expected


def test_one_that_does_not_fit_is_overtaken_a_bounded_number_of_times() -> None:
    waiting = [prompt(n, 5) for n in range(20)]
    entered = []
    while (name := first_of(waiting, too_large=[2])) is not None:
        entered.append(name)
        waiting = [s for s in waiting if s.id != name]
    assert entered == [0, 1, *range(3, 3 + MAX_OVERTAKEN)]
    assert first_of(waiting) == 2  # its cells are there at last


def test_a_held_one_loses_nothing_by_waiting() -> None:
    waiting = [prompt(n, 5) for n in range(20)]
    for _ in range(2 * MAX_OVERTAKEN):
        assert first_of(waiting, held=[0]) == 1
    assert waiting[0].n_overtaken == 0
    assert first_of(waiting) == 0


@pytest.mark.parametrize(
    ("admission", "n_waiting", "n_running", "waited_s", "expected"),
    [
        ("continuous", 1, 0, 0.0, True),
        ("continuous", 1, 3, 0.0, True),
        ("static", 3, 0, 0.0, False),
        ("static", 4, 0, 0.0, True),
        ("static", 9, 0, 0.0, True),
        ("static", 4, 1, 0.0, False),
        ("static", 1, 0, DYNAMIC_DELAY_S, False),
        ("static", 1, 0, STATIC_DELAY_S, True),
        ("static", 9, 1, STATIC_DELAY_S, False),
        ("dynamic", 3, 0, 0.0, False),
        ("dynamic", 4, 0, 0.0, True),
        ("dynamic", 1, 0, DYNAMIC_DELAY_S, True),
        ("dynamic", 9, 1, STATIC_DELAY_S, False),
    ],
)
def test_when_a_batch_may_start(
    admission: Any, n_waiting: int, n_running: int, waited_s: float, expected: bool
) -> None:
    may = batch_may_start(
        admission, n_waiting=n_waiting, n_running=n_running, n_slots=4, waited_s=waited_s
    )
    assert may is expected


# ---- what is expected


def test_the_expected_length_follows_those_that_end() -> None:
    expected = Expectation(n_completion=100.0)
    expected.saw_end(200)
    assert expected.n_completion == pytest.approx(110)
    for _ in range(100):
        expected.saw_end(20)
    assert expected.n_completion == pytest.approx(20, abs=1)


def test_the_share_jumps_with_a_preemption_and_shrinks_slowly() -> None:
    expected = Expectation(share=0.5)
    for _ in range(49):
        expected.saw_step(preempted=False)
    assert expected.share == 0.5
    expected.saw_step(preempted=False)
    assert expected.share == pytest.approx(0.49)
    expected.saw_step(preempted=True)
    assert expected.share == pytest.approx(0.64)
    for _ in range(49):
        expected.saw_step(preempted=False)
    assert expected.share == pytest.approx(0.64)
    for _ in range(9):
        expected.saw_step(preempted=True)
    assert expected.share == 1.0
    for _ in range(50 * 200):
        expected.saw_step(preempted=False)
    assert expected.share == 0.1


@pytest.mark.parametrize(
    ("n_expected", "num_predict", "n_said", "growth"),
    [
        (100, 1000, 0, 50),  # the expected length bounds it
        (100, 40, 0, 20),  # so does what was asked for
        (100, 1000, 60, 20),
        (100, 1000, 200, 0),  # longer than expected: then nothing is known
        (100, 40, 40, 0),
    ],
)
def test_cells_are_kept_for_the_expected_completion(
    n_expected: float, num_predict: int, n_said: int, growth: int
) -> None:
    sequence = make(1, 5, num_predict=num_predict)
    sequence.tokens += [7] * n_said
    assert Expectation(n_completion=n_expected, share=0.5).growth(sequence) == growth
