"""The prompt thread and the text thread, turn by turn: what they send, and what they never do."""

from typing import Any

import pytest
from desk import Desk, dones, step, texts

from localrun.core import ChatPrompt, Message, Overflow, SamplingParams
from localrun.errors import EngineFailed
from localrun.ipc.messages import (
    Admitted,
    Cancel,
    Failed,
    Rendering,
    Share,
    Submit,
    Waiting,
)
from localrun.runner.engine.traffic import Remove, StepOutput, TokenOut
from localrun.runner.prompt.composer import Prepared
from localrun.runner.prompt.prepare import Settled

WHOLE = Overflow(cuts=False)


def test_a_raw_prompt_reaches_the_engine_without_a_template() -> None:
    desk = Desk(chat_template="never {{ messages }}")
    assert desk.ask(desk.submit(1, "hi")) == [Waiting(1, 2)]
    assert desk.queued().tokens == list(b"hi")


def test_a_chat_announces_its_rendering_before_it_runs_the_template() -> None:
    desk = Desk(chat_template="<{{ messages[0].content }}>")
    told = desk.prepare(desk.submit(1, "hi", raw=False))
    assert [type(item) for item in told] == [Rendering, Prepared]
    assert told[1].tokens == list(b"<hi>")


def test_tokens_of_a_step_leave_in_one_frame() -> None:
    desk = Desk(pieces=(b"a",))
    one, two = desk.accept(1), desk.accept(2)
    items = desk.turn(
        step(TokenOut(one, 97, None), TokenOut(two, 98, None), admitted=(one, two), n_running=2)
    )
    assert items[:2] == [Admitted(1), Admitted(2)]
    assert texts(items) == ["a", "b"]
    assert len(desk.frames) == 1
    assert desk.frames[0].n_running == 2


def test_an_answer_ends_once_with_its_counts() -> None:
    desk = Desk()
    one = desk.accept(1, return_context=True)
    one.admitted_ns, one.first_token_ns, one.last_token_ns = 10, 30, 70
    one.tokens += [97, 98]
    desk.turn(step(TokenOut(one, 97, None)))
    (done,) = dones(desk.turn(step(TokenOut(one, 98, "length"))))
    usage = done.usage
    assert (done.reason, usage.prompt_count, usage.completion_count) == ("length", 2, 2)
    assert (usage.prompt_ns, usage.completion_ns) == (20, 40)
    assert done.context == (*b"hi", 97, 98)
    assert desk.turn(step(TokenOut(one, 99, None))) == []  # a late token of a finished answer


def test_a_stop_string_ends_the_answer_and_removes_the_sequence() -> None:
    desk = Desk()
    one = desk.accept(1, sampling={"stop": ("ab",)})
    assert desk.turn(step(TokenOut(one, ord("a"), None))) == []
    items = desk.turn(step(TokenOut(one, ord("b"), None)))
    assert texts(items) == []
    assert dones(items)[0].reason == "stop"
    assert desk.engine.get_nowait() == Remove(1, is_cancel=False)


def test_text_held_back_for_a_stop_string_leaves_when_the_answer_ends() -> None:
    desk = Desk()
    one = desk.accept(1, sampling={"stop": ("ab",)})
    desk.turn(step(TokenOut(one, ord("a"), None)))
    items = desk.turn(step(TokenOut(one, None, "stop")))
    assert texts(items) == ["a"]
    assert len(dones(items)) == 1


def test_a_prompt_cancelled_in_the_same_breath_is_never_rendered() -> None:
    desk = Desk(chat_template="{{ raise_exception('rendered') }}")
    assert desk.prepare(desk.submit(1, raw=False), Cancel(1)) == [Settled(1)]


def test_a_prompt_cancelled_while_it_is_prepared_never_reaches_the_engine() -> None:
    desk = Desk()
    told = desk.prepare(desk.submit(1, "hi", raw=False))
    assert desk.turn(Cancel(1)) == []  # the reader's word overtakes the prompt thread's
    # The daemon hears that the template has come back: else its deadline would end the runner.
    assert [type(item) for item in desk.turn(*told)] == [Rendering, Waiting]
    assert desk.engine.empty()
    desk.turn(*desk.prepare(Cancel(1)))
    assert not desk.text._cancelled  # nothing is remembered for ever


def test_a_cancel_removes_the_sequence_and_silences_it() -> None:
    desk = Desk()
    one = desk.accept(1)
    assert desk.turn(Cancel(1), step(TokenOut(one, 97, None))) == []
    assert desk.engine.get_nowait() == Remove(1)
    assert desk.turn(Cancel(1), Cancel(77)) == []
    assert desk.engine.empty()


def test_no_tokens_wanted_is_an_answer_without_the_engine() -> None:
    desk = Desk()
    items = desk.ask(desk.submit(1, sampling={"num_predict": 0}))
    assert dones(items)[0].reason == "length"
    assert dones(items)[0].usage.prompt_count == 2
    assert desk.engine.empty()


@pytest.mark.parametrize(
    ("submit", "kind"),
    [
        ({"text": "x" * 100, "overflow": WHOLE}, "ContextOverflow"),
        ({"text": "x" * 1_000_000, "overflow": WHOLE}, "ContextOverflow"),
        ({"raw": False, "text": "x"}, "TemplateFailed"),
    ],
)
def test_what_cannot_run_fails_with_its_reason(submit: dict[str, Any], kind: str) -> None:
    desk = Desk(chat_template="{{ raise_exception('no') }}")
    items = desk.ask(desk.submit(1, **submit))
    assert isinstance(items[-1], Failed)
    assert items[-1].kind == kind
    assert desk.engine.empty()


def test_an_engine_failure_reaches_the_client_once() -> None:
    desk = Desk()
    one = desk.accept(1)
    failed = StepOutput((), (), ((one, EngineFailed(-3)),), n_running=0)
    assert desk.turn(failed) == [Failed(1, "EngineFailed", {"code": -3})]
    assert desk.turn(failed) == []


def test_a_go_template_of_the_call_renders_the_turns() -> None:
    desk = Desk(chat_template="not this one")
    assert desk.accept(1, raw=False, template="{{ .Prompt }}!").tokens == list(b"hi!")


def with_context(
    *context: int, overflow: Overflow | None = None, **script: Any
) -> tuple[list[Any], Desk]:
    desk = Desk(**script)
    prompt = ChatPrompt((Message("user", "hi"),), context=context)
    return desk.ask(Submit(1, prompt, SamplingParams(), 100, overflow or Overflow())), desk


def test_context_stands_before_the_prompt_which_then_has_no_bos() -> None:
    items, desk = with_context(7, 8, adds_bos=True)
    assert items[-1] == Waiting(1, 4)
    assert desk.queued().tokens == [7, 8, *b"hi"]


@pytest.mark.parametrize("token", [-1, 2**31])
def test_context_with_foreign_ids_is_refused(token: int) -> None:
    items, desk = with_context(7, token)
    assert items[-1].kind == "BadRequest"
    assert items[-1].fields["path"] == "context"
    assert desk.engine.empty()


def test_context_counts_against_the_window() -> None:
    items, _ = with_context(*[7] * 99, overflow=WHOLE)
    assert items[-1] == Failed(
        1, "ContextOverflow", {"n_tokens": 101, "n_ctx": 100, "is_at_least": False}
    )


def test_context_that_leaves_no_room_loses_its_middle() -> None:
    items, desk = with_context(*range(99))
    tokens = desk.queued().tokens
    assert items[-1] == Waiting(1, len(tokens))
    assert tokens[:4] == [0, 1, 2, 3]
    assert tokens[4:] == [*range(53, 99), *b"hi"]
    assert len(tokens) == 4 + (100 - 4) // 2


def test_the_count_of_running_sequences_travels_even_without_news() -> None:
    desk = Desk()
    assert desk.turn(step(n_running=3)) == []
    assert [frame.n_running for frame in desk.frames] == [3]
    assert desk.turn(step(n_running=3)) == []
    assert desk.frames == []


def test_news_of_other_runners_is_handed_on_to_the_engine() -> None:
    desk = Desk(pieces=[b"x"])
    assert desk.turn(Share(2, (7,))) == []
    assert desk.engine.get_nowait() == Share(2, (7,))
