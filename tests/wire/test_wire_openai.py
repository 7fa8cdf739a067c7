"""OpenAI's dialect: what a body becomes, what is refused, and the exact bytes of the replies."""

import json
from typing import Any

import pytest

from localrun.core import ChatPrompt, Choice, Done, Message, TextDelta, ToolCall, Usage
from localrun.errors import BadRequest, Unsupported
from localrun.wire.faults import Fault
from localrun.wire.openai import (
    CompletionRequest,
    ModelEntry,
    decode_chat_completions,
    encode_model,
    encode_models,
)
from localrun.wire.openai_writer import OpenAIWriter

HI = [{"role": "user", "content": "hi"}]
CALL = {"function": {"name": "f", "arguments": "{}"}}
ODD = {"role": "user", "content": [{"type": "odd"}]}


def decode(**fields: Any) -> CompletionRequest:
    body = {"model": "m", "messages": HI, **fields}
    return decode_chat_completions(json.dumps(body).encode())


def options(**fields: Any) -> dict[str, Any]:
    return decode(**fields).call.options


def test_defaults_are_openais_and_it_does_not_stream():
    request = decode()
    assert request.call.options == {"temperature": 1.0, "top_p": 1.0}
    assert (request.stream, request.include_usage, request.ignored) == (False, False, ())
    assert request.call.prompts == (ChatPrompt((Message("user", "hi"),)),)


@pytest.mark.parametrize(
    ("fields", "n_predict"),
    [
        ({"max_tokens": 10}, 10),
        ({"max_completion_tokens": 10}, 10),
        ({"max_tokens": 20, "max_completion_tokens": 10}, 10),
        ({"max_tokens": 20, "max_completion_tokens": None}, 20),
        ({"max_tokens": 10.0}, 10),
        ({"max_tokens": 0}, 0),
        ({"max_tokens": -1}, -1),
    ],
)
def test_the_newer_name_of_the_limit_wins(fields, n_predict):
    assert options(**fields)["num_predict"] == n_predict


def test_all_fields_may_be_null():
    sampling = ("stop", "n", "seed", "temperature", "logit_bias", "max_tokens")
    tools = ("tools", "tool_choice", "parallel_tool_calls", "functions", "function_call")
    forms = ("response_format", "reasoning_effort", "reasoning", "modalities", "logprobs")
    others = ("stream_options", "stream", "web_search_options", "user", "metadata", "store")
    request = decode(**dict.fromkeys((*sampling, *tools, *forms, *others)))
    assert request == decode()


def test_sampling_fields_arrive_as_options():
    wanted = options(
        temperature=0, top_p=0.5, frequency_penalty=1, presence_penalty=-1, seed=7, stop=["a", ""]
    )
    assert wanted == {
        "temperature": 0.0,
        "top_p": 0.5,
        "frequency_penalty": 1.0,
        "presence_penalty": -1.0,
        "seed": 7,
        "stop": ("a",),
    }
    assert options(stop="x")["stop"] == ("x",)


def test_names_without_effect_are_reported():
    assert decode(top_k=3, options={}, user="u", stop="x").ignored == ("top_k", "options")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "developer", "content": "x"}, Message("system", "x")),
        ({"role": "user", "content": []}, Message("user", "")),
        (
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
            Message("user", "ab"),
        ),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            Message("assistant", "no"),
        ),
        (
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "c",
                        "type": "function",
                        "function": {"name": "f", "arguments": '{"x":1}'},
                    }
                ],
            },
            Message("assistant", tool_calls=(ToolCall("f", {"x": 1}, "c"),)),
        ),
        (
            {"role": "tool", "content": "1", "tool_call_id": "c", "name": "f"},
            Message("tool", "1", tool_call_id="c", tool_name="f"),
        ),
    ],
)
def test_messages(message, expected):
    assert decode(messages=[message]).call.prompts == (ChatPrompt((expected,)),)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"model": None}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [*HI, ODD]}, "messages[1].content[0].type"),
        ({"messages": [*HI, {"role": "bot", "content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": "", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tools", "content": "x"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "refusal", "text": "x"}]}]},
            "messages[0].content[0].refusal",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]},
            "messages[0].tool_calls",
        ),
        (
            {"messages": [{"role": "tool", "function_call": {"name": "f"}}]},
            "messages[0].function_call",
        ),
        ({"max_tokens": "10"}, "max_tokens"),
        ({"max_completion_tokens": -7}, "max_completion_tokens"),
        ({"top_p": 3}, "top_p"),
        ({"stop": [1]}, "stop[0]"),
        ({"n": 0}, "n"),
        ({"n": -1}, "n"),
        ({"n": 129}, "n"),
        ({"n": "2"}, "n"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": "json"}, "response_format"),
        ({"logprobs": "yes"}, "logprobs"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": -1, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 2, "logprobs": False}, "top_logprobs"),
        ({"logit_bias": {"5": "1"}}, "logit_bias"),
        ({"logit_bias": {"five": 1}}, "logit_bias"),
        ({"logit_bias": {"-5": 1}}, "logit_bias"),
        ({"logit_bias": {"5": None}}, "logit_bias"),
        ({"logit_bias": {"5": True}}, "logit_bias"),
        ({"logit_bias": dict.fromkeys(map(str, range(1025)), 1)}, "logit_bias"),
        ({"logit_bias": [5]}, "logit_bias"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"reasoning_effort": "a lot"}, "reasoning_effort"),
        ({"reasoning": {"effort": "a lot"}}, "reasoning.effort"),
        ({"web_search_options": {}}, "web_search_options"),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}],
                    }
                ]
            },
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)  # fmt: skip
def test_a_bad_field_is_named_by_its_path(fields, path):
    with pytest.raises(BadRequest) as caught:
        decode(**fields)
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"seed": 1.5}, "seed: must be a whole number, not 1.5"),
        ({"max_tokens": 1.5}, "max_tokens: must be a whole number, not 1.5"),
        ({"max_tokens": 2**40}, "max_tokens: must be from -2 to 2147483647, not 1099511627776"),
        ({"temperature": 1e308}, "temperature: must be from 0 to 1e+18, not 1e+308"),
        ({"model": ""}, "model: is required"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": ""}}]}]},
            "messages[0].tool_calls[0].function.name: is required",
        ),
    ],
)
def test_what_is_wrong_is_said_in_the_words_of_the_dialect(fields, words):
    with pytest.raises(BadRequest) as error:
        decode(**fields)
    assert str(error.value) == words


def test_a_role_that_is_none_is_answered_with_those_that_are():
    with pytest.raises(BadRequest) as caught:
        decode(messages=[{"role": "human", "content": "x"}])
    assert caught.value.problem == (
        '"human" is not one of "system", "developer", "user", "assistant", "tool", "function"'
    )


def test_fields_that_ask_for_nothing_pass():
    decode(messages=[{"role": "user", "content": "x", "tool_calls": []}])
    decode(top_logprobs=0)
    decode(n=1, tools=[], response_format={"type": "text"}, logprobs=False, reasoning_effort="none")


@pytest.mark.parametrize(
    ("fields", "capability"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "vision"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "audio"),
    ],
)
def test_what_is_not_there_yet_is_refused_when_used(fields, capability):
    with pytest.raises(Unsupported) as caught:
        decode(**fields)
    assert caught.value.capability == capability


def writer(*, include_usage=False):
    return OpenAIWriter(
        "m", include_usage=include_usage, clock_s=lambda: 12.9, completion_id="chatcmpl-1"
    )


CHUNK = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":12,"model":"m",'
    b'"system_fingerprint":"fp_localrun","choices":['
)
FINISH = CHUNK + b'{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = Done("stop", Usage(prompt_count=42, cached_count=40, completion_count=1))


def test_the_role_stands_in_the_first_delta_only():
    out = writer()
    assert out.delta(TextDelta("H<")) == (
        CHUNK
        + b'{"index":0,"delta":{"role":"assistant","content":"H<"},"finish_reason":null}]}\n\n'
    )
    assert out.delta(TextDelta("i")) == (
        CHUNK + b'{"index":0,"delta":{"content":"i"},"finish_reason":null}]}\n\n'
    )
    assert out.final(DONE) == FINISH + b"data: [DONE]\n\n"


def test_a_stream_without_text_still_has_a_first_delta():
    first, _, rest = writer().final(DONE).partition(b"\n\n")
    assert b'"delta":{"role":"assistant","content":""},"finish_reason":null' in first
    assert rest == FINISH + b"data: [DONE]\n\n"


def test_the_usage_chunk_comes_when_asked_for():
    out = writer(include_usage=True)
    out.delta(TextDelta("x"))
    usage = (
        b'],"usage":{"prompt_tokens":42,"completion_tokens":1,"total_tokens":43,'
        b'"prompt_tokens_details":{"cached_tokens":40}}}\n\n'
    )
    assert out.final(DONE) == FINISH + CHUNK + usage + b"data: [DONE]\n\n"


def test_a_whole_completion():
    reply = json.loads(writer().whole([Choice("hi", Done("length", Usage(1, 0, 2)))]))
    assert reply["object"] == "chat.completion"
    assert reply["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hi"},
            "finish_reason": "length",
        }
    ]
    assert reply["usage"]["total_tokens"] == 3


def test_ids_are_random():
    assert OpenAIWriter("m").whole([Choice("", DONE)]) != OpenAIWriter("m").whole(
        [Choice("", DONE)]
    )


def test_an_error_event_is_a_whole_error_object():
    assert writer().failure(Fault("no", "api_error", "runner_lost", "a[0]")) == (
        b'data: {"error":{"message":"no","type":"api_error","param":"a[0]",'
        b'"code":"runner_lost"}}\n\n'
    )


def test_model_objects():
    entry = ModelEntry("a:b", 5, "library")
    expected = {"id": "a:b", "created": 5, "owned_by": "library", "object": "model"}
    assert json.loads(encode_model(entry)) == expected
    assert json.loads(encode_models([entry])) == {"object": "list", "data": [expected]}
    assert json.loads(encode_models([]))["data"] == []
