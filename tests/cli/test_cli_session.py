"""The chat prompt's state machine: lines in, actions out."""

from typing import Any

import pytest

from cli.session import HELP, Ask, Format, Leave, Say, Session, Show, Think

USER = "user"


def feed(session: Session, *lines: str) -> list[Any]:
    return [action for line in lines for action in session.feed(line)]


def asked(*contents: str) -> list[dict[str, str]]:
    roles = (USER, "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]


@pytest.mark.parametrize(
    ("lines", "actions"),
    [
        (["hello"], [Ask({"messages": asked("hello")})]),
        (["  "], []),
        (["/bye"], [Leave()]),
        (["/exit"], [Leave()]),
        (["/?"], [Say(HELP.rstrip("\n"))]),
        (["/byebye"], [Say("`/byebye` is not a command; `/?` lists them")]),
        (['"""one line"""'], [Ask({"messages": asked("one line")})]),
        (['"""first', "", 'last"""'], [Ask({"messages": asked("first\n\nlast")})]),
        (['"""', "body", '"""'], [Ask({"messages": asked("body\n")})]),
        (['"""', '"""'], []),
        (["pasted\nlines"], [Ask({"messages": asked("pasted\nlines")})]),
        (["/show"], [Show("info", {})]),
        (["/show system"], [Show("system", {})]),
        (
            ["/set system be brief", "/show system"],
            [Say("system message set"), Show("system", {}, "be brief")],
        ),
        (["/set verbose"], [Say("timings are shown")]),
        (
            ["/set"],
            [
                Say(
                    "`/set` takes system, parameter, think, nothink, format, noformat, verbose or "
                    "quiet; `/?` explains them"
                )
            ],
        ),
        (["/set think"], [Think(True)]),
        (["/set think high"], [Think("high")]),
        (["/set think false"], [Say("the model answers at once")]),
        (["/set nothink"], [Say("the model answers at once")]),
        (
            ["/set think hard"],
            [
                Say(
                    "`/set think` takes a level: `hard` is none of true, false, low, medium, high, "
                    "max"
                )
            ],
        ),
        (["/set format json"], [Say("answers are JSON")]),
        (["/set noformat"], [Say("answers are free text")]),
        (
            ["/set format"],
            [
                Say(
                    "answers are free text; `/set format` takes `json`, a JSON schema or the name "
                    "of a file with one"
                )
            ],
        ),
        (["/set format schema.json"], [Format("schema.json")]),
        (['/set format {"type": "object"}'], [Format('{"type": "object"}')]),
        (["/set parameter top_k 5"], [Say("top_k is 5")]),
        (
            ["/set parameter top_k many"],
            [Say('option "top_k" must be of type integer')],
        ),
        (["/set parameter top_p 2"], [Say('option "top_p" must be from 0 to 1, not 2')]),
    ],
)
def test_lines_to_actions(lines: list[str], actions: list[Any]) -> None:
    assert feed(Session(), *lines) == actions


def test_the_whole_conversation_is_sent() -> None:
    session = Session()
    feed(session, "one")
    session.answered("1")
    assert feed(session, "two") == [Ask({"messages": asked("one", "1", "two")})]


def test_a_question_without_answer_is_taken_back() -> None:
    session = Session()
    feed(session, "one")
    session.answered("")
    assert feed(session, "two") == [Ask({"messages": asked("two")})]


def test_clear_keeps_system_message_and_options() -> None:
    session = Session()
    feed(session, "/set system be brief", "/set parameter temperature 0.5", "one")
    session.answered("1")
    feed(session, "/clear")
    assert feed(session, "two") == [
        Ask(
            {
                "messages": [{"role": "system", "content": "be brief"}, *asked("two")],
                "options": {"temperature": 0.5},
            }
        )
    ]


def test_thinking_and_format_are_sent_until_they_are_changed() -> None:
    session = Session(think=False, format={"type": "object"})
    (first,) = feed(session, "one")
    assert (first.body["think"], first.body["format"]) == (False, {"type": "object"})
    session.answered("1", "hm")
    assert session.set_think("high") == Say("the model thinks before it answers (high)")
    *_, second = feed(session, "/set format json", "two")
    assert (second.body["think"], second.body["format"]) == ("high", "json")
    assert second.body["messages"][1] == {"role": "assistant", "content": "1", "thinking": "hm"}
    session.answered("")
    (said,) = feed(session, "/set format")
    assert said.text.startswith("answers are JSON; ")
    assert session.set_format({}) == Say("answers are JSON that matches the schema")
    *_, third = feed(session, "/set noformat", "/set nothink", "three")
    assert "format" not in third.body
    assert third.body["think"] is False
    assert "think" not in feed(Session(), "one")[0].body


def test_system_message_of_several_lines() -> None:
    session = Session()
    feed(session, '/set system """be', 'brief"""')
    assert session.system == "be\nbrief"


def test_prompt_and_discard() -> None:
    session = Session()
    assert session.prompt == ">>> "
    feed(session, '"""open')
    assert session.prompt == "... "
    session.discard()
    assert session.prompt == ">>> "
    assert feed(session, "next") == [Ask({"messages": asked("next")})]


def test_stop_takes_several_words() -> None:
    session = Session()
    feed(session, "/set parameter stop a b", "/set parameter use_mmap false")
    assert session.options == {"stop": ("a", "b"), "use_mmap": False}


def test_unknown_parameter_names_the_known_ones() -> None:
    (said,) = feed(Session(), "/set parameter temprature 1")
    assert "unknown parameter `temprature`" in said.text
    assert "temperature" in said.text
