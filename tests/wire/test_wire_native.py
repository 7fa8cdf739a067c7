"""Ollama's dialect: what a body becomes, what is refused, and the exact bytes of the replies."""

import json
import math
from typing import Any

import pytest

from localrun.core import (
    Call,
    ChatPrompt,
    Choice,
    Done,
    FillPrompt,
    Message,
    RawPrompt,
    TextDelta,
    ToolCall,
    Usage,
)
from localrun.errors import BadRequest, LocalrunError, Unsupported
from localrun.wire.bodies import TextRequest
from localrun.wire.faults import Fault
from localrun.wire.native import decode_chat, decode_generate
from localrun.wire.native_writer import NativeWriter

NOW_NS = 1_767_323_045_123_456_789  # 2026-01-02T03:04:05.123456789Z


def generate(**fields: Any) -> TextRequest:
    return decode_generate(json.dumps({"model": "m", **fields}).encode())


def chat(**fields: Any) -> TextRequest:
    return decode_chat(json.dumps({"model": "m", **fields}).encode())


def user(text: str) -> ChatPrompt:
    return ChatPrompt((Message("user", text),))


def test_a_plain_generate_streams_a_chat_turn_and_returns_its_context():
    assert generate(prompt="hi") == TextRequest(
        Call("m", (user("hi"),), capability="generate", return_context=True), stream=True
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"prompt": ""}, None),
        ({}, None),
        ({"prompt": None, "system": None, "options": None, "stream": None}, None),
        ({"prompt": "hi", "raw": True}, RawPrompt("hi")),
        ({"prompt": "", "raw": True}, None),
        ({"prompt": "hi", "context": [1, 2]}, ChatPrompt((Message("user", "hi"),), (1, 2))),
        ({"prompt": "hi", "unknown": {"a": 1}, "width": 3}, user("hi")),
        ({"prompt": "hi", "images": [], "suffix": "", "format": "", "think": None}, user("hi")),
    ],
)
def test_the_prompt_of_generate(fields, expected):
    request = generate(**fields)
    assert request.call.prompts == ((expected,) if expected else ())
    assert request.call.return_context == isinstance(expected, ChatPrompt)


def test_template_and_system_travel_with_the_call_and_empty_ones_do_not():
    call = generate(prompt="x", system="s", template="t").call
    assert (call.system, call.template) == ("s", "t")
    call = generate(prompt="x", system="", template="").call
    assert (call.system, call.template) == (None, None)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([{"role": "User", "content": "hi"}], (Message("user", "hi"),)),
        ([{"role": "assistant"}], (Message("assistant"),)),
        ([{"role": "assistant", "content": None}], (Message("assistant"),)),
        (
            [{"role": "tool", "content": [{"type": "text", "text": "a"}]}],
            (Message("tool", "a"),),
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": t} for t in ("a ", "b")]}],
            (Message("user", "a b"),),
        ),
        (
            [
                {
                    "role": "assistant",
                    "thinking": "hm",
                    "tool_calls": [
                        {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
                    ],
                },
                {"role": "tool", "content": "1", "tool_name": "f", "tool_call_id": "c"},
            ],
            (
                Message("assistant", thinking="hm", tool_calls=(ToolCall("f", {"x": 1}),)),
                Message("tool", "1", tool_name="f", tool_call_id="c"),
            ),
        ),
    ],
)
def test_messages(messages, expected):
    request = chat(messages=messages)
    assert request.call.prompts == (ChatPrompt(expected),)
    assert not request.call.return_context


def test_no_messages_ask_to_load():
    assert chat(messages=[]).call.prompts == ()
    assert chat().call == Call("m", capability="chat")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        (0, 0.0),
        ("0", 0.0),
        (300, 300.0),
        (2.5, 2.5),
        ("300", 300.0),
        ("10m", 600.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        (-1, math.inf),
        ("-1", math.inf),
        ("-1m", math.inf),
        (1e18, math.inf),
        (10**400, math.inf),
    ],
)
def test_keep_alive(value, seconds):
    assert generate(keep_alive=value).call.keep_alive_s == seconds


@pytest.mark.parametrize("value", [True, {}, [], "abc", "5 minutes"])
def test_keep_alive_that_means_nothing_is_refused(value):
    with pytest.raises(BadRequest) as caught:
        generate(keep_alive=value)
    assert caught.value.path == "keep_alive"


def test_options_are_converted_and_those_without_effect_are_named():
    request = generate(
        prompt="x",
        options={
            "num_ctx": "2048",
            "temperature": "0.3",
            "top_k": 40.0,
            "stop": "x",
            "seed": None,
            "num_predict": 0,
            "tfs_z": 1,
        },
        temperature=0.1,
        max_tokens=3,
    )
    assert request.call.options == {
        "num_ctx": 2048,
        "temperature": 0.3,
        "top_k": 40,
        "stop": ("x",),
        "num_predict": 0,
    }
    assert request.ignored == ("tfs_z", "temperature", "max_tokens")


def test_what_becomes_of_too_long_a_prompt_and_answer_is_off_on_or_left_open():
    assert (chat().call.cuts, chat().call.shifts) == (None, False)
    call = generate(prompt="x", truncate=False, shift=True).call
    assert (call.cuts, call.shifts) == (False, True)


def test_a_suffix_makes_a_gap_to_fill_also_behind_nothing():
    assert generate(prompt="a", suffix="b").call.prompts == (FillPrompt("a", "b"),)
    assert generate(suffix="b").call.prompts == (FillPrompt("", "b"),)
    with pytest.raises(BadRequest, match="suffix"):
        generate(prompt="a", suffix="b", raw=True)


BAD_BODIES = [
    (b"", "", "missing request body"),
    (b" \n", "", "missing request body"),
    (b"{", "", "not valid JSON"),
    (b'{"model": "m"} x', "", "not valid JSON"),
    (b'{"model": "\xff"}', "", "not valid JSON"),
    (b'{"x":' + b"[" * 100_000, "", "nested too deeply"),
    (b"[]", "", "expected `object`"),
    (b'{"model": 1}', "model", "got `int`"),
    (b"{}", "", "model is required"),
    (b'{"model": " "}', "", "model is required"),
]


@pytest.mark.parametrize("decode", [decode_chat, decode_generate])
@pytest.mark.parametrize(("body", "path", "words"), BAD_BODIES)
def test_bodies_that_cannot_be_read(decode, body, path, words):
    with pytest.raises(BadRequest) as caught:
        decode(body)
    assert caught.value.path == path
    assert words in caught.value.problem


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"messages": [{"role": "a"}, {"role": "b"}, {"role": 3}]}, "messages[2].role"),
        ({"messages": [{}]}, "messages[0]"),
        ({"messages": [{"role": "user"}, {"role": ""}]}, "messages[1].role"),
        ({"messages": [{"role": " \n"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "u", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
        ),
        ({"messages": [{"role": "u", "content": 3}]}, "messages[0].content"),
        (
            {"messages": [{"role": "u", "content": [{"type": "odd"}]}]},
            "messages[0].content[0].type",
        ),
        ({"options": {"num_ctx": "abc"}}, "options.num_ctx"),
        ({"options": {"num_predict": -3}}, "options.num_predict"),
        ({"options": {"num_predict": 10**400}}, "options.num_predict"),
        ({"options": 3}, "options"),
        ({"stream": "yes"}, "stream"),
        ({"format": "jsn"}, "format"),
        ({"format": 5}, "format"),
        ({"options": {"logit_bias": {"5": "1"}}}, "options.logit_bias"),
        ({"logprobs": 3}, "logprobs"),
        ({"top_logprobs": 21}, ""),
        ({"think": "a lot"}, ""),
        ({"think": 3}, ""),
    ],
)
def test_a_bad_field_is_named_by_its_path(fields, path):
    with pytest.raises(BadRequest) as caught:
        chat(**fields)
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("decode", "fields", "capability"),
    [
        (chat, {"messages": [{"role": "user", "images": ["aGk="]}]}, "vision"),
        (chat, {"messages": [{"role": "u", "content": [{"type": "image_url"}]}]}, "vision"),
        (generate, {"images": ["aGk="]}, "vision"),
    ],
)
def test_what_is_not_there_yet_is_refused_when_used(decode, fields, capability):
    with pytest.raises(Unsupported) as caught:
        decode(**fields)
    assert (caught.value.model, caught.value.capability) == ("m", capability)
    assert str(caught.value) == f'"m" does not support {capability}'


@pytest.mark.parametrize("field", [{"template": "t"}, {"system": "s"}, {"context": [1]}])
def test_raw_takes_the_prompt_only(field):
    with pytest.raises(LocalrunError) as caught:
        generate(prompt="x", raw=True, **field)
    assert str(caught.value) == "raw mode does not support template, system, or context"


def writer(kind):
    return NativeWriter("m<1>", kind, clock_ns=lambda: NOW_NS)


HEAD = b'{"model":"m<1>","created_at":"2026-01-02T03:04:05.123456789Z",'


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("generate", b'"response":"a\\n\xc3\xa9","done":false}\n'),
        (
            "chat",
            b'"message":{"role":"assistant","content":"a\\n\xc3\xa9"},"done":false}\n',
        ),
    ],
)
def test_a_delta_is_one_exact_line(kind, expected):
    assert writer(kind).delta(TextDelta("a\né")) == HEAD + expected


USAGE = Usage(
    prompt_count=42,
    cached_count=40,
    completion_count=7,
    load_ns=1,
    prompt_ns=2,
    completion_ns=3,
    total_ns=6,
)


def test_the_last_line_has_the_figures_and_the_context():
    assert writer("generate").final(Done("length", USAGE, (5, 6))) == HEAD + (
        b'"response":"","done":true,"done_reason":"length","context":[5,6],"total_duration":6,'
        b'"load_duration":1,"prompt_eval_count":42,"prompt_cached_count":40,'
        b'"prompt_eval_duration":2,"eval_count":7,"eval_duration":3}\n'
    )


def test_figures_that_are_zero_are_left_out():
    assert writer("chat").whole([Choice("hi", Done("stop", Usage(prompt_count=1)))]) == HEAD + (
        b'"message":{"role":"assistant","content":"hi"},"done":true,"done_reason":"stop",'
        b'"prompt_eval_count":1}'
    )


@pytest.mark.parametrize("reason", ["load", "unload"])
def test_a_load_has_no_figures(reason):
    reply = json.loads(writer("generate").whole([Choice("", Done(reason, USAGE))]))
    assert list(reply) == ["model", "created_at", "response", "done", "done_reason"]
    assert reply["done_reason"] == reason


def test_an_error_is_one_line():
    assert writer("chat").failure(Fault("no\nway")) == b'{"error":"no\\nway"}\n'


@pytest.mark.parametrize(
    ("escaped", "expected"),
    [
        (rb"cut \ud83d", "cut \ufffd"),
        (rb"\ude42 cut", "\ufffd cut"),
        (rb"\ud83d\ude42 whole \ud83d", "🙂 whole \ufffd"),
        (rb"\ud83d\ud83d\ude42", "\ufffd🙂"),
        (rb"no escape \\ud83d, one \ud83d", "no escape \\ud83d, one \ufffd"),
    ],
)
def test_half_a_surrogate_pair_becomes_a_replacement_character(
    escaped: bytes, expected: str
) -> None:
    request = decode_generate(b'{"model":"m","raw":true,"prompt":"' + escaped + b'"}')
    assert request.call.prompts == (RawPrompt(expected),)


@pytest.mark.parametrize("token", ["-1", "2147483648", "1180591620717411303424", "1.5", '"1"'])
def test_context_holds_token_ids_only(token: str) -> None:
    with pytest.raises(BadRequest) as error:
        decode_generate(b'{"model":"m","prompt":"x","context":[1,%s]}' % token.encode())
    assert error.value.path.startswith("context")
