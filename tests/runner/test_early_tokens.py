"""Tokens leave as soon as they are sampled: before what follows in the step, and by whom."""

from typing import Any

from desk import Desk, step, texts
from engine_bench import BOTH, MakeBench

from localrun.ipc.messages import Outbox
from localrun.runner.engine.traffic import TokenOut

# ---- the engine


@BOTH
def test_a_streams_token_leaves_before_the_prompt_beside_it_is_evaluated(
    make_bench: MakeBench, kv_layout: str
) -> None:
    bench = make_bench(n_parallel=2, n_ctx=300, echo=True, n_batch=32, kv_layout=kv_layout)
    bench.submit(0, "a stream")
    bench.step()
    bench.submit(1, "z" * 100)
    n_told: list[tuple[int, int]] = []
    forward = bench.model.forward

    def watched(tokens: Any, *rest: Any) -> int:
        n_told.append((len(tokens), sum(len(output.tokens) for output in bench.outputs)))
        return forward(tokens, *rest)

    bench.model.forward = watched  # type: ignore[method-assign]
    bench.step()
    (n_decoded, before), (n_prefilled, between) = n_told
    assert (n_decoded, before) == (1, 0)
    assert n_prefilled > 1
    assert between == 1


def test_a_step_that_only_computes_a_prompt_tells_nothing(make_bench: MakeBench) -> None:
    bench = make_bench(n_ctx=300, echo=True, n_batch=32)
    bench.submit(0, "z" * 100)
    n_told = []
    for _ in range(4):
        bench.step()
        n_told.append(len(bench.outputs))
    assert n_told == [1, 0, 0, 1]


def test_the_last_token_comes_with_the_figures_in_which_it_counts(make_bench: MakeBench) -> None:
    bench = make_bench(n_parallel=2, echo=True)
    bench.submit(0, "ab")
    bench.step()
    bench.step()
    last = bench.step()
    assert last is not None
    assert [(out.token, out.reason) for out in last.tokens] == [(None, "stop")]
    assert last.n_running == 0
    assert last.stats is not None
    assert last.stats.values["requests_finished_total"] == 1


def test_of_two_sequences_one_goes_on_while_the_other_ends(make_bench: MakeBench) -> None:
    bench = make_bench(n_parallel=2, echo=True)
    bench.submit(0, "a")
    bench.submit(1, "abc")
    bench.step()
    bench.step()
    ids = [[out.sequence.id for out in output.tokens] for output in bench.outputs]
    assert ids == [[1], [0]], "the end waits for the books, the other one does not"
    assert bench.finish() == {0: b"a", 1: b"abc"}


@BOTH
def test_a_model_that_counts_otherwise_starts_the_sequence_over_and_no_token_is_lost(
    make_bench: MakeBench, kv_layout: str
) -> None:
    bench = make_bench(n_parallel=2, n_ctx=300, echo=True, kv_layout=kv_layout)
    text = "forty letters, all of them different: no"
    bench.submit(0, text)
    n_positions = bench.model.n_positions
    n_wrong = 0

    def miscounted(kv_id: int) -> int:
        nonlocal n_wrong
        n = n_positions(kv_id)
        n_wrong += n == 64
        return n - 1 if n == 64 and n_wrong == 1 else n

    bench.model.n_positions = miscounted  # type: ignore[method-assign]
    assert bench.finish() == {0: text.encode()}
    assert bench.count("ledger_drift_total") == 1


# ---- the text thread


def test_a_token_that_is_alone_is_read_at_once() -> None:
    desk = Desk(pieces=(b"a",))
    one = desk.accept(1)
    desk.frames.clear()
    desk.text.tell(step(TokenOut(one, 97, None)))
    assert texts(list(desk.frames[0].items)) == ["a"]


def test_tokens_of_several_are_left_to_the_text_thread_and_what_follows_stays_behind() -> None:
    desk = Desk(pieces=(b"a",))
    one, two = desk.accept(1), desk.accept(2)
    desk.frames.clear()
    desk.text.tell(step(TokenOut(one, 97, None), TokenOut(two, 98, None), n_running=2))
    desk.text.tell(step(TokenOut(one, 99, None)))
    assert desk.frames == []
    assert texts(desk.read()) == ["a", "b", "c"]
    desk.text.tell(step(TokenOut(one, 100, None)))
    assert texts(list(desk.frames[-1].items)) == ["d"]


def test_a_token_that_comes_while_the_text_thread_is_at_work_stays_behind_it() -> None:
    desk = Desk(pieces=(b"a",))
    one = desk.accept(1)
    late = step(TokenOut(one, 98, None))
    desk.inbox.put(step(TokenOut(one, 97, None)))

    def send(frame: Outbox) -> None:
        """The engine comes along while the first frame is written."""
        desk.frames.append(frame)
        desk.text.tell(late)

    desk.send = send
    assert texts(desk.read()) == ["a"]
    desk.send = desk.frames.append
    assert texts(desk.read()) == ["b"]
