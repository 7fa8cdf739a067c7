"""An answer that may think first: free text up to the closing tag, the grammar after it."""

import pytest
from byte_vocabulary import CLOSE, COMPILER, END, OPEN, allowed, takes

from localrun.runner.model import Matcher
from localrun.runner.structured.constraint import Constraint, ThinkTags, json_grammar

GRAMMAR = json_grammar('{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}')
AS_TEXT = ThinkTags("<reason>", "</reason>")
AS_TOKENS = ThinkTags("<think>", "</think>")


def thinker(tags: ThinkTags = AS_TEXT, *, is_thinking: bool = False) -> Matcher:
    return COMPILER.matcher(Constraint(GRAMMAR, tags, is_thinking))


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1}',
        '\n\n{"a":1}',
        '<reason>{"a": free text, <reason> 1 </reas on></reason>{"a":1}',
        '\n<reason></reason>\n\n{"a":1}',
    ],
)
def test_it_may_think_first_or_not(text: str) -> None:
    one = thinker()
    assert takes(one, text)
    assert one.is_finished


@pytest.mark.parametrize("text", ["<reason>x</reason>x", "<reas{", "x", '{"a":1}<', " " * 9])
def test_what_is_neither_is_not_taken(text: str) -> None:
    one = thinker()
    assert takes(one, text[:-1])
    assert not one.take(ord(text[-1]))
    assert ord(text[-1]) not in allowed(one)


def test_what_the_prompt_has_opened_is_free_up_to_the_closing_tag() -> None:
    one = thinker(is_thinking=True)
    assert takes(one, 'anything: {"a": "b"}')
    assert not one.take(END)
    assert END not in allowed(one)
    assert takes(one, "</reason>")
    assert allowed(one) == [ord("{")]
    assert not takes(one, "x")
    assert takes(one, '\n{"a":1}')
    assert one.is_finished


def test_the_end_of_the_answer_may_come_only_when_it_is_whole() -> None:
    one = thinker()
    assert END not in allowed(one)
    assert not one.take(END)
    assert takes(one, "<reason>")
    assert not one.take(END)


def test_tags_that_are_control_tokens_count_as_such_and_not_as_text() -> None:
    one = thinker(AS_TOKENS)
    assert OPEN in allowed(one)
    assert one.take(OPEN)
    assert takes(one, "thinking </think> of tags")
    assert one.take(CLOSE)
    assert takes(one, '\n\n{"a":1}')
    assert one.is_finished


def test_masks_hold_both_ways_as_long_as_both_are_open() -> None:
    one = thinker()
    assert {ord("{"), ord("<"), ord("\n")} <= set(allowed(one))
    assert takes(one, "<")
    assert allowed(one) == [ord("r")]


def test_what_the_mask_allows_is_taken_at_every_place() -> None:
    for is_thinking in (False, True):
        text = '<reason>ab{</reason>{"a": 12}'.removeprefix("<reason>" if is_thinking else "")
        for n in range(len(text)):
            for token in allowed(_after(text[:n], is_thinking))[::17]:
                assert _after(text[:n], is_thinking).take(token), (text[:n], token)


def _after(text: str, is_thinking: bool) -> Matcher:
    one = thinker(is_thinking=is_thinking)
    assert takes(one, text)
    return one
