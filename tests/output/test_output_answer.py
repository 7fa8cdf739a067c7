"""Token bytes → events: stop strings, thinking, calls and log-probabilities together."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from answers import TOOLS

from localrun.core import (
    Delta,
    TextDelta,
    ThinkingDelta,
    TokenLogprob,
    ToolCallDelta,
)
from localrun.runner.output.answer import AnswerReader
from localrun.runner.output.formats import FORMATS
from localrun.runner.output.style import Markup, Style
from localrun.runner.structured.constraint import ThinkTags

_TAGGED = next(row for row in FORMATS if row.name == "tagged")
BOTH = Style(Markup(ThinkTags("<think>", "</think>"), _TAGGED, True), TOOLS)
ANSWER = '<think>\nä plan</think>\nSo 😀 it is.\n<tool_call>{"name": "now"}</tool_call>\n'


def events(
    tokens: Sequence[bytes],
    style: Style = BOTH,
    stop: tuple[str, ...] = (),
    *,
    is_cut: bool = False,
    has_logprobs: bool = False,
) -> tuple[list[Delta], AnswerReader]:
    answer = AnswerReader(style, stop, has_logprobs=has_logprobs)
    found: list[Delta] = []
    for number, data in enumerate(tokens):
        logprob = TokenLogprob(data, -float(number)) if has_logprobs else None
        found += answer.feed(data, logprob)
        if answer.is_stopped:
            return found, answer
    return [*found, *answer.feed(b"", is_last=True, is_cut=is_cut)], answer


def joined(found: Sequence[Delta], kind: type[TextDelta | ThinkingDelta]) -> str:
    return "".join(event.text for event in found if isinstance(event, kind))


def slices(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def test_a_stop_string_has_no_part_in_calls_that_have_to_be_made() -> None:
    call = b'<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    for stop in ("}", '"', "n"):
        found, answer = events(slices(call, 3), replace(BOTH, is_forced=True), (stop,))
        assert [event.call.name for event in found if isinstance(event, ToolCallDelta)] == ["now"]
        assert not answer.is_stopped


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_bytes_of_any_size_give_the_same_events(size: int) -> None:
    found, _ = events(slices(ANSWER.encode(), size))
    assert joined(found, ThinkingDelta) == "ä plan"
    assert joined(found, TextDelta) == "So 😀 it is."
    calls = [event for event in found if isinstance(event, ToolCallDelta)]
    assert [(event.number, event.call.name) for event in calls] == [(0, "now")]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("style", [BOTH, Style()])
@pytest.mark.parametrize("stop", [(), ("it is",)])
def test_every_token_s_log_probability_comes_once(
    size: int, style: Style, stop: tuple[str, ...]
) -> None:
    tokens = slices(ANSWER.encode(), size)
    found, answer = events(tokens, style, stop, has_logprobs=True)
    logprobs = [one for event in found for one in getattr(event, "logprobs", ())]
    said = ANSWER.partition(stop[0])[0] if stop else ANSWER
    assert b"".join(one.data for one in logprobs) == said.encode()
    assert [-one.logprob for one in logprobs] == sorted(-one.logprob for one in logprobs)
    assert len({one.logprob for one in logprobs}) == len(logprobs)
    assert answer.stop_text == (stop[0] if stop else "")


def test_markup_and_calls_have_their_log_probabilities_beside_an_empty_text() -> None:
    found, _ = events([b"<think>", b"p", b"</think>", b"t"], has_logprobs=True)
    kinds = [
        (type(event).__name__, event.text, [one.data for one in event.logprobs])
        for event in found
        if not isinstance(event, ToolCallDelta)
    ]
    assert kinds == [
        ("TextDelta", "", [b"<think>"]),
        ("ThinkingDelta", "p", [b"p"]),
        ("TextDelta", "", [b"</think>"]),
        ("TextDelta", "t", [b"t"]),
    ]


def test_a_stop_string_counts_wherever_it_is_said() -> None:
    found, answer = events([b"<think>one STOP two</think>three"], stop=("STOP",))
    assert joined(found, ThinkingDelta) == "one"
    assert joined(found, TextDelta) == ""
    assert answer.stop_text == "STOP"
    call = b'<tool_call>{"name": "write", "arguments": {"text": "STOP"}}</tool_call>'
    found, _ = events([call], stop=("STOP",))
    assert joined(found, TextDelta) == call.partition(b"STOP")[0].decode()
    assert not any(isinstance(event, ToolCallDelta) for event in found)


def test_an_answer_without_markup_is_text_with_whatever_it_holds() -> None:
    found, answer = events([ANSWER.encode()], Style())
    assert found == [TextDelta(ANSWER)]
    assert answer.shown(b"<think>") == b""


def test_control_tokens_that_are_markup_are_seen_and_others_are_not() -> None:
    _, answer = events([], BOTH)
    assert answer.shown(b"<tool_call>") == b"<tool_call>"
    assert answer.shown(b"<|im_end|>") == b""


@pytest.mark.parametrize(
    ("tokens", "is_cut", "kinds"),
    [
        ([b'{"name": "now", "arguments": {}'], False, [ToolCallDelta]),
        ([b'{"name": "now", "arguments": {}'], True, [TextDelta]),
        ([b"<tool_call>"], True, [TextDelta]),
    ],
)
def test_what_the_limit_cuts_is_no_call(
    tokens: list[bytes], is_cut: bool, kinds: list[Any]
) -> None:
    found, _ = events(tokens, is_cut=is_cut)
    assert [type(event) for event in found] == kinds
