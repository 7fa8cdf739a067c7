"""Anthropic's dialect: what a body becomes, and what is refused with which path."""

import json

import pytest
from anthropic_bodies import CALL, HI, LOG, PLACES, WEATHER, decode, document, prompt, text, turns

from localrun.core import Call, ChatPrompt, Choice, Done, Message, Tool, ToolCall, ToolChoice, Usage
from localrun.wire.anthropic import decode_count_tokens
from localrun.wire.anthropic_writer import AnthropicWriter


def test_a_plain_request():
    request = decode()
    expected = ChatPrompt((Message("user", "hi"),), may_not_think=True)
    assert request.call == Call("m", (expected,), {"num_predict": 9}, places=PLACES)
    assert (request.stream, request.ignored, request.shows_thinking) == (False, (), True)


def test_options_have_their_names_here():
    request = decode(
        max_tokens=7, temperature=0.5, top_p=0.25, top_k=3, stop_sequences=["a", "b"], stream=True
    )
    assert request.stream
    assert request.call.options == {
        "num_predict": 7,
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 3,
        "stop": ("a", "b"),
    }


def test_all_other_fields_may_be_null():
    names = ("system", "tools", "tool_choice", "thinking", "output_config", "stop_sequences")
    more = ("temperature", "top_p", "top_k", "stream", "mcp_servers", "metadata", "service_tier")
    assert decode(**dict.fromkeys(names + more)) == decode()


def test_what_only_their_servers_know_is_ignored():
    more = {"metadata": {"user_id": "u"}, "service_tier": "auto", "container": {"id": "x"}}
    request = decode(**more, cache_control={"type": "ephemeral"}, inference_geo="x", seed=3)
    assert request.call == decode().call
    assert request.ignored == ("seed",)


@pytest.mark.parametrize(
    "system", ["Be brief.", [text("Be "), text("brief.") | {"cache_control": {"type": "x"}}]]
)
def test_a_system_text_comes_first(system):
    first, second = prompt(system=system).messages
    assert (first, second) == (Message("system", "Be brief."), Message("user", "hi"))


@pytest.mark.parametrize("system", ["", []])
def test_an_empty_system_text_is_none(system):
    assert prompt(system=system).messages == (Message("user", "hi"),)


THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "s"}


@pytest.mark.parametrize(
    ("role", "content", "expected"),
    [
        ("user", [text("a"), text("b")], [Message("user", "ab")]),
        ("user", [], [Message("user")]),
        ("system", [text("a")], [Message("system", "a")]),
        (
            "assistant",
            [THOUGHT, text("Let me look."), CALL],
            [
                Message(
                    "assistant",
                    "Let me look.",
                    "Hm.",
                    (ToolCall("weather", {"city": "Oslo"}, "t1"),),
                )
            ],
        ),
        (
            "assistant",
            [CALL | {"input": {}}, CALL | {"id": "t2", "caller": {"type": "direct"}}],
            [
                Message(
                    "assistant",
                    tool_calls=(
                        ToolCall("weather", {}, "t1"),
                        ToolCall("weather", {"city": "Oslo"}, "t2"),
                    ),
                )
            ],
        ),
        (
            "user",
            [
                text("And?"),
                {"type": "tool_result", "tool_use_id": "t1", "content": "Rain"},
                {
                    "type": "tool_result",
                    "tool_use_id": "t2",
                    "content": [text("So"), text("me")],
                    "is_error": True,
                },
                {"type": "tool_result", "tool_use_id": "t3"},
            ],
            [
                Message("tool", "Rain", tool_call_id="t1"),
                Message("tool", "The call failed.\n\nSome", tool_call_id="t2"),
                Message("tool", "", tool_call_id="t3"),
                Message("user", "And?"),
            ],
        ),
        (
            "user",
            [{"type": "tool_result", "tool_use_id": "t1", "content": "Rain"}],
            [Message("tool", "Rain", tool_call_id="t1")],
        ),
    ],
)
def test_turns(role, content, expected):
    assert list(turns(*content, role=role)) == expected


@pytest.mark.parametrize(
    ("fields", "content"),
    [
        ({"content": "No such file"}, "The call failed.\n\nNo such file"),
        ({"content": [text("No such "), text("file")]}, "The call failed.\n\nNo such file"),
        (
            {"content": [text("Look:"), {"type": "document", "source": {**LOG, "title": "x"}}]},
            "The call failed.\n\nLook:\n\nIt broke.",
        ),
        ({"content": ""}, "The call failed."),
        ({"content": []}, "The call failed."),
        ({"content": None}, "The call failed."),
        ({}, "The call failed."),
        ({"content": "Rain", "is_error": False}, "Rain"),
        ({"content": "Rain", "is_error": None}, "Rain"),
    ],
)
def test_a_call_that_failed_says_so_and_loses_nothing(fields, content):
    (result,) = turns({"type": "tool_result", "tool_use_id": "t1", "is_error": True, **fields})
    assert result == Message("tool", content, tool_call_id="t1")


def test_blocks_that_nobody_here_can_use_are_passed_over_and_named():
    blocks = [
        {"type": "redacted_thinking", "data": "x"},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": {"type": "error"}},
        text("hi"),
    ]
    request = decode(messages=[{"role": "user", "content": blocks}])
    assert request.call.prompts == decode().call.prompts
    assert request.ignored == tuple(block["type"] for block in blocks[:-1])


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (document(LOG), "It broke."),
        (document(LOG, title=None, context=None, citations={"enabled": True}), "It broke."),
        (document(LOG, title="Log", context="Of May."), "Log\n\nOf May.\n\nIt broke."),
        (document({"type": "content", "content": "It broke."}), "It broke."),
        (document({"type": "content", "content": [text("It "), text("broke.")]}), "It broke."),
        (
            {"type": "search_result", "source": "x", "title": "t", "content": [text("x")]},
            "t\n\nx",
        ),
    ],
)
def test_documents_of_text_are_text_of_the_turn(block, expected):
    said = [text("Look: "), text("here"), block, text("Why?"), text(" And how?")]
    (message,) = turns(*said)
    assert message == Message("user", f"Look: here\n\n{expected}\n\nWhy? And how?")
    (result,) = turns({"type": "tool_result", "tool_use_id": "t1", "content": [block]})
    assert result == Message("tool", expected, tool_call_id="t1")
    assert decode(messages=[{"role": "user", "content": [block]}]).ignored == ()


def test_tools_with_their_schemas():
    schema = {"type": "object", "properties": {"b": {"type": "string"}, "a": {}}}
    tool = {"name": "f", "input_schema": schema, "type": "custom", "strict": True}
    found = prompt(tools=[WEATHER, tool])
    assert found.tools == (
        Tool("weather", "Tells it", {"type": "object"}),
        Tool("f", "", schema, "tools[1].input_schema"),
    )
    assert list(found.tools[1].parameters["properties"]) == ["b", "a"]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice()),
        ({"type": "auto"}, ToolChoice()),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(is_parallel=False)),
        ({"type": "any"}, ToolChoice(is_required=True)),
        ({"type": "any", "disable_parallel_tool_use": True}, ToolChoice(True, "", False)),
        ({"type": "tool", "name": "weather"}, ToolChoice(True, "weather")),
    ],
)
def test_which_tool_has_to_be_called(choice, expected):
    found = prompt(tools=[WEATHER], tool_choice=choice)
    assert (len(found.tools), found.choice) == (1, expected)


def test_no_tool_may_be_called():
    found = prompt(tools=[WEATHER], tool_choice={"type": "none"})
    assert (found.tools, found.choice) == ((), ToolChoice())


@pytest.mark.parametrize(
    ("thinking", "effort", "think"),
    [
        (None, None, None),
        ({"type": "enabled", "budget_tokens": 2048}, None, True),
        ({"type": "disabled"}, None, False),
        ({"type": "adaptive"}, None, None),
        ({"type": "between_tools"}, None, None),
        ({"type": "adaptive", "display": None, "budget_tokens": None}, None, None),
        ({"type": "disabled"}, "high", False),
        ({"type": "enabled", "budget_tokens": 1}, "low", "low"),
        ({"type": "adaptive"}, "medium", "medium"),
        (None, "high", "high"),
        (None, "xhigh", "high"),
        (None, "max", "max"),
    ],
)
def test_thinking(thinking, effort, think):
    found = prompt(thinking=thinking, output_config={"effort": effort})
    assert (found.think, found.may_not_think) == (think, True)


def test_thinking_may_be_left_out_of_the_reply():
    assert not decode(thinking={"type": "adaptive", "display": "omitted"}).shows_thinking
    assert decode(thinking={"type": "adaptive", "display": "summarized"}).shows_thinking


def test_a_schema_for_the_answer():
    schema = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "null"}}}
    call = decode(output_config={"format": {"type": "json_schema", "schema": schema}}).call
    assert json.loads(call.schema or "") == schema
    assert (call.schema or "").index('"b"') < (call.schema or "").index('"a"')


def test_an_older_place_of_the_schema_is_read():
    form = {"type": "json_schema", "schema": {"type": "boolean"}}
    assert json.loads(decode(output_format=form).call.schema or "") == {"type": "boolean"}


def test_a_count_needs_no_limit_and_has_the_same_prompt():
    more = {"system": "Be brief.", "tools": [WEATHER], "thinking": {"type": "disabled"}}
    body = {"model": "m", "messages": HI, **more}
    call = decode_count_tokens(json.dumps(body).encode())
    assert call.prompts == decode(**more).call.prompts


@pytest.mark.parametrize(
    ("done", "reason", "stop"),
    [
        (Done("stop", Usage()), "end_turn", None),
        (Done("length", Usage()), "max_tokens", None),
        (Done("stop", Usage(), stop_text="END"), "stop_sequence", "END"),
    ],
)
def test_why_a_message_has_ended(done, reason, stop):
    message = json.loads(AnthropicWriter("m", "req_1").whole([Choice("", done)]))
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, stop)
    streamed = AnthropicWriter("m", "req_1").final(done)
    delta = json.loads(streamed.split(b"\n")[1].removeprefix(b"data: "))["delta"]
    assert delta == {"stop_reason": reason, "stop_sequence": stop}


def test_tokens_that_the_window_does_not_hold_are_shown():
    done = Done("stop", Usage(prompt_count=8, dropped_count=5))
    message = json.loads(AnthropicWriter("m", "req_1").whole([Choice("", done)]))
    assert message["usage"]["dropped_tokens"] == 5


def test_ids_have_anthropics_form():
    first, second = (
        json.loads(AnthropicWriter("m", "req_1").whole([Choice("", Done("stop", Usage()))]))["id"]
        for _ in range(2)
    )
    assert first != second
    assert (first[:4], len(first)) == ("msg_", 28)
