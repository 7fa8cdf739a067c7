"""Thinking and calls on their whole way through a runner: prompts in, tokens in, events out."""

from typing import Any

import pytest
from desk import Desk, dones, step, texts

from localrun.core import (
    ChatPrompt,
    Message,
    SamplingParams,
    ThinkingDelta,
    Tool,
    ToolCallDelta,
    ToolChoice,
)
from localrun.ipc.messages import Failed, Progressed, Submit
from localrun.runner.engine.traffic import Remove, TokenOut
from localrun.runner.fake_script import END
from localrun.runner.model import Likelihoods

NOW = Tool("now", "Tells the time.")
CALL = '{"name": "now", "arguments": {}}'
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}|"
TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}" + PLAIN + "{# <tool_call> #}"
THINKING = PLAIN + "{# <think></think> #}"
OPENING = PLAIN + "{# </think> #}<think>\n"
BOTH = TOOLS + "{# <think></think> #}"

_FIRST_CONTROL = END + 10  # where the scripted vocabulary has nothing but control tokens


def chat(number: int = 1, **wishes: Any) -> Submit:
    sampling = SamplingParams(**wishes.pop("sampling", {}))
    return Submit(number, ChatPrompt((Message("user", "hi"),), **wishes), sampling, n_ctx=100_000)


def say(desk: Desk, submit: Submit, *tokens: int, reason: Any = "stop") -> list[Any]:
    """The items of a whole answer of these tokens."""
    desk.ask(submit)
    sequence = desk.queued()
    items = []
    for token in tokens:
        items += desk.turn(step(TokenOut(sequence, token, None, Likelihoods(-1.0, ()))))
    last = TokenOut(sequence, None, reason)
    return items + desk.turn(step(last))


def thoughts(items: list[Any]) -> str:
    events = [item.event for item in items if isinstance(item, Progressed)]
    return "".join(event.text for event in events if isinstance(event, ThinkingDelta))


def calls(items: list[Any]) -> list[str]:
    events = [item.event for item in items if isinstance(item, Progressed)]
    return [event.call.name for event in events if isinstance(event, ToolCallDelta)]


def with_controls(desk: Desk, *names: bytes) -> list[int]:
    """Teaches the desk's vocabulary control tokens; their ids."""
    ids = [_FIRST_CONTROL + n for n in range(len(names))]
    known = dict(zip(ids, names, strict=True))
    plain = desk.vocab.token_name
    desk.vocab.token_name = lambda token: known.get(token) or plain(token)  # type: ignore[method-assign]
    return ids


@pytest.mark.parametrize("think", [None, True, False])
def test_thinking_that_the_prompt_has_opened_never_reaches_the_text(think: bool | None) -> None:
    items = say(Desk(chat_template=OPENING), chat(think=think), *b"plan...</think>answer")
    assert "".join(texts(items)) == "answer"
    assert thoughts(items) == "plan..."


@pytest.mark.parametrize("think", [None, True, False])
@pytest.mark.parametrize(
    ("answer", "thinking"),
    [
        (b"<think>plan</think>\n\nanswer", "plan"),
        (b"<think>\n\n</think>\n\nanswer", ""),
        (b"answer", ""),
    ],
)
def test_a_model_that_opens_it_by_itself(think: bool | None, answer: bytes, thinking: str) -> None:
    items = say(Desk(chat_template=THINKING), chat(think=think), *answer)
    assert "".join(texts(items)) == "answer"
    assert thoughts(items) == thinking


def test_tags_mean_nothing_where_the_template_has_none() -> None:
    answer = f"<think>x</think><tool_call>{CALL}</tool_call>"
    items = say(Desk(chat_template=PLAIN), chat(), *answer.encode())
    assert "".join(texts(items)) == answer


def test_calls_need_tools() -> None:
    answer = f"<tool_call>{CALL}</tool_call>".encode()
    items = say(Desk(chat_template=TOOLS), chat(), *answer)
    assert "".join(texts(items)) == answer.decode()
    items = say(Desk(chat_template=TOOLS), chat(tools=(NOW,)), *answer)
    assert (calls(items), "".join(texts(items))) == (["now"], "")


def test_control_tokens_of_the_markup_are_read_and_others_are_dropped() -> None:
    desk = Desk(chat_template=BOTH)
    opens, closes, calls_it, ends_it, other = with_controls(
        desk, b"<think>", b"</think>", b"<tool_call>", b"</tool_call>", b"<|other|>"
    )
    tokens = [opens, *b"p", closes, other, *b"Well.", calls_it, *CALL.encode(), ends_it]
    items = say(desk, chat(tools=(NOW,)), *tokens)
    assert thoughts(items) == "p"
    assert "".join(texts(items)) == "Well."
    assert calls(items) == ["now"]
    (done,) = dones(items)
    assert done.usage.completion_count == len(tokens)


def test_every_log_probability_comes_with_text_thinking_or_beside_an_empty_text() -> None:
    answer = f"<think>plan</think>Well.<tool_call>{CALL}</tool_call>".encode()
    submit = chat(tools=(NOW,), sampling={"top_logprobs": 0})
    items = say(Desk(chat_template=BOTH), submit, *answer)
    events = [item.event for item in items if isinstance(item, Progressed)]
    logprobs = [one for event in events for one in getattr(event, "logprobs", ())]
    assert b"".join(one.data for one in logprobs) == answer


def test_the_end_names_the_stop_string() -> None:
    desk = Desk(chat_template=THINKING)
    desk.ask(chat(sampling={"stop": ("END", "never")}))
    sequence = desk.queued()
    items = [i for c in b"so END" for i in desk.turn(step(TokenOut(sequence, c, None)))]
    (done,) = dones(items)
    assert (done.reason, done.stop_text) == ("stop", "END")
    assert desk.engine.get_nowait() == Remove(1, is_cancel=False)
    (plain,) = dones(say(Desk(chat_template=PLAIN), chat(), *b"so"))
    assert plain.stop_text == ""


def test_a_call_that_the_limit_cuts_is_text() -> None:
    answer = b'{"name": "now", "arguments": {'
    items = say(Desk(chat_template=TOOLS), chat(tools=(NOW,)), *answer, reason="length")
    assert "".join(texts(items)) == answer.decode()
    assert dones(items)[0].reason == "length"


def test_of_a_call_that_has_to_come_no_fragment_is_said() -> None:
    answer = f'[{CALL}, {{"name": "now", "argu'.encode()
    submit = chat(tools=(NOW,), choice=ToolChoice(is_required=True))
    items = say(Desk(chat_template=TOOLS), submit, *answer, reason="length")
    assert (calls(items), "".join(texts(items))) == (["now"], "")
    (done,) = dones(items)
    assert (done.reason, done.usage.completion_count) == ("length", len(answer))


@pytest.mark.parametrize(
    ("wishes", "capability"),
    [({"tools": (NOW,)}, "tools"), ({"think": True}, "thinking"), ({"think": "low"}, "thinking")],
)
def test_what_the_template_does_not_know_is_refused(
    wishes: dict[str, Any], capability: str
) -> None:
    desk = Desk(chat_template=PLAIN)
    *_, failed = desk.ask(chat(**wishes))
    assert isinstance(failed, Failed)
    assert (failed.kind, failed.fields["capability"]) == ("Unsupported", capability)
    assert desk.engine.empty()


def test_a_call_that_has_to_come_is_read_on_a_model_without_tools() -> None:
    submit = chat(tools=(NOW,), choice=ToolChoice(is_required=True))
    items = say(Desk(chat_template=PLAIN), submit, *CALL.encode())
    assert (calls(items), "".join(texts(items))) == (["now"], "")
