"""OpenAI's responses: which conversation the input is."""

import pytest
from response_bodies import CALL, CALLED, RESULT, messages, prompt, said, thought, written

from localrun.core import (
    Message,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    ToolCallDelta,
)


def test_instructions_stand_in_front():
    assert prompt(instructions="Be brief.").messages == (
        Message("system", "Be brief."),
        Message("user", "hi"),
    )


@pytest.mark.parametrize("content", ["ab", [{"type": "input_text", "text": "ab"}]])
@pytest.mark.parametrize("kind", [{}, {"type": "message"}, {"type": None}])
def test_forms_of_a_message(content, kind):
    assert messages({"role": "user", "content": content, **kind}) == (Message("user", "ab"),)


def test_parts_are_joined_and_roles_have_older_names():
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    found = messages({"role": "developer", "content": parts}, {"role": "User", "content": []})
    assert found == (Message("system", "ab"), Message("user", ""))


def test_a_call_and_its_result():
    assert messages(said("hi", "user"), CALL, RESULT) == (
        Message("user", "hi"),
        Message("assistant", tool_calls=(CALLED,)),
        Message("tool", "20 C", tool_call_id="c1"),
    )


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("a", "a"),
        ("", ""),
        ([{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}], "ab"),
        ([], ""),
        (None, ""),
    ],
)
def test_forms_of_a_result(output, text):
    assert messages(RESULT | {"output": output}) == (Message("tool", text, tool_call_id="c1"),)


def test_what_an_assistant_said_in_one_turn_is_one_message():
    items = [said("hi", "user"), thought("Hm."), said("Let me look."), CALL, CALL, RESULT]
    items += [thought("Ah."), said("It is"), said("warm."), said("thanks", "user")]
    assert messages(*items) == (
        Message("user", "hi"),
        Message("assistant", "Let me look.", "Hm.", (CALLED, CALLED)),
        Message("tool", "20 C", tool_call_id="c1"),
        Message("assistant", "It is\n\nwarm.", "Ah."),
        Message("user", "thanks"),
    )


def test_reasoning_that_led_to_nothing_is_left_out():
    assert messages(said("a", "user"), thought("Hm."), said("b", "user")) == (
        Message("user", "a"),
        Message("user", "b"),
    )


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "e"}, "s"),
        (
            {
                "summary": [{"type": "summary_text", "text": "s"}],
                "content": [{"type": "reasoning_text", "text": "c"}],
            },
            "c",
        ),
        ({"summary": [], "encrypted_content": "e"}, "e"),
        ({"summary": [], "encrypted_content": "gAAAAABo1"}, ""),
        ({"summary": []}, ""),
    ],
)
def test_where_reasoning_is_read(item, expected):
    (message,) = messages({"type": "reasoning", **item}, said("a"))
    assert message == Message("assistant", "a", expected)


def test_a_call_in_a_namespace_has_both_names():
    found = messages(CALL | {"namespace": "crm"}, RESULT | {"namespace": "crm", "name": "f"})
    assert found[0].tool_calls == (ToolCall("crm.f", {"x": 1}, "c1"),)
    assert found[1] == Message("tool", "20 C", tool_name="crm.f", tool_call_id="c1")


def test_what_a_reply_holds_can_be_sent_back():
    whole, _ = written(ThinkingDelta("Hm."), TextDelta("Look."), ToolCallDelta(CALLED))
    assert messages(*whole["output"], RESULT)[0] == Message("assistant", "Look.", "Hm.", (CALLED,))
