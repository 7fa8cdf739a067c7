"""OpenAI's responses: what a body becomes, what is refused, and what replies consist of."""

import json
from typing import Any

import pytest
from response_events import Streamed, checked, parsed

from localrun.core import (
    ChatPrompt,
    Choice,
    Delta,
    Done,
    Likelihood,
    Message,
    TextDelta,
    ThinkingDelta,
    TokenLogprob,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolChoice,
    Usage,
)
from localrun.errors import BadRequest, Unsupported
from localrun.wire.faults import Fault
from localrun.wire.responses import ResponseRequest, decode_responses
from localrun.wire.responses_writer import ResponsesWriter

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "string"}}}


def decode(**fields: Any) -> ResponseRequest:
    return decode_responses(json.dumps({"model": "m", "input": "hi", **fields}).encode())


def prompt(**fields: Any) -> ChatPrompt:
    (found,) = decode(**fields).call.prompts
    assert isinstance(found, ChatPrompt)
    return found


def messages(*items: Any, **fields: Any) -> tuple[Message, ...]:
    return prompt(input=list(items), **fields).messages


def function(name: str = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": SCHEMA, **more}


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


# ---- input

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x": 1}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "20 C"}
CALLED = ToolCall("f", {"x": 1}, "c1")


def said(text: str, role: str = "assistant") -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": text}]}


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


# ---- replies

USAGE = Usage(prompt_count=9, cached_count=4, completion_count=3)
DONE = Done("stop", USAGE)
OSLO = ToolCall("weather", {"city": "Oslo"}, "call_1")


def writer(**fields: Any) -> ResponsesWriter:
    request = decode(**fields)
    return ResponsesWriter(
        "m",
        request.echo,
        namespaces=request.namespaces,
        has_encrypted=request.has_encrypted,
        clock_s=lambda: 7.5,
        key="k",
    )


def written(*pieces: Delta, done: Done = DONE, **fields: Any) -> tuple[dict[str, Any], Streamed]:
    """The whole reply and the stream, which say the same."""
    whole = json.loads(writer(**fields).whole([Choice("", done, pieces=pieces)]))
    stream = writer(**fields)
    data = stream.begin(9) + b"".join(map(stream.delta, pieces)) + stream.final(done)
    found = checked(data)
    assert found.response == whole
    return whole, found


def test_a_message_is_told_event_by_event():
    whole, stream = written(TextDelta("Par"), TextDelta("is."))
    assert stream.kinds == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.delta", "output_text.done", "content_part.done"),
        *("output_item.done", "completed"),
    ]
    part = {"type": "output_text", "text": "Paris.", "annotations": [], "logprobs": []}
    item = {"id": "msg_k0", "type": "message", "status": "completed", "role": "assistant"}
    assert whole["output"] == [item | {"content": [part]}]


def test_the_whole_object():
    whole, _ = written(
        TextDelta("hi"), instructions="Be brief.", metadata={"a": "b"}, max_output_tokens=5
    )
    whole.pop("output")
    assert whole == {
        "id": "resp_k",
        "object": "response",
        "created_at": 7,
        "completed_at": 7,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": "m",
        "instructions": "Be brief.",
        "max_output_tokens": 5,
        "max_tool_calls": None,
        "metadata": {"a": "b"},
        "background": False,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "user": None,
        "usage": {
            "input_tokens": 9,
            "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
            "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 12,
        },
    }


def test_items_stand_in_the_order_in_which_they_came():
    other = ToolCall("time", {}, "call_2")
    whole, stream = written(
        ThinkingDelta("Hm, "),
        ThinkingDelta("well."),
        TextDelta("Look."),
        ToolCallDelta(OSLO),
        ToolCallDelta(other, 1),
        TextDelta("Done."),
    )
    kinds = [item["type"] for item in whole["output"]]
    assert kinds == ["reasoning", "message", "function_call", "function_call", "message"]
    assert whole["output"][0]["summary"] == [{"type": "summary_text", "text": "Hm, well."}]
    assert whole["output"][2] == {
        "id": "fc_k2",
        "type": "function_call",
        "status": "completed",
        "call_id": "call_1",
        "name": "weather",
        "arguments": '{"city":"Oslo"}',
    }
    assert stream.kinds.count("reasoning_summary_text.delta") == 2


def test_the_text_of_reasoning_comes_in_the_encrypted_field_if_asked_for():
    for include, encrypted in (([], None), (["reasoning.encrypted_content"], "Hm.")):
        whole, _ = written(ThinkingDelta("Hm."), TextDelta("a"), include=include)
        assert whole["output"][0].get("encrypted_content") == encrypted


def test_a_call_in_a_namespace_is_told_apart():
    space = {"type": "namespace", "name": "crm", "description": "d", "tools": [function("get")]}
    whole, _ = written(ToolCallDelta(ToolCall("crm.get", {}, "c")), tools=[function(), space])
    (call,) = whole["output"]
    assert (call["namespace"], call["name"]) == ("crm", "get")


@pytest.mark.parametrize(
    "pieces", [[TextDelta("a")], [ThinkingDelta("a")], [ToolCallDelta(OSLO), TextDelta("a")]]
)
def test_an_answer_that_a_limit_ends_is_incomplete(pieces):
    whole, stream = written(*pieces, done=Done("length", USAGE))
    assert whole["status"] == "incomplete"
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    assert whole["completed_at"] is None
    statuses = [item["status"] for item in whole["output"]]
    assert statuses == ["completed"] * (len(pieces) - 1) + ["incomplete"]
    assert stream.kinds[-1] == "incomplete"


def test_an_answer_of_nothing_is_an_empty_message():
    whole, _ = written()
    (item,) = whole["output"]
    assert [part["text"] for part in item["content"]] == [""]


def test_logprobs_are_those_of_the_text():
    entry = TokenLogprob(b"a", -0.5, (Likelihood(b"a", -0.5),))
    hidden = TokenLogprob(b"<", -0.1)
    include = ["message.output_text.logprobs"]
    pieces = (
        ThinkingDelta("Hm", logprobs=(hidden,)),
        TextDelta("", logprobs=(hidden,)),
        TextDelta("a", logprobs=(entry,)),
        ToolCallDelta(OSLO),
        TextDelta("", logprobs=(hidden,)),
    )
    whole, _ = written(*pieces, include=include, top_logprobs=1)
    likely = {"token": "a", "logprob": -0.5, "bytes": [97]}
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call"]
    assert whole["output"][1]["content"][0]["logprobs"] == [likely | {"top_logprobs": [likely]}]


def test_a_prompt_that_was_cut_is_marked():
    usage = Usage(prompt_count=9, completion_count=3, dropped_count=2)
    whole, _ = written(TextDelta("a"), done=Done("stop", usage), truncation="auto")
    assert whole["truncated"] is True
    assert whole["usage"]["input_tokens_details"]["dropped_tokens"] == 2


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (Fault("it broke", code="runner_lost"), "server_error"),
        (Fault("no", "invalid_request_error", "format_failed"), "invalid_prompt"),
    ],
)
def test_a_stream_that_breaks_says_so_twice(fault, code):
    stream = writer()
    data = stream.begin(9) + stream.delta(TextDelta("Par")) + stream.failure(fault)
    *_, failed, error = parsed(data)
    assert failed["type"] == "response.failed"
    response = failed["response"]
    assert response["status"] == "failed"
    assert response["error"] == {"code": code, "message": fault.message}
    assert [item["status"] for item in response["output"]] == ["incomplete"]
    assert error["type"] == "error"
    assert (error["message"], error["code"]) == (fault.message, fault.code)
    assert error["error"]["message"] == fault.message
