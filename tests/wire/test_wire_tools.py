"""Tools and their calls: both dialects' requests → core values."""

import json
from typing import Any

import pytest
from decoding import BOTH, HI, native, openai, prompt

from localrun.core import Message, Tool, ToolCall, ToolChoice
from localrun.errors import BadRequest
from localrun.wire.native import decode_chat, decode_generate
from localrun.wire.openai import decode_chat_completions
from localrun.wire.tools import MAX_DEPTH, MAX_TOOLS, MAX_TOOLS_BYTES

PARAMETERS = {
    "type": "object",
    "required": ["city"],
    "properties": {"unit": {"enum": ["K", "C"]}, "city": {"type": "string"}},
}
WEATHER = Tool("get_weather", "Tells it", PARAMETERS)
TIME = Tool("time.now-2")


def wire(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function | {"strict": False}}


TOOLS = [wire(WEATHER), wire(TIME)]


# ---- definitions


@BOTH
def test_tools_arrive_with_their_keys_in_order(decode):
    found = prompt(decode(tools=TOOLS))
    assert found.tools == (WEATHER, TIME)
    assert list(found.tools[0].parameters) == ["type", "required", "properties"]
    assert list(found.tools[0].parameters["properties"]) == ["unit", "city"]
    assert found.choice == ToolChoice()


@BOTH
def test_a_strict_tool_knows_its_place(decode):
    strict = {"type": "function", "function": {"name": "f", "strict": True}}
    found = prompt(decode(tools=[*TOOLS, strict])).tools
    assert [tool.strict_path for tool in found] == ["", "", "tools[2].function.parameters"]


@BOTH
@pytest.mark.parametrize("tools", [None, []])
def test_no_tools(decode, tools):
    assert prompt(decode(tools=tools)).tools == ()


@BOTH
@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        ({"function": {"name": "f"}}, Tool("f")),
        ({"function": {"name": "f", "parameters": None, "description": None}}, Tool("f")),
        (
            {"function": {"name": "f", "parameters": {"type": "", "properties": None}}},
            Tool("f"),
        ),
        (
            {"function": {"name": "f", "parameters": {"foo": "bar"}}},
            Tool("f", parameters={"foo": "bar"}),
        ),
        (
            {"function": {"name": "f", "parameters": {"type": ["object", "null"]}}},
            Tool("f", parameters={"type": ["object", "null"]}),
        ),
    ],
)
def test_definitions_may_leave_much_out(decode, definition, expected):
    assert prompt(decode(tools=[definition])).tools == (expected,)


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **fields}}


def nested(n_levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(n_levels - 1):
        value = {"items": value}
    return value


@BOTH
@pytest.mark.parametrize(
    ("tools", "path"),
    [
        ("f", "tools"),
        (["f"], "tools[0]"),
        ([function(), {"type": "function"}], "tools[1].function"),
        ([{"type": "custom", "custom": {"name": "f"}}], "tools[0].type"),
        ([{"function": {}}], "tools[0].function.name"),
        ([function(name="")], "tools[0].function.name"),
        ([function(name="two words")], "tools[0].function.name"),
        ([function(name="naïve")], "tools[0].function.name"),
        ([function(name="f\n")], "tools[0].function.name"),
        ([function(name="f" * 257)], "tools[0].function.name"),
        ([function(name=3)], "tools[0].function.name"),
        ([function(), function()], "tools[1].function.name"),
        ([function(description=3)], "tools[0].function.description"),
        ([function(parameters=[])], "tools[0].function.parameters"),
        ([function(parameters={"type": "string"})], "tools[0].function.parameters.type"),
        ([function(parameters={"properties": ["a"]})], "tools[0].function.parameters.properties"),
        ([function(parameters={"required": "a"})], "tools[0].function.parameters.required"),
        ([function(parameters=nested(MAX_DEPTH + 1))], "tools[0].function.parameters"),
        ([function(name=f"f{i}") for i in range(MAX_TOOLS + 1)], "tools"),
        ([function(description="x" * MAX_TOOLS_BYTES)], "tools"),
    ],
)
def test_a_bad_definition_is_named_by_its_path(decode, tools, path):
    with pytest.raises(BadRequest) as caught:
        decode(tools=tools)
    assert caught.value.path == path


def test_names_may_be_longer_natively():
    for n_chars, is_openai in ((64, True), (65, False)):
        tools = [function(name="f" * n_chars)]
        assert prompt(native(tools=tools)).tools
        if is_openai:
            assert prompt(openai(tools=tools)).tools
        else:
            with pytest.raises(BadRequest, match="1 to 64"):
                openai(tools=tools)


@BOTH
def test_definitions_at_the_bounds_pass(decode):
    parameters = nested(MAX_DEPTH)
    assert prompt(decode(tools=[function(parameters=parameters)])).tools[0].parameters == parameters
    many = [function(name=f"f{i}") for i in range(MAX_TOOLS)]
    assert len(prompt(decode(tools=many)).tools) == MAX_TOOLS


# ---- which tool

NAMED = {"type": "function", "function": {"name": WEATHER.name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize(
    ("choice", "tools", "expected"),
    [
        (None, (WEATHER, TIME), ToolChoice()),
        ("auto", (WEATHER, TIME), ToolChoice()),
        ("none", (), ToolChoice()),
        ("required", (WEATHER, TIME), ToolChoice(is_required=True)),
        (NAMED, (WEATHER, TIME), ToolChoice(is_required=True, name="get_weather")),
        (
            {"type": "function", "name": "get_weather"},
            (WEATHER, TIME),
            ToolChoice(is_required=True, name="get_weather"),
        ),
        (allowed("auto", TIME.name), (TIME,), ToolChoice()),
        (allowed("required", TIME.name, TIME.name), (TIME,), ToolChoice(is_required=True)),
    ],
)
def test_tool_choice(choice, tools, expected):
    found = prompt(openai(tools=TOOLS, tool_choice=choice))
    assert (found.tools, found.choice) == (tools, expected)


def test_calls_in_parallel_can_be_ruled_out():
    assert prompt(openai(tools=TOOLS, parallel_tool_calls=None)).choice.is_parallel
    found = prompt(openai(tools=TOOLS, parallel_tool_calls=False, tool_choice="required"))
    assert found.choice == ToolChoice(is_required=True, is_parallel=False)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": NAMED}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": 3}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice.function.name",
        ),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
        (
            {"tools": TOOLS, "tool_choice": allowed("auto", TIME.name, "g")},
            "tool_choice.allowed_tools.tools[1].function.name",
        ),
        (
            {"tools": TOOLS, "tool_choice": allowed("auto")},
            "tool_choice.allowed_tools.tools",
        ),
        (
            {"tools": TOOLS, "tool_choice": allowed("never", TIME.name)},
            "tool_choice.allowed_tools.mode",
        ),
        ({"tools": TOOLS, "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"functions": [{"name": "f"}], "function_call": "auto"}, "functions"),
    ],
)
def test_a_bad_choice_is_named_by_its_path(fields, path):
    with pytest.raises(BadRequest) as caught:
        openai(**fields)
    assert caught.value.path == path


def test_a_choice_without_tools_that_asks_for_nothing_passes():
    for choice in ("none", "auto"):
        assert prompt(openai(tool_choice=choice)).tools == ()
    openai(functions=[{"name": "f"}], function_call="none")
    openai(functions=[], function_call=None)


def test_ollama_has_no_choice():
    found = decode_chat(
        json.dumps({"model": "m", "messages": HI, "tools": TOOLS, "tool_choice": "none"}).encode()
    )
    assert prompt(found.call).tools == (WEATHER, TIME)
    assert found.ignored == ("tool_choice",)


def test_a_prompt_alone_is_offered_no_tools():
    body = {"model": "m", "prompt": "hi", "tools": TOOLS}
    assert decode_generate(json.dumps(body).encode()).ignored == ("tools",)


# ---- calls and results in the history


def called(arguments: Any, **fields: Any) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "tool_calls": [call], **fields}


@BOTH
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"b": 1, "a": [None, "ü"]}, {"b": 1, "a": [None, "ü"]}),
        ('{"b": 1, "a": [null, "\\u00fc"]}', {"b": 1, "a": [None, "ü"]}),
        ("", {}),
        ("  ", {}),
        ("{}", {}),
        ("null", {}),
        (None, {}),
        ('{"cut": "\\ud83d"}', {"cut": "\ufffd"}),
        ({"n": [2**70, -(10**4000)]}, {"n": [2**70, -(10**4000)]}),
        ('{"n": 123456789012345678901234567890}', {"n": 123456789012345678901234567890}),
        ({"n": -(2**63)}, {"n": -(2**63)}),
    ],
)
def test_arguments_are_an_object_or_the_text_of_one(decode, arguments, expected):
    (message,) = prompt(decode(messages=[called(arguments)])).messages
    assert message == Message("assistant", tool_calls=(ToolCall("f", expected, "c1"),))
    assert list(message.tool_calls[0].arguments) == list(expected)


@BOTH
@pytest.mark.parametrize(
    "arguments",
    ["[1]", "x", "{", '"{}"', 3, [], True, '{"n": 1e400}', nested(MAX_DEPTH + 1), "[" * 100_000],
)
def test_arguments_that_are_no_object_are_refused(decode, arguments):
    with pytest.raises(BadRequest) as caught:
        decode(messages=[*HI, called(arguments)])
    assert caught.value.path == "messages[1].tool_calls[0].function.arguments"


@BOTH
@pytest.mark.parametrize("call", [{}, {"function": {}}, {"function": {"name": 3}}, "f"])
def test_a_call_without_a_name_is_refused(decode, call):
    with pytest.raises(BadRequest) as caught:
        decode(messages=[{"role": "assistant", "tool_calls": [call]}])
    assert caught.value.path.startswith("messages[0].tool_calls[0]")


ABSENT = object()


@BOTH
@pytest.mark.parametrize("content", [None, "", [], ABSENT])
def test_content_beside_calls_may_be_empty_in_any_form(decode, content):
    fields = {} if content is ABSENT else {"content": content}
    (message,) = prompt(decode(messages=[called({}, **fields)])).messages
    assert message == Message("assistant", tool_calls=(ToolCall("f", {}, "c1"),))


@BOTH
@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("22 °C", "22 °C"),
        ([{"type": "text", "text": "22 "}, {"type": "text", "text": "°C"}], "22 °C"),
        ([], ""),
        ("", ""),
        (None, ""),
        (ABSENT, ""),
    ],
)
def test_a_result_is_text_parts_or_nothing(decode, content, text):
    result: dict[str, Any] = {"role": "tool", "tool_call_id": "c1"}
    if content is not ABSENT:
        result["content"] = content
    found = prompt(decode(messages=[called({}), result])).messages[1]
    assert found == Message("tool", text, tool_call_id="c1")


@BOTH
@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([{"type": "text", "text": "a b"}], "a b"),
        ([{"type": "text", "text": "a "}, {"type": "text", "text": "b"}], "a b"),
        ([{"type": "text", "text": None}, {"type": "refusal", "refusal": "a b"}], "a b"),
        ([], ""),
    ],
)
def test_every_role_may_say_its_text_in_parts(decode, role, parts, text):
    assert prompt(decode(messages=[{"role": role, "content": parts}])).messages[0].content == text
    with pytest.raises(BadRequest, match="odd") as caught:
        decode(messages=[{"role": role, "content": [*parts, {"type": "odd"}]}])
    assert caught.value.path == f"messages[0].content[{len(parts)}].type"


@BOTH
@pytest.mark.parametrize("number", ["1e400", "-1e999", "9" * 5000])
def test_a_number_that_is_too_large_is_refused_where_it_stands(decode, number):
    message = called({"n": "NUMBER"})
    body = json.dumps({"model": "m", "messages": [*HI, message]}).replace('"NUMBER"', number)
    with pytest.raises(BadRequest, match="out of range") as caught:
        (decode_chat if decode is native else decode_chat_completions)(body.encode())
    assert caught.value.path.startswith("messages[1].tool_calls[0].function.arguments")


def test_who_never_calls_has_no_calls():
    for role in ("user", "system", "tool"):
        request = decode_chat(
            json.dumps({"model": "m", "messages": [called({}, role=role, content="x")]}).encode()
        )
        assert prompt(request.call).messages == (Message(role, "x"),)
        assert request.ignored == ("messages.tool_calls",)
    request = decode_chat(json.dumps({"model": "m", "messages": [called({}), *HI]}).encode())
    assert request.ignored == ()


@pytest.mark.parametrize("role", ["ipython", "observation", "Control"])
def test_natively_a_template_may_know_other_roles(role):
    (message,) = prompt(native(messages=[{"role": role, "content": "x"}])).messages
    assert message == Message(role.lower(), "x")


def test_text_thinking_and_calls_of_one_message_all_arrive():
    expected = Message("assistant", "Let me look.", "hm", (ToolCall("f", {"x": 1}, "c1"),))
    said = called({"x": 1}, content="Let me look.")
    assert prompt(native(messages=[said | {"thinking": "hm"}])).messages == (expected,)
    for name in ("reasoning", "reasoning_content"):
        assert prompt(openai(messages=[said | {name: "hm"}])).messages == (expected,)


def test_the_name_of_a_tool_stands_beside_its_result_in_either_dialect():
    expected = (Message("tool", "1", tool_name="f"),)
    assert (
        prompt(native(messages=[{"role": "tool", "content": "1", "tool_name": "f"}])).messages
        == expected
    )
    assert (
        prompt(openai(messages=[{"role": "tool", "content": "1", "name": "f"}])).messages
        == expected
    )


def test_calls_of_the_older_form_are_read():
    history = [
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "1"},
    ]
    assert prompt(openai(messages=history)).messages == (
        Message("assistant", tool_calls=(ToolCall("f", {}),)),
        Message("tool", "1", tool_name="f"),
    )
    history[0]["function_call"] = {"name": "f", "arguments": "[]"}
    with pytest.raises(BadRequest) as caught:
        openai(messages=history)
    assert caught.value.path == "messages[0].function_call.arguments"
