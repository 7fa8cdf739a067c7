"""OpenAI's responses over HTTP: what is asked for, whole and streamed, and how it ends."""

import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from live import Daemon, wait_until, write_fake_model
from response_events import Streamed, checked, parsed

PATH = "/v1/responses"
TOOL = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}, "is_now": {"type": "boolean"}},
        "required": ["city", "is_now"],
        "additionalProperties": False,
    },
}


def whole(daemon: Daemon, model: str, **fields: Any) -> dict[str, Any]:
    """One response."""
    reply: dict[str, Any] = daemon.json("POST", PATH, {"model": model, "input": "hi", **fields})
    return reply


def raw(daemon: Daemon, model: str, **fields: Any) -> bytes:
    """The bytes of a stream."""
    body = {"model": model, "input": "hi", "stream": True, **fields}
    with daemon.open("POST", PATH, body) as response:
        assert response.status == 200, response.read()
        assert response.headers["Content-Type"].startswith("text/event-stream")
        assert response.headers["Cache-Control"] == "no-cache"
        return response.read()


def streamed(daemon: Daemon, model: str, **fields: Any) -> Streamed:
    """A stream that ends well."""
    return checked(raw(daemon, model, **fields))


def response_of_stream(daemon: Daemon, model: str, **fields: Any) -> dict[str, Any]:
    """The response that a stream ends with."""
    return streamed(daemon, model, **fields).response


BOTH = pytest.mark.parametrize("ask", [whole, response_of_stream], ids=["whole", "streamed"])
Ask = Callable[..., dict[str, Any]]


def text_of(response: dict[str, Any]) -> str:
    """What its messages say."""
    contents = [item["content"] for item in response["output"] if item["type"] == "message"]
    return "".join(part["text"] for content in contents for part in content)


def kinds(response: dict[str, Any]) -> list[str]:
    """The types of its items."""
    return [item["type"] for item in response["output"]]


# ---- answers


@BOTH
def test_an_answer_and_its_figures(scripted: Daemon, ask: Ask) -> None:
    response = ask(scripted, "plain", metadata={"a": "b"}, instructions="Be brief.")
    assert (text_of(response), response["status"]) == ("Hello there.", "completed")
    assert (response["metadata"], response["store"]) == ({"a": "b"}, False)
    usage = response["usage"]
    assert usage["output_tokens"] == 4
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["input_tokens_details"]["cached_tokens"] < usage["input_tokens"]


def test_every_piece_is_an_event(scripted: Daemon) -> None:
    deltas = [e["delta"] for e in streamed(scripted, "plain").events if "delta" in e]
    assert deltas == ["Hel", "lo ", "there", "."]


@BOTH
def test_characters_are_whole_where_tokens_are_not(scripted: Daemon, ask: Ask) -> None:
    assert text_of(ask(scripted, "bytes")) == "👨‍👩‍👧"


@BOTH
def test_a_limit_leaves_an_incomplete_answer_without_half_a_character(
    scripted: Daemon, ask: Ask
) -> None:
    response = ask(scripted, "half", max_output_tokens=2)
    assert (text_of(response), response["status"]) == ("cut ", "incomplete")
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"


@BOTH
def test_a_stop_string_of_the_model_ends_an_answer(
    start_daemon: Callable[..., Daemon], fake_model: Callable[..., Path], ask: Ask
) -> None:
    daemon = start_daemon()
    daemon.create("base", fake_model(pieces=["The quick br", "own f", "ox jumps"]))
    body = {"model": "m", "from": "base", "parameters": {"stop": ["own fox"]}, "stream": False}
    daemon.json("POST", "/api/create", body)
    response = ask(daemon, "m")
    assert (text_of(response), response["status"]) == ("The quick br", "completed")


# ---- thinking and tools


@BOTH
def test_thinking_is_an_item_of_its_own(scripted: Daemon, ask: Ask) -> None:
    response = ask(scripted, "thinker", reasoning={"effort": "low", "summary": "auto"})
    assert kinds(response) == ["reasoning", "message"]
    (part,) = response["output"][0]["summary"]
    assert (part["type"], part["text"].strip()) == ("summary_text", "It is in France.")
    assert text_of(response) == "Paris."
    # None of them is known to be reasoning.
    assert response["usage"]["output_tokens"] == 8
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 0}


@BOTH
def test_a_limit_inside_thinking(scripted: Daemon, ask: Ask) -> None:
    response = ask(scripted, "thinker", max_output_tokens=3)
    assert (kinds(response), response["status"]) == (["reasoning"], "incomplete")


def test_thinking_of_a_model_that_cannot_is_refused(scripted: Daemon) -> None:
    body = {"model": "plain", "input": "hi", "reasoning": {"effort": "low"}}
    error = scripted.json("POST", PATH, body, status=400)["error"]
    assert error["message"] == '"plain" does not support thinking'
    assert error["param"] == "reasoning.effort"
    assert text_of(whole(scripted, "plain", reasoning={"effort": "none"})) == "Hello there."


@BOTH
def test_items_come_in_the_order_in_which_the_model_says_them(scripted: Daemon, ask: Ask) -> None:
    response = ask(scripted, "all", tools=[TOOL])
    assert kinds(response) == ["message", "function_call", "function_call", "message"]
    calls = response["output"][1:3]
    assert [json.loads(call["arguments"])["city"] for call in calls] == ["Oslo", "Rome"]
    assert calls[0]["call_id"] != calls[1]["call_id"]
    assert (response["tools"], response["tool_choice"]) == ([TOOL], "auto")


@BOTH
def test_a_function_of_a_namespace_is_called(scripted: Daemon, ask: Ask) -> None:
    space = {"type": "namespace", "name": "n", "description": "d", "tools": [TOOL]}
    choice = {"type": "function", "name": "n.weather"}
    response = ask(scripted, "plain", tools=[space], tool_choice=choice)
    call = response["output"][0]
    assert (call["namespace"], call["name"]) == ("n", "weather")
    assert json.loads(call["arguments"])["city"] in ("Oslo", "Rome")


def test_tools_for_a_model_without_them_are_refused(scripted: Daemon) -> None:
    body = {"model": "plain", "input": "hi", "tools": [TOOL]}
    error = scripted.json("POST", PATH, body, status=400)["error"]
    assert (error["param"], error["code"]) == ("tools", "unsupported")


# ---- what reaches the prompt: the model says it


def test_a_conversation_is_the_prompt_that_a_chat_makes_of_it(scripted: Daemon) -> None:
    call = {"id": "c1", "function": {"name": "f", "arguments": '{"x": "ü"}'}}
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Let me look.", "tool_calls": [call]},
        {"role": "tool", "content": "20 C", "tool_call_id": "c1"},
        {"role": "user", "content": "And now?"},
    ]
    chat = {"model": "echo", "messages": turns}
    reply = scripted.json("POST", "/v1/chat/completions", chat)
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "role": "assistant", "content": "Let me look."},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x": "ü"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "20 C"},
        {"role": "user", "content": "And now?"},
    ]
    response = whole(scripted, "echo", input=items, instructions="Be brief.")
    assert text_of(response) == reply["choices"][0]["message"]["content"]
    assert "Let me look.\n<tool_call>" in text_of(response)


def test_a_round_of_question_call_result_and_answer(scripted: Daemon) -> None:
    first = whole(scripted, "caller", tools=[TOOL])
    message, call = first["output"]
    assert (text_of(first).strip(), call["name"]) == ("Let me look.", "weather")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "20 C"}
    items = [{"role": "user", "content": "hi"}, message, call, result]
    again = whole(scripted, "caller", input=items, tools=[TOOL])
    assert again["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    assert kinds(again) == ["message", "function_call"]


def test_no_effort_reaches_the_template(scripted: Daemon) -> None:
    told = text_of(whole(scripted, "thinking-echo", reasoning={"effort": "none"}))
    free = text_of(whole(scripted, "thinking-echo", reasoning={"effort": "low"}))
    assert told.startswith(free)
    assert "think" in told.removeprefix(free)


# ---- errors


def test_an_error_before_the_first_event_has_its_status(scripted: Daemon) -> None:
    for stream in (False, True):
        body = {"model": "nope", "input": "hi", "stream": stream}
        error = scripted.json("POST", PATH, body, status=404)["error"]
        assert (error["code"], error["type"]) == ("model_not_found", "not_found_error")
        body = {"model": "plain", "input": "x" * 9000, "stream": stream}
        error = scripted.json("POST", PATH, body, status=400)["error"]
        assert error["code"] == "context_length_exceeded"


def test_a_prompt_is_cut_where_that_is_asked_for(scripted: Daemon) -> None:
    turns = [{"role": "user", "content": text * 3000} for text in "abc"]
    response = whole(scripted, "plain", input=turns, truncation="auto")
    assert (response["truncated"], response["truncation"]) == (True, "auto")
    assert response["usage"]["input_tokens_details"]["dropped_tokens"] > 0


def test_a_runner_that_dies_on_the_way_fails_the_stream(scripted: Daemon) -> None:
    *_, failed, error = events = parsed(raw(scripted, "breaks"))
    assert (failed["type"], error["type"]) == ("response.failed", "error")
    assert {event["type"] for event in events}.isdisjoint(
        {"response.completed", "response.incomplete"}
    )
    response = failed["response"]
    assert (response["id"], response["status"]) == (events[0]["response"]["id"], "failed")
    assert "unexpectedly stopped" in response["error"]["message"]
    assert text_of(response).startswith("la ")
    body = {"model": "breaks", "input": "hi"}
    error = scripted.json("POST", PATH, body, status=500)["error"]
    assert error["code"] == "runner_lost"


def test_stored_responses_are_none(scripted: Daemon) -> None:
    for method, path in (("GET", "resp_1"), ("DELETE", "resp_1"), ("POST", "resp_1/cancel")):
        error = scripted.json(method, f"{PATH}/{path}", status=404)["error"]
        assert error["code"] == "unknown_url"


def test_a_conversation_is_not_shortened_here(scripted: Daemon) -> None:
    for body in (None, {"model": "plain", "input": "hi"}):
        error = scripted.json("POST", f"{PATH}/compact", body, status=400)["error"]
        assert error["type"] == "invalid_request_error"
        assert "does not shorten conversations" in error["message"]
    client = openai.OpenAI(base_url=f"{scripted.url}/v1", api_key="x", max_retries=0)
    with client, pytest.raises(openai.BadRequestError, match="truncation"):
        client.responses.compact(model="plain", input="hi")


# ---- tokens before they are sent


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "hi"},
        {"input": [{"role": "user", "content": "hi"}], "instructions": "Be brief."},
        {"input": "hi", "tools": [TOOL]},
        {"input": "hi", "tools": [TOOL], "tool_choice": "none"},
        {"input": "hi", "text": {"format": {"type": "json_object"}}},
    ],
)
def test_a_count_is_what_the_answer_is_charged(scripted: Daemon, fields: dict[str, Any]) -> None:
    expected = whole(scripted, "echo", max_output_tokens=1, **fields)["usage"]["input_tokens"]
    client = openai.OpenAI(base_url=f"{scripted.url}/v1", api_key="x", max_retries=0)
    with client:
        counted = client.responses.input_tokens.count(model="echo", **fields)
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", expected)


def test_a_prompt_is_counted_also_beyond_the_window(scripted: Daemon) -> None:
    body = {"model": "plain", "input": "x" * 9000}
    reply = scripted.json("POST", f"{PATH}/input_tokens", body)
    assert reply["input_tokens"] >= 9000


@pytest.mark.parametrize(
    ("fields", "status", "param", "words"),
    [
        ({"model": "nope"}, 404, None, "nope"),
        ({"input": None}, 400, "input", "is required"),
        ({"previous_response_id": "resp_1"}, 400, "previous_response_id", "keeps no responses"),
        ({"tools": [{"type": "web_search"}]}, 400, "tools[0].type", "web_search"),
        ({"tools": [TOOL]}, 400, "tools", "does not support tools"),
    ],
)
def test_what_cannot_be_answered_is_not_counted(
    scripted: Daemon, fields: dict[str, Any], status: int, param: str | None, words: str
) -> None:
    body = {"model": "plain", "input": "hi", **fields}
    error = scripted.json("POST", f"{PATH}/input_tokens", body, status=status)["error"]
    assert error["param"] == param
    assert words in error["message"]


# ---- clients that leave, and many of them


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot(scripted: Daemon, stream: bool) -> None:
    data = json.dumps({"model": "endless", "input": "hi", "stream": stream}).encode()
    with socket.create_connection(("127.0.0.1", scripted.port), timeout=30) as sock:
        head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        sock.sendall(head.encode() + data)
        wait_until(lambda: scripted.n_busy() == 1, "the request to get a slot")
    wait_until(lambda: scripted.n_busy() == 0, "the slot to be free")


def test_the_response_is_announced_before_its_first_token(
    start_daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    script = {"pieces": ["x"], "row_s": 0.004, "n_batch": 64}
    daemon = start_daemon()
    daemon.create("slow", write_fake_model(tmp_path / "slow.gguf", script))
    body = {"model": "slow", "input": "y" * 600, "stream": True}
    with daemon.open("POST", PATH, body) as response:
        assert response.readline() == b"event: response.created\n"
        wait_until(lambda: daemon.n_busy() == 1, "the prompt to be under way")
        assert b"response.completed" in response.read()


def test_many_at_once_do_not_mix(scripted: Daemon) -> None:
    def ask(i: int) -> tuple[bool, str]:
        response = (whole, response_of_stream)[i % 2](scripted, "echo", input=f"number {i:03d}")
        return f"number {i:03d}" in text_of(response), response["id"]

    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(ask, range(24)))
    assert all(is_own for is_own, _ in found)
    assert len({response_id for _, response_id in found}) == 24


# ---- a real model


def test_a_real_model_says_the_same_whole_and_streamed(smollm2_daemon: Daemon) -> None:
    fields = {
        "input": "Name the capital of France.",
        "temperature": 0,
        "max_output_tokens": 16,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
    }
    first = whole(smollm2_daemon, "smollm2:135m", **fields)
    again = streamed(smollm2_daemon, "smollm2:135m", **fields).response
    assert "Paris" in text_of(first)
    assert text_of(again) == text_of(first)
    assert again["usage"]["input_tokens"] == first["usage"]["input_tokens"]
    assert again["usage"]["input_tokens_details"]["cached_tokens"] > 0
    entries = again["output"][0]["content"][0]["logprobs"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == text_of(again)
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


@BOTH
def test_an_answer_has_the_form_that_is_asked_for(smollm2_daemon: Daemon, ask: Ask) -> None:
    schema = {**TOOL["parameters"]}  # type: ignore[dict-item]
    form = {"type": "json_schema", "name": "x", "strict": True, "schema": schema}
    response = ask(smollm2_daemon, "smollm2:135m", text={"format": form}, temperature=1)
    value = json.loads(text_of(response))
    assert list(value) == ["city", "is_now"]
    assert response["text"]["format"] == form


@BOTH
@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}], ids=str)
def test_a_real_model_can_be_made_to_call(smollm2_daemon: Daemon, ask: Ask, choice: Any) -> None:
    fields = {"tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False}
    response = ask(smollm2_daemon, "smollm2:135m", **fields)
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    assert len(calls) == 1
    assert json.loads(calls[0]["arguments"]).keys() == {"city", "is_now"}
    assert response["tool_choice"] == choice
