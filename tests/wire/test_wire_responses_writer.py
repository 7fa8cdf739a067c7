"""OpenAI's responses: what replies consist of, whole and event by event."""

import pytest
from response_bodies import USAGE, function, writer, written
from response_events import parsed

from localrun.core import (
    Done,
    Likelihood,
    TextDelta,
    ThinkingDelta,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from localrun.wire.faults import Fault

OSLO = ToolCall("weather", {"city": "Oslo"}, "call_1")


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
