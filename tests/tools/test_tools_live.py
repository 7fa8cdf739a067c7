"""Tools over HTTP: what reaches the prompt, and what becomes of a call in each dialect."""

import json
from typing import Any

import pytest
from asking import (
    ALL,
    LARGE,
    NATIVE,
    OPENAI,
    QUESTION,
    TOO_LARGE,
    Said,
    native_whole,
    openai_whole,
    tool,
)
from live import Daemon

WEATHER = [tool()]
OSLO = ("weather", {"city": "Oslo"})


# ---- a call


@pytest.mark.parametrize("how", ALL)
@pytest.mark.parametrize(("model", "text"), [("caller", "Let me look."), ("terse", "")])
def test_a_call_is_the_same_whole_and_streamed(
    tool_daemon: Daemon, how: str, model: str, text: str
) -> None:
    said = ALL[how](tool_daemon, model=model, tools=WEATHER)
    reason = "stop" if how in NATIVE else "tool_calls"
    assert Said(said.text.strip(), "", said.calls, said.reason) == Said(text, "", [OSLO], reason)
    assert "<" not in said.text


@pytest.mark.parametrize("how", ALL)
@pytest.mark.parametrize("tools", [[], [tool("other")]], ids=["no tools", "another tool"])
def test_what_calls_no_tool_that_is_offered_is_text(
    tool_daemon: Daemon, how: str, tools: list[Any]
) -> None:
    said = ALL[how](tool_daemon, model="terse", tools=tools)
    assert (said.calls, said.reason) == ([], "stop")
    assert json.dumps(OSLO[1]) in said.text


@pytest.mark.parametrize("how", ALL)
def test_numbers_arrive_as_they_are_or_not_at_all(tool_daemon: Daemon, how: str) -> None:
    said = ALL[how](tool_daemon, model="exact", tools=WEATHER)
    assert (said.text, said.calls) == ("", [("weather", {"city": LARGE, "f": 0.5})])
    said = ALL[how](tool_daemon, model="too-large", tools=WEATHER)
    assert (said.text, said.calls) == (TOO_LARGE, [])


def test_numbers_arrive_in_the_newer_dialects(tool_daemon: Daemon) -> None:
    schema = {"type": "object", "properties": {}}
    tools: list[Any] = [{"name": "weather", "input_schema": schema}]
    body = {"model": "exact", "max_tokens": 500, "messages": [QUESTION], "tools": tools}
    (block,) = tool_daemon.json("POST", "/v1/messages", body)["content"]
    assert block["input"]["city"] == LARGE
    tools = [{"type": "function", "name": "weather", "parameters": schema}]
    body = {"model": "exact", "input": QUESTION["content"], "tools": tools}
    (item,) = tool_daemon.json("POST", "/v1/responses", body)["output"]
    assert json.loads(item["arguments"])["city"] == LARGE


@pytest.mark.parametrize("how", ALL)
def test_text_behind_a_call_stays_apart(tool_daemon: Daemon, how: str) -> None:
    said = ALL[how](tool_daemon, model="talker", tools=WEATHER)
    assert (said.text.rstrip(), said.calls) == ("Let me see.\n\nThat is all.", [OSLO])


@pytest.mark.parametrize("stream", [True, False])
def test_tools_beside_a_prompt_alone_are_named_as_ignored(
    tool_daemon: Daemon, stream: bool
) -> None:
    body = {"model": "plain", "prompt": "hi", "tools": WEATHER, "stream": stream}
    with tool_daemon.open("POST", "/api/generate", body) as response:
        assert response.getheader("X-Localrun-Ignored-Options") == "tools"
        response.read()


def test_ids_are_there_and_differ(tool_daemon: Daemon) -> None:
    ids = set()
    for _ in range(3):
        body = {"model": "terse", "messages": [QUESTION], "tools": WEATHER}
        native = tool_daemon.json("POST", "/api/chat", body | {"stream": False})
        openai = tool_daemon.json("POST", "/v1/chat/completions", body)
        ids.add(native["message"]["tool_calls"][0]["id"])
        message = openai["choices"][0]["message"]
        assert message["content"] is None
        ids.add(message["tool_calls"][0]["id"])
    assert len(ids) == 6
    assert all(len(one) == 13 and one.startswith("call_") for one in ids)


@pytest.mark.parametrize("how", ALL)
def test_a_call_that_the_limit_cuts_is_no_call_and_no_error(tool_daemon: Daemon, how: str) -> None:
    limit = {"options": {"num_predict": 6}} if how in NATIVE else {"max_tokens": 6}
    said = ALL[how](tool_daemon, model="caller", tools=WEATHER, **limit)
    assert (said.calls, said.reason) == ([], "length")
    assert said.text.startswith("Let me look.")


def test_every_token_of_a_call_is_counted(tool_daemon: Daemon) -> None:
    body = {"model": "caller", "messages": [QUESTION], "tools": WEATHER, "stream": False}
    assert tool_daemon.json("POST", "/api/chat", body)["eval_count"] == 8
    reply = tool_daemon.json("POST", "/v1/chat/completions", body)
    assert reply["usage"]["completion_tokens"] == 8


# ---- who can


def test_tools_for_a_model_without_them_are_refused(tool_daemon: Daemon) -> None:
    body = {"model": "plain", "messages": [QUESTION], "tools": WEATHER}
    reply = tool_daemon.json("POST", "/api/chat", body, status=400)
    assert reply == {"error": '"plain" does not support tools'}
    error = tool_daemon.json("POST", "/v1/chat/completions", body, status=400)["error"]
    assert (error["message"], error["param"]) == ('"plain" does not support tools', "tools")
    for more in ({"tools": []}, {"tools": WEATHER, "tool_choice": "none"}):
        assert openai_whole(tool_daemon, model="plain", **more).text == "Hello."


def test_what_came_of_a_forced_call_is_answered_without_tools(tool_daemon: Daemon) -> None:
    call = {"id": "c1", "type": "function"}
    call["function"] = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    history = [
        QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "Rain"},
    ]
    body = {"model": "plain", "messages": history, "tools": WEATHER, "stream": False}
    assert tool_daemon.json("POST", "/api/chat", body)["message"]["content"] == "Hello."
    reply = tool_daemon.json("POST", "/v1/chat/completions", body)["choices"][0]
    assert (reply["message"]["content"], reply["finish_reason"]) == ("Hello.", "stop")


# ---- what reaches the prompt: the model says its prompt


def prompt(daemon: Daemon, path: str, messages: list[Any], **more: Any) -> str:
    body = {"model": "echo", "messages": messages, "stream": False, **more}
    reply = daemon.json("POST", path, body)
    message = reply["message"] if path == "/api/chat" else reply["choices"][0]["message"]
    text: str = message["content"]
    return text


BOTH = pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])


@BOTH
def test_definitions_stand_in_the_prompt_with_their_keys_in_order(
    tool_daemon: Daemon, path: str
) -> None:
    definition = tool("f", zone={"type": "string"}, area={"enum": ["ü", "a"]})
    text = prompt(tool_daemon, path, [QUESTION], tools=[definition])
    line = next(line for line in text.splitlines() if line.startswith('{"type"'))
    found = json.loads(line.removesuffix("<|im_end|>"))["function"]
    assert found == definition["function"]
    assert list(found["parameters"]["properties"]) == ["zone", "area"]
    assert '"ü"' in line


@BOTH
def test_numbers_stay_what_they_are_in_the_prompt(tool_daemon: Daemon, path: str) -> None:
    arguments: Any = {"n": LARGE, "f": 0.5}
    arguments = arguments if path == "/api/chat" else json.dumps(arguments)
    called = {"id": "call_1", "function": {"name": "weather", "arguments": arguments}}
    messages = [QUESTION, {"role": "assistant", "tool_calls": [called]}, QUESTION]
    definition = tool("weather", city={"type": "integer", "maximum": LARGE})
    text = prompt(tool_daemon, path, messages)
    assert f'"arguments": {{"n": {LARGE}, "f": 0.5}}' in text
    assert f'"maximum": {LARGE}' in prompt(tool_daemon, path, [QUESTION], tools=[definition])


@BOTH
def test_a_role_that_only_the_template_may_know(tool_daemon: Daemon, path: str) -> None:
    messages = [QUESTION, {"role": "observation", "content": "Rain."}]
    if path == "/api/chat":
        assert "<|im_start|>observation\nRain." in prompt(tool_daemon, path, messages)
        messages = [QUESTION, {"role": "", "content": "Rain."}]
    body = {"model": "echo", "messages": messages}
    error = tool_daemon.json("POST", path, body, status=400)["error"]
    assert "messages[1].role" in str(error)


def test_tool_choice_none_leaves_the_tools_out(tool_daemon: Daemon) -> None:
    path = "/v1/chat/completions"
    text = prompt(tool_daemon, path, [QUESTION], tools=WEATHER, tool_choice="none")
    assert text == prompt(tool_daemon, path, [QUESTION])
    assert "weather" not in text.replace(QUESTION["content"], "")


CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"x": "ü"}'}}
ABSENT = object()


def turn(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, **more} | ({} if content is ABSENT else {"content": content})


def history(empty: Any, result: Any, **named: str) -> list[dict[str, Any]]:
    return [
        QUESTION,
        turn("assistant", empty, tool_calls=[CALL]),
        turn("tool", result, **named),
        turn("user", "And now?"),
    ]


@BOTH
def test_all_forms_of_a_history_with_calls_render_the_same_prompt(
    tool_daemon: Daemon, path: str
) -> None:
    expected = prompt(tool_daemon, path, history("", "20 C", tool_call_id="call_1"))
    assert '<tool_call>\n{"name": "f", "arguments": {"x": "ü"}}\n</tool_call>' in expected
    assert "<tool_response>20 C</tool_response>" in expected
    parts = [{"type": "text", "text": "20 "}, {"type": "text", "text": "C"}]
    for empty in (None, ABSENT, []):
        for result in ("20 C", parts):
            assert (
                prompt(tool_daemon, path, history(empty, result, tool_call_id="call_1")) == expected
            )
    name = "tool_name" if path == "/api/chat" else "name"
    assert prompt(tool_daemon, path, history("", "20 C", **{name: "f"})) == expected
    assert prompt(tool_daemon, path, history("", "20 C")) == expected
    nothing = prompt(tool_daemon, path, history("", "", tool_call_id="call_1"))
    for result in (None, [], ABSENT):
        assert prompt(tool_daemon, path, history("", result, tool_call_id="call_1")) == nothing


def test_both_dialects_render_the_same_prompt(tool_daemon: Daemon) -> None:
    messages = history(None, "20 C", tool_call_id="call_1")
    assert prompt(tool_daemon, "/api/chat", messages) == prompt(
        tool_daemon, "/v1/chat/completions", messages
    )


@BOTH
def test_text_beside_calls_is_rendered_back(tool_daemon: Daemon, path: str) -> None:
    text = prompt(tool_daemon, path, history("Let me look.", "20 C", tool_call_id="call_1"))
    assert "Let me look.\n<tool_call>" in text


@pytest.mark.parametrize("how", ALL)
def test_a_round_of_question_call_result_and_question(tool_daemon: Daemon, how: str) -> None:
    whole = native_whole if how in NATIVE else openai_whole
    first = whole(tool_daemon, model="caller", tools=WEATHER)
    (call,) = first.calls
    arguments = call[1] if how in NATIVE else json.dumps(call[1])
    called = {"id": "call_1", "function": {"name": call[0], "arguments": arguments}}
    messages = [
        QUESTION,
        turn("assistant", first.text, tool_calls=[called]),
        turn("tool", "20 C", tool_call_id="call_1"),
    ]
    again = ALL[how](tool_daemon, model="caller", tools=WEATHER, messages=messages)
    assert again.calls == [OSLO]


def test_fields_of_newer_clients_are_no_error(tool_daemon: Daemon) -> None:
    """Each alone, with a usual value and with null (OAI-05)."""
    fields = {
        "tools": WEATHER,
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "functions": [],
        "function_call": "none",
        "response_format": {"type": "text"},
        "reasoning_effort": "none",
        "reasoning": {"effort": "none"},
        "stop": None,
        "n": 1,
        "logit_bias": {},
        "user": "u",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
        "verbosity": "low",
        "prediction": {"type": "content", "content": "x"},
        "stream_options": None,
        "modalities": ["text"],
        "safety_identifier": "x",
    }
    for name, value in fields.items():
        for sent in (value, None):
            said = OPENAI["openai, whole"](tool_daemon, model="terse", **{name: sent})
            assert said.calls == ([OSLO] if name == "tools" and sent else []), (name, sent)
