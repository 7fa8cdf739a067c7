"""What sequences have in common is computed once, and kept while there is room."""

import pytest
from engine_bench import BOTH, MakeBench


@BOTH
def test_the_next_turn_evaluates_only_what_is_new(make_bench: MakeBench, kv_layout: str) -> None:
    bench = make_bench(n_ctx=400, echo=True, kv_layout=kv_layout)
    first = bench.submit(1, "a long first turn " * 5)
    bench.finish()
    n_evaluated = bench.count("prefill_tokens_total")
    second = bench.submit(2, "")
    second.tokens[:] = [*first.tokens, *b"and more"]
    second.__post_init__()
    bench.finish()
    assert second.n_cached == len(first.tokens)
    assert bench.count("prefill_tokens_total") - n_evaluated == len("and more")


@BOTH
def test_those_who_wait_for_a_prefix_that_is_computed_evaluate_it_once(
    make_bench: MakeBench, kv_layout: str
) -> None:
    bench = make_bench(n_parallel=8, n_ctx=300, echo=True, n_batch=32, kv_layout=kv_layout)
    shared = "You are a helpful assistant. " * 5
    sequences = [bench.submit(n, f"{shared}{n}") for n in range(8)]
    texts = bench.finish()
    assert texts == {n: f"{shared}{n}".encode() for n in range(8)}
    assert sequences[0].n_cached == 0
    assert all(s.n_cached == len(shared) for s in sequences[1:])
    assert bench.count("prefill_tokens_total") == len(shared) + 1
    assert bench.count("prefix_hit_tokens_total") == 7 * len(shared)


def test_cells_of_a_shared_prefix_are_used_once(make_bench: MakeBench) -> None:
    bench = make_bench(n_parallel=8, n_ctx=200, kv_layout="unified", pieces=["la "], endless=True)
    for number in range(8):
        bench.submit(number, "x" * 100 + f"{number}", num_predict=5)
    while len(bench.engine.running) < 8:
        bench.step()
    # All have the prefix in common; each has a digit and at most its tokens so far for itself.
    assert bench.engine.gauges()["kv_cells_used"] <= 100 + 8 * 5


def test_prefixes_are_shared_within_a_scope_only(make_bench: MakeBench) -> None:
    bench = make_bench(n_ctx=300, echo=True, kv_layout="unified")
    prompt = "the same secret words " * 4
    bench.submit(1, prompt, scope="alice")
    bench.finish()
    stranger = bench.submit(2, prompt, scope="bob")
    bench.finish()
    friend = bench.submit(3, prompt, scope="alice")
    bench.finish()
    assert (stranger.n_cached, friend.n_cached) == (0, len(prompt) - 1)


def test_a_stranger_does_not_wait_for_a_prefix_of_another_scope(make_bench: MakeBench) -> None:
    bench = make_bench(n_ctx=300, echo=True, n_batch=16)
    bench.submit(1, "x" * 90, scope="alice")
    bench.submit(2, "x" * 90, scope="bob")
    output = bench.step()
    assert output is not None
    assert [s.id for s in output.admitted] == [1, 2]


@pytest.mark.parametrize("shares_prefixes", [True, False])
@BOTH
def test_a_model_that_cannot_cut_reuses_whole_sequences_only(
    make_bench: MakeBench, kv_layout: str, shares_prefixes: bool
) -> None:
    bench = make_bench(n_ctx=400, echo=True, kv_layout=kv_layout, shares_prefixes=shares_prefixes)
    first = bench.submit(1, "y" * 100)
    bench.finish()
    forked = bench.submit(2, "y" * 80 + "other end")
    bench.finish()
    assert forked.n_cached == (80 if shares_prefixes else 0)
    again = bench.submit(3, "")
    again.tokens[:] = [*first.tokens, 65]
    again.__post_init__()
    bench.finish()
    assert again.n_cached == 200


def test_retained_sequences_go_when_cells_are_needed(make_bench: MakeBench) -> None:
    bench = make_bench(
        n_parallel=2, n_ctx=100, kv_layout="unified", kv_pool=100, echo=True, host_tier_bytes=0
    )
    for number in range(6):
        bench.submit(number, f"{number}" * 40)
        assert bench.finish()[number] == f"{number}".encode() * 40
    assert bench.count("donors_dropped_total") > 0


def test_idle_sequences_hold_a_quarter_of_the_pool_and_the_rest_waits_in_memory(
    make_bench: MakeBench,
) -> None:
    # Rows take their time, so that keeping the KV is worth it.
    bench = make_bench(n_ctx=200, n_parallel=2, kv_layout="unified", echo=True, row_s=0.0002)
    for number in range(5):
        bench.submit(number, f"{number}" * 70, num_predict=5)
        bench.finish()
    gauges = bench.engine.gauges()
    assert gauges["kv_cells_retained"] <= 100
    assert gauges["host_tier_bytes"] > 0
    back = bench.submit(9, "0" * 70 + "!", num_predict=1)
    bench.finish()
    assert back.n_cached == 70


def test_idle_sequences_leave_a_large_pool_early_where_that_is_cheap(make_bench: MakeBench) -> None:
    bench = make_bench(n_ctx=20_000, n_parallel=2, kv_layout="unified", echo=True, row_s=0.0002)
    for number in range(4):
        bench.submit(number, f"{number}" * 600, num_predict=5)
        bench.finish()
    gauges = bench.engine.gauges()
    assert gauges["kv_cells_retained"] <= 1024  # of 10,000 that they may have
    assert gauges["host_tier_bytes"] > 0
    back = bench.submit(9, "0" * 600 + "!", num_predict=1)
    bench.finish()
    assert back.n_cached == 600
