"""OpenAI's responses: what a body becomes, and what is refused."""

import json

import pytest
from response_bodies import (
    CALL,
    RESULT,
    SCHEMA,
    decode,
    function,
    messages,
    prompt,
    said,
)

from localrun.core import (
    ChatPrompt,
    Message,
    Tool,
    ToolChoice,
)
from localrun.errors import BadRequest, Unsupported
from localrun.wire.responses import decode_responses

# ---- requests


def test_defaults_are_openais_and_nothing_is_kept():
    request = decode()
    assert request.call.prompts == (ChatPrompt((Message("user", "hi"),)),)
    assert request.call.options == {"temperature": 1.0, "top_p": 1.0}
    assert request.call.cuts is False
    assert (request.stream, request.ignored, request.has_encrypted) == (False, (), False)
    assert request.echo["store"] is False
    assert request.echo["truncation"] == "disabled"
    assert json.loads(bytes(request.echo["text"])) == {"format": {"type": "text"}}


# Everything that clients send: names from the client's own types.
_NAMES = (
    *("access_programs", "background", "background_options", "context_management", "conversation"),
    *("image", "include", "instructions", "max_output_tokens", "max_tool_calls", "metadata"),
    *("moderation", "parallel_tool_calls", "previous_response_id", "prompt", "prompt_cache_key"),
    *("prompt_cache_options", "prompt_cache_retention", "reasoning", "safety_identifier"),
    *("service_tier", "store", "stream_options", "temperature", "text", "tool_choice", "tools"),
    *("top_logprobs", "top_p", "truncation", "user", "stream"),
)


def test_all_fields_may_be_null():
    assert decode(**dict.fromkeys(_NAMES)) == decode()


@pytest.mark.parametrize(
    "fields",
    [
        {"store": True},
        {"background": False},
        {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "metadata": {"a": "b"}},
        {"service_tier": "flex", "stream_options": {"include_obfuscation": True}},
        {"include": ["file_search_call.results", "of tomorrow"]},
        {"tools": [], "context_management": [], "previous_response_id": "", "max_tool_calls": 3},
        {"image": {"context_compression": "auto"}, "prompt_cache_options": {"mode": "implicit"}},
    ],
)
def test_what_changes_no_answer_here_is_no_error(fields):
    assert decode(**fields).call == decode().call
    assert decode(**fields).ignored == ()


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"max_tool_calls": -1}, "max_tool_calls"),
        ({"max_output_tokens": 2**40}, "max_output_tokens"),
        (
            {"text": {"format": {"type": "json_schema", "name": None, "schema": {}}}},
            "text.format.name",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_place(fields, path):
    with pytest.raises(BadRequest) as error:
        decode(**fields)
    assert error.value.path == path


def test_sampling_and_limits_arrive_as_options():
    options = decode(max_output_tokens=5, temperature=0, top_p=0.5).call.options
    assert options == {"num_predict": 5, "temperature": 0.0, "top_p": 0.5}


def test_names_without_effect_are_reported():
    ignored = decode(seed=1, stop=["x"], text={"verbosity": "low"}, top_logprobs=3).ignored
    assert ignored == ("seed", "stop", "top_logprobs", "text.verbosity")


def test_logprobs_are_asked_for_by_include():
    include = ["message.output_text.logprobs"]
    assert decode(include=include).call.top_logprobs == 0
    assert decode(include=include, top_logprobs=3).call.top_logprobs == 3
    assert decode(top_logprobs=3).call.top_logprobs is None


@pytest.mark.parametrize(
    ("truncation", "cuts"), [(None, False), ("disabled", False), ("auto", True)]
)
def test_a_prompt_is_cut_only_if_asked_for(truncation, cuts):
    assert decode(truncation=truncation).call.cuts is cuts


@pytest.mark.parametrize(
    ("form", "schema"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_schema", "name": "x", "strict": True, "schema": SCHEMA}, SCHEMA),
    ],
)
def test_formats(form, schema):
    call = decode(text={"format": form}).call
    assert call.places["format"] == "text.format.schema"
    if schema is None:
        assert call.schema is None
    else:
        # With its keys in their order.
        assert json.dumps(json.loads(call.schema or "")) == json.dumps(schema)


def test_effort_says_how_much_to_think():
    efforts = ("none", "minimal", "high", None)
    thinks = [prompt(reasoning={"effort": effort, "summary": "auto"}).think for effort in efforts]
    assert thinks == [False, "low", "high", None]


def test_tools_stand_flat():
    found = prompt(tools=[function("f", description="d", strict=True), function("g")])
    strict = Tool("f", "d", SCHEMA, "tools[0].parameters")
    assert found.tools == (strict, Tool("g", "", SCHEMA))
    assert found.choice == ToolChoice()


def test_functions_of_a_namespace_are_called_by_both_names():
    space = {"type": "namespace", "name": "crm", "description": "d", "tools": [function("get")]}
    request = decode(tools=[function("get"), space])
    (found,) = request.call.prompts
    assert [tool.name for tool in found.tools] == ["get", "crm.get"]
    assert request.namespaces == {"crm.get": ("crm", "get")}
    assert json.loads(bytes(request.echo["tools"]))[1] == space


def test_a_strict_tool_knows_its_place():
    space = {"type": "namespace", "name": "crm", "tools": [function("g", strict=True)]}
    found = prompt(tools=[function("f", strict=False), space])
    places = [tool.strict_path for tool in found.tools]
    assert places == ["", "tools[1].tools[0].parameters"]


F, G = Tool("f", "", SCHEMA), Tool("g", "", SCHEMA)


@pytest.mark.parametrize(
    ("choice", "tools", "expected"),
    [
        ("auto", (F, G), ToolChoice(is_parallel=False)),
        ("none", (), ToolChoice()),
        ("required", (F, G), ToolChoice(is_required=True, is_parallel=False)),
        ({"type": "function", "name": "g"}, (F, G), ToolChoice(True, "g", False)),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "g"}],
            },
            (G,),
            ToolChoice(is_required=True, is_parallel=False),
        ),
    ],
)
def test_choices_of_tools(choice, tools, expected):
    wanted = [function("f"), function("g")]
    found = prompt(tools=wanted, tool_choice=choice, parallel_tool_calls=False)
    assert (found.tools, found.choice) == (tools, expected)


# ---- refusals


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"model": None}, "model"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": ["hi"]}, "input[0]"),
        ({"input": [{}]}, "input[0].type"),
        ({"input": [{"type": "odd"}]}, "input[0].type"),
        ({"input": [{"type": "mcp_call", "output": {"x": 1}}]}, "input[0].type"),
        ({"input": [said("a"), {"type": "item_reference", "id": "msg_1"}]}, "input[1]"),
        ({"input": [{"role": "critic", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "input[0].content[0].text",
        ),
        (
            {"input": [{"type": "reasoning", "summary": [{"type": "summary_text"}]}]},
            "input[0].summary[0].text",
        ),
        ({"input": [{"role": "user", "content": [{"text": "x"}]}]}, "input[0].content[0]"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]},
            "input[0].content[0].type",
        ),
        ({"input": [CALL | {"arguments": "["}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call", "call_id": "c"}]}, "input[0].name"),
        ({"input": [CALL | {"name": ""}]}, "input[0].name"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [RESULT | {"call_id": ""}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        ({"input": [RESULT | {"output": [{"type": "odd"}]}]}, "input[0].output[0].type"),
        (
            {"input": [{"type": "reasoning", "summary": [{"type": "x"}]}]},
            "input[0].summary[0].type",
        ),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"conversation": {"id": "conv_1"}}, "conversation"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"moderation": {"model": "x"}}, "moderation"),
        ({"truncation": "some"}, "truncation"),
        ({"max_output_tokens": "10"}, "max_output_tokens"),
        ({"max_output_tokens": -7}, "max_output_tokens"),
        ({"max_output_tokens": -2}, "max_output_tokens"),
        ({"max_output_tokens": -1}, "max_output_tokens"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 1.5}, "max_output_tokens"),
        ({"top_p": 3}, "top_p"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"reasoning": {"effort": "some"}}, "reasoning.effort"),
        ({"text": {"format": "json"}}, "text.format"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        (
            {"text": {"format": {"type": "json_schema", "schema": {"type": "odd"}}}},
            "text.format.schema.type",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "custom", "name": "x"}]}, "tools[0].type"),
        ({"tools": [{"name": "x"}]}, "tools[0].type"),
        ({"tools": [function(), function()]}, "tools[1].name"),
        ({"tools": [function("a b")]}, "tools[0].name"),
        ({"tools": [function(parameters=3)]}, "tools[0].parameters"),
        ({"tools": [{"type": "namespace", "tools": []}]}, "tools[0].name"),
        (
            {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom"}]}]},
            "tools[0].tools[0].type",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [function()], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        (
            {"tools": [function()], "tool_choice": {"type": "function", "name": "g"}},
            "tool_choice.name",
        ),
        (
            {
                "tools": [function()],
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "g"}]},
            },
            "tool_choice.tools[0].name",
        ),
    ],
)
def test_what_is_wrong_is_refused_with_its_path(fields, path):
    with pytest.raises(BadRequest) as error:
        decode(**fields)
    assert error.value.path == path


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        (
            {"tools": [function()], "tool_choice": "f"},
            '{"type": "function", "name": "a tool\'s name"}',
        ),
        ({"input": [{"role": "user", "content": [{"type": "odd"}]}]}, 'use "input_text"'),
    ],
)
def test_advice_is_in_this_dialects_words(fields, advice):
    with pytest.raises(BadRequest) as error:
        decode(**fields)
    assert error.value.problem.endswith(advice)


@pytest.mark.parametrize(
    ("part", "capability"),
    [({"type": "input_image", "image_url": "data:"}, "vision"), ({"type": "input_audio"}, "audio")],
)
def test_images_and_sound_are_refused(part, capability):
    with pytest.raises(Unsupported) as error:
        messages({"role": "user", "content": [part]})
    assert (error.value.capability, error.value.path) == (capability, "input[0].content[0]")


@pytest.mark.parametrize("field", ["metadata", "tool_choice"])
def test_what_is_nested_too_deeply_is_refused(field):
    deep = '{"a":' * 5000 + "1" + "}" * 5000
    with pytest.raises(BadRequest, match="nested too deeply"):
        decode_responses(f'{{"model": "m", "input": "hi", "{field}": {deep}}}'.encode())
