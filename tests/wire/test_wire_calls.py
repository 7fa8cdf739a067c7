"""Thinking and calls of an answer: events → the exact bytes of both dialects."""

import json
from typing import Any

import pytest

from localrun.core import (
    Choice,
    Done,
    TextDelta,
    ThinkingDelta,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from localrun.wire.native_writer import Kind, NativeWriter
from localrun.wire.openai_writer import OpenAIWriter

NOW_NS = 1_767_323_045_123_456_789  # 2026-01-02T03:04:05.123456789Z
OSLO = ToolCall("weather", {"stadt": "Århus", "n": 1, "deep": {"z": 1, "a": []}}, "call_abcd1234")
NOW = ToolCall("now", {}, "call_efgh5678")
DONE = Done("stop", Usage(1, 0, 2))
ARGUMENTS = b'{"stadt":"\xc3\x85rhus","n":1,"deep":{"z":1,"a":[]}}'
LOGPROB = TokenLogprob(b"x", -0.5)


# ---- native

HEAD = b'{"model":"m","created_at":"2026-01-02T03:04:05.123456789Z",'


def native(kind: Kind = "chat") -> NativeWriter:
    return NativeWriter("m", kind, clock_ns=lambda: NOW_NS)


CALL = (
    b'"tool_calls":[{"id":"call_abcd1234","function":{"index":1,"name":"weather","arguments":'
    + ARGUMENTS
    + b"}}]"
)


@pytest.mark.parametrize(
    ("kind", "piece", "expected"),
    [
        (
            "chat",
            ThinkingDelta("hm\n"),
            b'"message":{"role":"assistant","content":"","thinking":"hm\\n"},"done":false}\n',
        ),
        ("generate", ThinkingDelta("hm"), b'"response":"","thinking":"hm","done":false}\n'),
        (
            "chat",
            ToolCallDelta(OSLO, 1),
            b'"message":{"role":"assistant","content":"",' + CALL + b'},"done":false}\n',
        ),
        ("generate", ToolCallDelta(OSLO, 1), b'"response":"",' + CALL + b',"done":false}\n'),
    ],
)
def test_a_native_piece_is_one_exact_line(kind, piece, expected):
    assert native(kind).delta(piece) == HEAD + expected


def test_log_probabilities_of_thinking_stand_beside_it():
    line = json.loads(native().delta(ThinkingDelta("x", logprobs=(LOGPROB,))))
    assert line["message"]["thinking"] == "x"
    assert [entry["token"] for entry in line["logprobs"]] == ["x"]


@pytest.mark.parametrize("kind", ["chat", "generate"])
def test_a_whole_native_answer_has_everything(kind):
    choice = Choice("It is", DONE, thinking="hm", tool_calls=(OSLO, NOW))
    reply = json.loads(native(kind).whole([choice]))
    said = reply["message"] if kind == "chat" else reply
    assert (said["content" if kind == "chat" else "response"], said["thinking"]) == ("It is", "hm")
    assert [call["id"] for call in said["tool_calls"]] == ["call_abcd1234", "call_efgh5678"]
    functions = [call["function"] for call in said["tool_calls"]]
    assert [function["index"] for function in functions] == [0, 1]
    assert functions[0]["arguments"] == OSLO.arguments
    assert list(functions[0]["arguments"]) == list(OSLO.arguments)
    assert (reply["done"], reply["done_reason"]) == (True, "stop")


def test_a_plain_native_answer_has_no_keys_for_more():
    message = json.loads(native().whole([Choice("hi", DONE)]))["message"]
    assert message == {"role": "assistant", "content": "hi"}


# ---- openai

CHUNK = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":12,"model":"m",'
    b'"system_fingerprint":"fp_localrun","choices":['
)
GOES_ON = b',"finish_reason":null}]}\n\n'


def openai(**fields: Any) -> OpenAIWriter:
    return OpenAIWriter("m", clock_s=lambda: 12.9, completion_id="chatcmpl-1", **fields)


def test_thinking_text_and_calls_in_an_openai_stream():
    out = openai()
    assert out.delta(ThinkingDelta("hm")) == (
        CHUNK + b'{"index":0,"delta":{"role":"assistant","content":"","reasoning":"hm",'
        b'"reasoning_content":"hm"}' + GOES_ON
    )
    assert out.delta(ThinkingDelta("so")) == (
        CHUNK + b'{"index":0,"delta":{"reasoning":"so","reasoning_content":"so"}' + GOES_ON
    )
    assert out.delta(TextDelta("It")) == CHUNK + b'{"index":0,"delta":{"content":"It"}' + GOES_ON
    text = json.dumps(ARGUMENTS.decode(), ensure_ascii=False).encode()
    assert out.delta(ToolCallDelta(OSLO, 1)) == (
        CHUNK + b'{"index":0,"delta":{"tool_calls":[{"index":1,"id":"call_abcd1234",'
        b'"type":"function","function":{"name":"weather","arguments":' + text + b"}}]}" + GOES_ON
    )
    assert out.final(DONE) == (
        CHUNK + b'{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\ndata: [DONE]\n\n'
    )


def test_a_stream_may_begin_with_a_call():
    first = json.loads(openai().delta(ToolCallDelta(NOW)).removeprefix(b"data: "))
    delta = first["choices"][0]["delta"]
    assert (delta["role"], delta["content"]) == ("assistant", "")
    assert delta["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}


@pytest.mark.parametrize(
    ("reason", "with_call", "expected"),
    [
        ("stop", False, "stop"),
        ("stop", True, "tool_calls"),
        ("length", True, "length"),
        ("length", False, "length"),
    ],
)
def test_the_finish_reason_is_about_calls_only_where_the_model_stopped(reason, with_call, expected):
    out = openai(n_each=2)
    if with_call:
        out.delta(ToolCallDelta(NOW, index=1))
    done = Done(reason, Usage(), index=1)
    assert b'"finish_reason":"%s"' % expected.encode() in out.final(done, is_last=False)
    assert b'"finish_reason":"stop"' in out.final(Done("stop", Usage()))
    whole = Choice("", done, tool_calls=(NOW,) if with_call else ())
    assert json.loads(openai().whole([whole]))["choices"][0]["finish_reason"] == expected


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (
            Choice("", DONE, tool_calls=(NOW,)),
            {
                "content": None,
                "tool_calls": [
                    {
                        "id": "call_efgh5678",
                        "type": "function",
                        "function": {"name": "now", "arguments": "{}"},
                    }
                ],
            },
        ),
        (
            Choice("4", DONE, thinking="2+2"),
            {"content": "4", "reasoning": "2+2", "reasoning_content": "2+2"},
        ),
        (Choice("", DONE), {"content": ""}),
    ],
)
def test_a_whole_message(choice, message):
    reply = json.loads(openai().whole([choice]))
    assert reply["choices"][0]["message"] == {"role": "assistant"} | message


def test_text_beside_calls_is_kept():
    reply = json.loads(openai().whole([Choice("Let me look.", DONE, tool_calls=(OSLO, NOW))]))
    message = reply["choices"][0]["message"]
    assert message["content"] == "Let me look."
    arguments = [call["function"]["arguments"] for call in message["tool_calls"]]
    assert arguments == [ARGUMENTS.decode(), "{}"]


def test_log_probabilities_of_thinking_count_as_content():
    piece = ThinkingDelta("x", logprobs=(LOGPROB,))
    chunk = json.loads(openai(has_logprobs=True).delta(piece).removeprefix(b"data: "))
    assert [e["token"] for e in chunk["choices"][0]["logprobs"]["content"]] == ["x"]


# ---- a stream says what the whole answer says


EVENTS = [
    ThinkingDelta("I "),
    ThinkingDelta("see"),
    TextDelta("Let me "),
    TextDelta("look."),
    ToolCallDelta(OSLO, 0),
    ToolCallDelta(NOW, 1),
]
WHOLE = Choice("Let me look.", DONE, thinking="I see", tool_calls=(OSLO, NOW))


def test_a_native_stream_adds_up_to_the_whole():
    writer = native()
    lines = [json.loads(writer.delta(piece)) for piece in EVENTS]
    messages = [line["message"] for line in lines]
    whole = json.loads(writer.whole([WHOLE]))["message"]
    assert "".join(message["content"] for message in messages) == whole["content"]
    assert "".join(message.get("thinking", "") for message in messages) == whole["thinking"]
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    assert calls == whole["tool_calls"]


def test_an_openai_stream_adds_up_to_the_whole():
    writer = openai()
    events = b"".join([*map(writer.delta, EVENTS), writer.final(DONE)])
    blocks = events.decode().removesuffix("\n\n").split("\n\n")
    assert blocks.pop() == "data: [DONE]"
    assert all("\n" not in block for block in blocks)
    choices = [json.loads(block.removeprefix("data: "))["choices"][0] for block in blocks]
    deltas = [choice["delta"] for choice in choices]
    whole = json.loads(openai().whole([WHOLE]))["choices"][0]
    for name in ("content", "reasoning", "reasoning_content"):
        assert "".join(delta.get(name, "") for delta in deltas) == whole["message"][name]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert [call.pop("index") for call in calls] == [0, 1]
    assert calls == whole["message"]["tool_calls"]
    assert choices[-1]["finish_reason"] == whole["finish_reason"] == "tool_calls"
