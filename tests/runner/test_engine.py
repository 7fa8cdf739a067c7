"""The step: sequences join and leave between forwards, yield when cells run out, and leave nothing
behind."""

from typing import Any

import pytest
from engine_bench import BOTH, MakeBench
from msgspec import structs

from localrun.errors import EngineFailed
from localrun.ipc.messages import Share
from localrun.runner.engine.traffic import Remove

# ---- batching


def test_a_waiting_sequence_enters_in_the_step_after_one_leaves(make_bench: MakeBench) -> None:
    bench = make_bench(n_parallel=2, echo=True)
    for number, text in enumerate(["a", "long one", "next"]):
        bench.submit(number, text)
    first = bench.step()
    assert first is not None
    assert [s.id for s in first.admitted] == [0, 1]
    assert first.n_running == 2
    second = bench.step()  # sequence 0 has said its one byte and ends
    assert second is not None
    assert [out.sequence.id for out in second.tokens if out.reason == "stop"] == [0]
    third = bench.step()
    assert third is not None
    assert [s.id for s in third.admitted] == [2]


@BOTH
def test_every_answer_is_complete_whatever_runs_beside_it(
    make_bench: MakeBench, kv_layout: str
) -> None:
    bench = make_bench(n_parallel=3, echo=True, n_batch=5, kv_layout=kv_layout)
    texts = {n: "x" * (n % 7) + f"text {n}" for n in range(16)}
    for number, text in texts.items():
        bench.submit(number, text)
    assert bench.finish() == {n: text.encode() for n, text in texts.items()}


def test_a_removed_sequence_frees_its_slot_in_the_next_step(make_bench: MakeBench) -> None:
    bench = make_bench(n_parallel=1, pieces=["la "], endless=True)
    bench.submit(1, "sing")
    bench.submit(2, "too")
    bench.step()
    bench.engine.inbox.put(Remove(1))
    output = bench.step()
    assert output is not None
    assert [s.id for s in output.admitted] == [2]
    assert {out.sequence.id for out in output.tokens} == {2}


def test_a_sequence_removed_while_it_waits_is_never_evaluated(make_bench: MakeBench) -> None:
    bench = make_bench(n_parallel=1, pieces=["la "], endless=True)
    bench.submit(1, "sing")
    waiting = bench.submit(2, "too")
    bench.step()
    bench.engine.inbox.put(Remove(2))
    output = bench.step()
    assert output is not None
    assert output.n_running == 1
    assert waiting.n_done == 0


def test_a_sequence_removed_in_the_middle_of_its_prompt_frees_its_cells(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(pieces=["la "], endless=True, n_batch=8, kv_layout="unified")
    bench.submit(1, "sing" * 10)
    bench.step()
    assert bench.engine.gauges()["kv_cells_used"] == 8
    bench.engine.inbox.put(Remove(1))
    bench.step()
    assert bench.engine.gauges()["kv_cells_used"] == 0


def test_removing_an_unknown_sequence_changes_nothing(make_bench: MakeBench) -> None:
    bench = make_bench(pieces=["a", "b"])
    bench.submit(1, "hi")
    bench.engine.inbox.put(Remove(99))
    assert bench.finish() == {1: b"ab"}


def test_a_stream_decodes_in_every_step_beside_a_long_prompt(make_bench: MakeBench) -> None:
    bench = make_bench(pieces=["la "], endless=True, n_batch=4)
    bench.submit(1, "sing")
    bench.step()
    bench.submit(2, "y" * 40)
    for _ in range(10):  # 40 rows in chunks of 4
        output = bench.step()
        assert output is not None
        assert 1 in {out.sequence.id for out in output.tokens}


# ---- memory


def test_when_cells_run_out_all_answers_still_come_whole(make_bench: MakeBench) -> None:
    bench = make_bench(n_parallel=6, n_ctx=100, kv_layout="unified", kv_pool=150, echo=True)
    texts = {n: f"{n}" * 40 for n in range(6)}
    for number, text in texts.items():
        bench.submit(number, text, num_predict=40)
    assert bench.finish() == {n: text.encode() for n, text in texts.items()}
    n_preempted = bench.count("preemptions_swap_total") + bench.count("preemptions_recompute_total")
    assert n_preempted > 0


def test_more_run_at_once_than_whole_windows_would_allow(make_bench: MakeBench) -> None:
    bench = make_bench(n_parallel=32, n_ctx=4096, kv_layout="unified", kv_pool=8192, echo=True)
    for number in range(40):
        bench.submit(number, f"{number:03}" * 50, num_predict=100)
    texts = bench.finish()
    assert len(texts) == 40
    assert all(len(text) == 100 for text in texts.values())
    assert bench.n_running_max >= 24


def test_a_victim_resumes_before_anybody_new(make_bench: MakeBench) -> None:
    bench = make_bench(n_parallel=2, n_ctx=100, kv_layout="unified", kv_pool=100, echo=True)
    bench.submit(1, "a" * 30, num_predict=30)
    bench.submit(2, "b" * 30, num_predict=30)
    while not bench.engine.gauges()["preempted"]:
        bench.step()
    bench.submit(3, "c")
    order = []
    while output := bench.step():
        order += [out.sequence.id for out in output.tokens if out.reason]
    assert order[:2] == [1, 2]


def test_a_context_with_fewer_cells_than_it_says_ends_only_those_it_cannot_hold(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(
        n_parallel=1, n_ctx=20, kv_layout="unified", kv_pool=20, n_cells_lost=10, echo=True
    )
    bench.submit(1, "x" * 15)
    failed = []
    while output := bench.step():
        failed += output.failed
    assert [(s.id, type(error)) for s, error in failed] == [(1, EngineFailed)]
    bench.submit(2, "abc")
    assert bench.finish() == {2: b"abc"}
    assert bench.count("forward_errors_total") > 0


def test_a_victim_stays_out_where_cells_are_fewer_than_they_seem(make_bench: MakeBench) -> None:
    bench = make_bench(
        n_parallel=2, n_ctx=100, kv_layout="unified", kv_pool=150, n_cells_lost=55, echo=True
    )
    for number, letter in enumerate("ab"):
        bench.submit(number, letter * 40, num_predict=40)
    for _ in range(200):
        bench.step()
    assert bench.engine.is_idle
    assert bench.texts == {0: b"a" * 40, 1: b"b" * 40}
    assert 0 < bench.count("forward_errors_total") <= 2


# ---- the context


@BOTH
def test_a_larger_window_is_a_new_context_around_running_sequences(
    make_bench: MakeBench, kv_layout: str
) -> None:
    bench = make_bench(n_parallel=2, n_ctx=60, kv_layout=kv_layout, kv_pool=None, echo=True)
    bench.submit(1, "a" * 25)
    bench.step()
    bench.step()
    bench.submit(2, "b" * 80, n_ctx=200)
    assert bench.finish() == {1: b"a" * 25, 2: b"b" * 80}
    assert bench.count("context_rebuilds_total") == 1
    assert bench.model.info.n_ctx == 200


def test_a_pool_that_is_large_enough_is_not_rebuilt_for_a_larger_window(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(n_parallel=4, n_ctx=50, kv_layout="unified", echo=True)
    bench.submit(1, "b" * 80, n_ctx=190)
    assert bench.finish() == {1: b"b" * 80}
    assert bench.count("context_rebuilds_total") == 0


def test_a_deterministic_sequence_shares_neither_cells_nor_forwards(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(n_parallel=2, n_ctx=300, kv_layout="unified", echo=True)
    shapes: list[tuple[int, int]] = []
    forward = bench.model.forward

    def watched(tokens: Any, positions: Any, kv_ids: Any, outputs: Any) -> int:
        if 1 in {s.id for s in bench.engine.running if s.kv_id in set(kv_ids)}:
            shapes.append((len(tokens), len(set(kv_ids))))
        return forward(tokens, positions, kv_ids, outputs)

    bench.model.forward = watched  # type: ignore[method-assign]
    bench.submit(0, "z" * 130)
    sequence = bench.submit(1, "z" * 130, deterministic=True, num_predict=3)
    bench.submit(2, "other words")
    bench.finish()
    assert sequence.n_cached == 0
    assert shapes == [(64, 1), (64, 1), (2, 1), (1, 1), (1, 1)]


@pytest.mark.parametrize(
    ("flash_attention", "deterministic", "expected"),
    [
        (True, True, [(64, 3), (6, 3), (1, 4), (1, 4)]),
        (False, True, [(64, 3), (6, 3), (1, 3), (1, 3)]),
        (True, False, [(70, 3), (1, 3), (1, 3)]),
    ],
)
def test_a_row_of_a_deterministic_sequence_has_as_many_threads_whoever_computes(
    make_bench: MakeBench,
    *,
    flash_attention: bool,
    deterministic: bool,
    expected: list[tuple[int, int]],
) -> None:
    bench = make_bench(n_parallel=1, n_ctx=300, kv_layout="split", echo=True)  # of 8 threads
    model = bench.model
    model.info = structs.replace(model.info, flash_attention=flash_attention)
    calls: list[tuple[int, int]] = []
    used = 0
    forward = model.forward

    def use_threads(n: int) -> None:
        nonlocal used
        used = n

    def watched(tokens: Any, *rest: Any) -> int:
        calls.append((len(tokens), used))
        return forward(tokens, *rest)

    model.use_threads = use_threads  # type: ignore[method-assign]
    model.forward = watched  # type: ignore[method-assign]
    bench.engine._governor.look = lambda _now_s: 3  # type: ignore[method-assign]
    bench.submit(1, "z" * 70, deterministic=deterministic, num_predict=3)
    bench.finish()
    assert calls == expected


# ---- admission


def test_static_admission_waits_for_a_whole_batch_and_runs_it_to_its_end(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(n_parallel=2, echo=True, admission="static")
    bench.submit(1, "a")
    bench.step()
    assert bench.engine.running == []
    bench.submit(2, "long")
    bench.submit(3, "b")
    bench.submit(4, "c")
    bench.step()
    assert [s.id for s in bench.engine.running] == [1, 2]
    bench.step()
    assert [s.id for s in bench.engine.running] == [2]
    while 2 in {s.id for s in bench.engine.running}:
        bench.step()
    bench.step()
    assert [s.id for s in bench.engine.running] == [3, 4]


# ---- beside other runners


def test_another_runner_that_computes_takes_half_of_the_threads(make_bench: MakeBench) -> None:
    bench = make_bench(echo=True)
    assert bench.count("threads") == 8
    bench.engine.inbox.put(Share(2, (1,)))
    assert bench.step() is None, "nobody need hear of it"
    assert bench.count("threads") == 4
    bench.engine.inbox.put(Share(1, (1,)))
    bench.step()
    assert bench.count("threads") == 8
