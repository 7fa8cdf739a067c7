"""Thinking, harmony's channels, and both together with calls, however the text is cut."""

from typing import Any

import pytest
from answers import TOOLS, Outcome, cuts, outcome, read

from localrun.runner.output.formats import FORMATS
from localrun.runner.output.style import Markup, Style, reader_of
from localrun.runner.structured.constraint import ThinkTags

TAGS = ThinkTags("<think>", "</think>")
GEMMA = ThinkTags("<|channel>thought", "<channel|>")
_TAGGED = next(row for row in FORMATS if row.name == "tagged")
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
NOW: list[Any] = [("now", {})]


def thinker(tags: ThinkTags = TAGS, *, is_thinking: bool = False, has_tools: bool = False) -> Style:
    return Style(Markup(tags, _TAGGED, True), TOOLS if has_tools else (), is_thinking)


HARMONY = Markup(ThinkTags("<|channel|>", "final<|message|>"), is_harmony=True)

# (style, an answer, its text, its thinking, its calls)
CASES: list[tuple[Style, str, str, str, list[Any]]] = [
    (thinker(), "<think>\nplan\n</think>\n\nanswer", "answer", "plan", []),
    (thinker(), "  <think>plan</think>answer", "answer", "plan", []),
    (thinker(), "<think>one\n\ntwo</think>\nanswer\n", "answer\n", "one\n\ntwo", []),
    (thinker(), "<think>\n\n</think>\n\nanswer", "answer", "", []),
    (thinker(), "<think>it never ends ", "", "it never ends", []),
    (thinker(), "<think>1 < 2 </thin", "", "1 < 2 </thin", []),
    (thinker(), "answer", "answer", "", []),
    (thinker(), " answer ", " answer ", "", []),
    (thinker(), "<thin ice", "<thin ice", "", []),
    (thinker(), "<thi", "<thi", "", []),
    (
        thinker(),
        "A tag is <think>, its end </think>.",
        "A tag is <think>, its end </think>.",
        "",
        [],
    ),
    (thinker(), "<think>p</think>hello </think> world", "hello </think> world", "p", []),
    # The prompt has opened the thinking.
    (thinker(is_thinking=True), "plan...</think>answer", "answer", "plan...", []),
    (thinker(is_thinking=True), "\nplan\n</think>\n\nanswer", "answer", "plan", []),
    (thinker(is_thinking=True), "<think>\nplan</think>answer", "answer", "plan", []),
    (thinker(is_thinking=True), "</think>answer", "answer", "", []),
    (thinker(is_thinking=True), "plan <think> again</think>x", "x", "plan <think> again", []),
    (thinker(is_thinking=True), "x</think>hello </think> world", "hello </think> world", "x", []),
    (thinker(is_thinking=True), "cut off", "", "cut off", []),
    (thinker(GEMMA), "<|channel>thought\nplan\n<channel|>answer", "answer", "plan", []),
    (thinker(GEMMA), "<|channel>thought\n<channel|>answer", "answer", "", []),
    # With calls behind it.
    (thinker(has_tools=True), f"<think>plan</think>\n{CALL}", "", "plan", NOW),
    (thinker(has_tools=True), f"<think>plan</think>Well.\n{CALL}", "Well.", "plan", NOW),
    (
        thinker(has_tools=True, is_thinking=True),
        f"I could write {CALL}.</think>No.",
        "No.",
        f"I could write {CALL}.",
        [],
    ),
    (
        thinker(has_tools=True),
        '<think>p</think>\n{"name": "now", "arguments": {}}',
        "",
        "p",
        NOW,
    ),
    # Harmony.
    (
        Style(HARMONY, TOOLS),
        "<|channel|>analysis<|message|>plan<|end|><|start|>assistant<|channel|>final<|message|>"
        "answer",
        "answer",
        "plan",
        [],
    ),
    (
        Style(HARMONY),
        "<|channel|>analysis<|message|>plan<|end|><|start|>assistant<|channel|>final<|message|>"
        "answer<|return|>",
        "answer",
        "plan",
        [],
    ),
    (
        Style(HARMONY, TOOLS),
        "<|channel|>analysis<|message|>plan<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.get_weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>',
        "",
        "plan",
        [("get_weather", {"city": "Oslo"})],
    ),
    (
        Style(HARMONY, TOOLS),
        " to=functions.now<|channel|>commentary json<|message|>{}",
        "",
        "",
        NOW,
    ),
    (
        Style(HARMONY, TOOLS),
        "<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant<|channel|>"
        "commentary to=functions.now<|message|><|call|>",
        "Let me look.",
        "",
        NOW,
    ),
    (
        Style(HARMONY, TOOLS),
        "<|channel|>commentary to=functions.nobody<|message|>{}<|call|>",
        "{}",
        "",
        [],
    ),
    (
        Style(HARMONY, TOOLS),
        "<|channel|>commentary to=functions.now<|message|>[not JSON<|call|>",
        "[not JSON",
        "",
        [],
    ),
    (
        Style(HARMONY, TOOLS),
        '<|channel|>final<|message|>{"name": "now", "arguments": {}}<|return|>',
        "",
        "",
        NOW,
    ),
    (
        Style(HARMONY, TOOLS),
        "<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant<|channel|>"
        "commentary to=functions.now<|message|>{}<|call|><|start|>assistant<|channel|>final"
        "<|message|>It is <|channel|>final<|message|>late.",
        "Let me look.\n\nIt is \n\nlate.",
        "",
        NOW,
    ),
    (Style(HARMONY), "No markup at all.", "No markup at all.", "", []),
    (Style(HARMONY), "to be or not to be", "to be or not to be", "", []),
    (Style(HARMONY), "<|channel|>analysis", "", "", []),
]


@pytest.mark.parametrize(("style", "answer", "text", "thinking", "calls"), CASES)
def test_the_parts_are_the_same_however_the_answer_is_cut(
    style: Style, answer: str, text: str, thinking: str, calls: list[Any]
) -> None:
    for pieces in cuts(answer):
        found, n_chars = outcome(read(reader_of(style), pieces))
        assert found == Outcome(text, thinking, calls), pieces
        assert n_chars == len(answer)


def test_a_call_of_harmony_that_the_limit_cuts_is_text() -> None:
    answer = '<|channel|>commentary to=functions.write<|message|>{"text": "x"'
    for pieces in cuts(answer):
        found, _ = outcome(read(reader_of(Style(HARMONY, TOOLS)), pieces, is_cut=True))
        assert found == Outcome('{"text": "x"'), pieces


@pytest.mark.parametrize(
    "answer",
    [
        '<|channel|>analysis<|message|>p<|end|><|start|>assistant<|channel|>final<|message|>{"na',
        "<|channel|>analysis<|message|>p<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.write<|message|>{"text": "x"',
    ],
)
def test_of_a_forced_call_that_the_limit_cuts_only_the_thinking_stays(answer: str) -> None:
    style = Style(HARMONY, TOOLS, is_forced=True)
    for pieces in cuts(answer):
        found, n_chars = outcome(read(reader_of(style), pieces, is_cut=True))
        assert found == Outcome(thinking="p"), pieces
        assert n_chars == len(answer)


def test_thinking_leaves_while_it_goes_on() -> None:
    reader = reader_of(thinker(is_thinking=True))
    for word in ("so ", "it ", "seems"):
        assert [*reader.feed(word)] != []


@pytest.mark.parametrize("answer", ["<think>" + "plan " * 20_000, "<think>" + "\n" * 100_000])
def test_long_thinking_is_not_held_back(answer: str) -> None:
    reader = reader_of(thinker())
    n_held = 0
    for char in answer:
        n_held += 1 - sum(part.n_chars for part in reader.feed(char))
        assert n_held < 100


def test_only_the_control_tokens_of_the_markup_are_shown() -> None:
    style = thinker(GEMMA, has_tools=True)
    assert style.shows("<|channel>")
    assert style.shows("<tool_call>")
    assert not style.shows("<|im_end|>")
    assert not thinker(GEMMA).shows("<tool_call>")
    assert not style.shows("")
    assert Style(HARMONY).shows("<|message|>")
