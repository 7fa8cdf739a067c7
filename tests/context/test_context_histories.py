"""Calls and their results in the history of a conversation."""

import itertools

import pytest
from tool_prompts import (
    CHATML,
    HISTORY,
    LIMA,
    OSLO,
    PLAIN,
    compose,
    text_of,
)

from localrun.core import (
    Message,
    ToolCall,
)
from localrun.runner.prompt.histories import with_names


def results(*wishes: dict[str, str]) -> list[Message]:
    named = [Message("tool", str(n), **wish) for n, wish in enumerate(wishes)]
    return [Message("assistant", "", tool_calls=(OSLO, LIMA)), *named]


@pytest.mark.parametrize(
    ("wishes", "ids"),
    [
        (({}, {}), [OSLO.id, LIMA.id]),
        (({"tool_name": "get_weather"}, {"tool_name": "get_weather"}), [OSLO.id, LIMA.id]),
        (({"tool_call_id": LIMA.id}, {"tool_call_id": OSLO.id}), [OSLO.id, LIMA.id]),
        (({"tool_call_id": LIMA.id}, {}), [OSLO.id, LIMA.id]),
        (({"tool_call_id": "other"}, {"tool_call_id": LIMA.id}), [LIMA.id, "other"]),
        (({"tool_call_id": "other"}, {"tool_name": "other"}), ["other", ""]),
    ],
)
def test_a_result_finds_its_call(wishes: tuple[dict[str, str], ...], ids: list[str]) -> None:
    named = with_names(results(*wishes))[1:]
    assert [message.tool_call_id for message in named] == ids
    known = [m for m in named if m.tool_call_id in (OSLO.id, LIMA.id)]
    assert all(m.tool_name == "get_weather" for m in known)


@pytest.mark.parametrize("template", [CHATML, PLAIN])
def test_results_are_in_the_order_of_their_calls(template: str) -> None:
    """Templates without ids pair them by it."""
    user, calls, oslo, lima = HISTORY
    more = (Message("assistant", "Again.", tool_calls=(OSLO, LIMA)), oslo, lima)
    late = (Message("assistant", "Again.", tool_calls=(OSLO, LIMA)), lima, oslo)
    expected = text_of(compose(template, user, calls, oslo, lima, *more))
    assert text_of(compose(template, user, calls, lima, oslo, *late)) == expected


def test_calls_without_ids_get_the_same_ones_each_time() -> None:
    bare = Message("assistant", "", tool_calls=(ToolCall("f", {}), ToolCall("g", {})))
    history = [bare, Message("tool", "1"), Message("tool", "2", tool_name="g")]
    named = with_names(history)
    assert named == with_names(history)
    ids = [call.id for call in named[0].tool_calls]
    assert len(set(ids)) == 2
    assert [(m.tool_call_id, m.tool_name) for m in named[1:]] == [(ids[0], "f"), (ids[1], "g")]


@pytest.mark.parametrize("template", [CHATML, PLAIN])
def test_what_programs_leave_out_of_a_result_does_not_change_the_prompt(template: str) -> None:
    """ollama-python drops ids, others drop names."""
    prompts = set()
    for has_id, has_name in itertools.product((True, False), repeat=2):
        result = Message(
            "tool",
            "it rains",
            tool_name="get_weather" if has_name else "",
            tool_call_id=OSLO.id if has_id else "",
        )
        call = Message("assistant", "", tool_calls=(OSLO,))
        prompts.add(text_of(compose(template, Message("user", "hi"), call, result)))
    assert len(prompts) == 1


def test_templates_that_are_strict_about_calls_get_them_their_way() -> None:
    short = "{% for m in messages %}{% for c in m.tool_calls %}{% if c.id | length != 9 %}"
    short += "{{ raise_exception('ids have nine characters') }}{% endif %}{{ c.id }}:"
    short += "{{ c.function.name }}{{ c.function.arguments.city }};{% endfor %}"
    short += "{{ m.content }}{{ m.tool_call_id }}.{% endfor %}"
    text = text_of(compose(short, *HISTORY))
    ids = [part.partition(":")[0].rpartition(".")[2] for part in text.split(";")[:2]]
    assert all(len(one) == 9 and one.isalnum() for one in ids)
    assert f"it rains{ids[0]}." in text

    single = "{% for m in messages %}{% if m.tool_calls | length > 1 %}"
    single += "{{ raise_exception('one at a time') }}{% endif %}{% if m.tool_calls %}"
    single += "{{ m.tool_calls[0].function.name }}{{ m.tool_calls[0].function.arguments.city }}"
    single += "{% else %}{{ m.content }}{% endif %}|{% endfor %}"
    assert text_of(compose(single, *HISTORY)) == (
        "How is it there?|Let me look.|get_weatherOslo|it rains|get_weatherLima|it is dry|"
    )
