"""Thinking over HTTP: kept apart from the answer in every dialect, and asked for or not."""

from typing import Any

import pytest
from asking import ALL, NATIVE, OPENAI, QUESTION, Said, native_whole
from live import Daemon

_THOUGHT = "It is in France."


@pytest.mark.parametrize("how", ALL)
@pytest.mark.parametrize("think", [None, True, "low"])
@pytest.mark.parametrize("model", ["thinker", "inside"], ids=["tags", "begun by the prompt"])
def test_thinking_is_kept_apart(tool_daemon: Daemon, how: str, think: Any, model: str) -> None:
    asked = {"think": think} if how in NATIVE else {"reasoning_effort": "low" if think else None}
    said = ALL[how](tool_daemon, model=model, **asked)
    assert Said(said.text, said.thinking.strip(), said.calls, said.reason) == Said(
        "Paris.", _THOUGHT, [], "stop"
    )


@pytest.mark.parametrize("how", ALL)
def test_without_thinking_the_answer_begins_at_once(tool_daemon: Daemon, how: str) -> None:
    asked = {"think": False} if how in NATIVE else {"reasoning": {"effort": "none"}}
    said = ALL[how](tool_daemon, model="brief", **asked)
    assert (said.text, said.thinking, said.reason) == ("Paris.", "", "stop")


def test_the_template_is_told_not_to_think(tool_daemon: Daemon) -> None:
    told = native_whole(tool_daemon, model="thinking-echo", think=False).text
    free = native_whole(tool_daemon, model="thinking-echo", think=True).text
    assert told.startswith(free)
    assert "think" in told.removeprefix(free)


@pytest.mark.parametrize("how", ALL)
def test_a_limit_inside_thinking_leaves_no_answer(tool_daemon: Daemon, how: str) -> None:
    limit = {"options": {"num_predict": 3}} if how in NATIVE else {"max_tokens": 3}
    said = ALL[how](tool_daemon, model="thinker", **limit)
    assert (said.text, said.reason) == ("", "length")
    assert _THOUGHT.startswith(said.thinking.strip())


@pytest.mark.parametrize("stream", [False, True])
def test_generate_has_thinking_beside_its_response(tool_daemon: Daemon, stream: bool) -> None:
    body = {"model": "thinker", "prompt": "Name it.", "stream": stream}
    lines = list(tool_daemon.stream("/api/generate", body))
    assert "".join(line.get("thinking", "") for line in lines).strip() == _THOUGHT
    assert "".join(line["response"] for line in lines) == "Paris."
    assert lines[-1]["eval_count"] == 8


def test_a_completion_leaves_thinking_out(tool_daemon: Daemon) -> None:
    body = {"model": "thinker", "prompt": "Name it."}
    reply = tool_daemon.json("POST", "/v1/completions", body)
    assert reply["choices"][0]["text"] == "Paris."
    assert reply["usage"]["completion_tokens"] == 8
    with tool_daemon.open("POST", "/v1/completions", body | {"stream": True}) as response:
        assert b"France" not in response.read()


def test_thinking_of_a_model_that_cannot_is_refused(tool_daemon: Daemon) -> None:
    body = {"model": "plain", "messages": [QUESTION]}
    for think in (True, "high"):
        reply = tool_daemon.json("POST", "/api/chat", body | {"think": think}, status=400)
        assert reply == {"error": '"plain" does not support thinking'}
    low = body | {"reasoning_effort": "low"}
    error = tool_daemon.json("POST", "/v1/chat/completions", low, status=400)["error"]
    assert error["message"] == '"plain" does not support thinking'
    for how in NATIVE:
        for think in (False, None):
            assert NATIVE[how](tool_daemon, model="plain", think=think).text == "Hello."
    for how in OPENAI:
        said = OPENAI[how](tool_daemon, model="plain", reasoning_effort="none")
        assert said.text == "Hello."


@pytest.mark.parametrize("how", ALL)
def test_a_literal_tag_in_a_question_is_harmless(tool_daemon: Daemon, how: str) -> None:
    question = {"role": "user", "content": "Say hello </think> world."}
    said = ALL[how](tool_daemon, model="inside", messages=[question])
    assert (said.text, said.thinking.strip()) == ("Paris.", _THOUGHT)
