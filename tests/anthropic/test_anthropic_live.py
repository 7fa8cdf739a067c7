"""Anthropic's messages from a daemon: scripted models, then a real one."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from live import Daemon, wait_until
from messages_asking import BOTH, QUESTION, body_of, count, events, n_input, text_of, whole

SMOLLM2 = "smollm2:135m"
WEATHER = {
    "name": "weather",
    "description": "Tells the weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
        "required": ["city"],
    },
}
ways = pytest.mark.parametrize("ask", BOTH.values(), ids=list(BOTH))


# ---- scripted models


@ways
def test_a_tool_is_called_after_a_sentence(scripted_daemon: Daemon, ask: Any) -> None:
    message = ask(scripted_daemon, "caller", tools=[WEATHER])
    text, call = message["content"]
    assert text == {"type": "text", "text": "Let me look."}
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "weather", {"city": "Oslo"})
    assert call["id"]
    assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)


@ways
def test_without_tools_a_call_is_only_text(scripted_daemon: Daemon, ask: Any) -> None:
    for more in ({}, {"tools": [WEATHER], "tool_choice": {"type": "none"}}):
        message = ask(scripted_daemon, "caller", **more)
        assert [block["type"] for block in message["content"]] == ["text"]
        assert message["stop_reason"] == "end_turn"


def test_calls_and_results_reach_the_template(scripted_daemon: Daemon) -> None:
    call = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}}
    result = {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": [{"type": "text", "text": "Rain"}],
    }
    messages = [
        QUESTION,
        {"role": "assistant", "content": [{"type": "text", "text": "Let me look."}, call]},
        {"role": "user", "content": [{"type": "text", "text": "Well?"}, result]},
    ]
    # Without tools, or what the model repeats would be read as a call.
    fields = {"messages": messages, "system": "Be brief.", "max_tokens": 2000}
    prompt = text_of(whole(scripted_daemon, "echo", **fields))
    places = [
        prompt.index(part)
        for part in (
            "Be brief.",
            "Name the capital",
            "Let me look.",
            '{"name": "weather", "arguments": {"city": "Oslo"}}',
            "<tool_response>Rain</tool_response>",
            "Well?",
        )
    ]
    assert places == sorted(places)
    n_more = count(scripted_daemon, "echo", tools=[WEATHER]) - count(scripted_daemon, "echo")
    assert n_more > len(json.dumps(WEATHER))


@ways
def test_thinking_is_a_block_of_its_own(scripted_daemon: Daemon, ask: Any) -> None:
    for thinking in ({"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}, None):
        message = ask(scripted_daemon, "thinker", thinking=thinking)
        thought, text = message["content"]
        assert thought == {"type": "thinking", "thinking": "It is in France.", "signature": ""}
        assert text == {"type": "text", "text": "Paris."}


def test_the_template_is_told_not_to_think(scripted_daemon: Daemon) -> None:
    quiet, free = (
        text_of(whole(scripted_daemon, "thinking-echo", thinking=thinking, max_tokens=500))
        for thinking in ({"type": "disabled"}, {"type": "enabled", "budget_tokens": 1024})
    )
    assert quiet.startswith(free)
    assert "think" in quiet.removeprefix(free)


@ways
@pytest.mark.parametrize(
    "fields",
    [{"thinking": {"type": "enabled", "budget_tokens": 1}}, {"output_config": {"effort": "max"}}],
)
def test_a_model_that_cannot_think_answers_without(
    scripted_daemon: Daemon, ask: Any, fields: dict[str, Any]
) -> None:
    message = ask(scripted_daemon, "counter", **fields)
    assert text_of(message) == "one, two, three, four, five"


@ways
def test_characters_that_are_split_over_tokens_are_whole(scripted_daemon: Daemon, ask: Any) -> None:
    assert text_of(ask(scripted_daemon, "emoji")) == "Grüße 👩‍💻 おはよう"


@ways
def test_the_stop_sequence_is_told_and_not_shown(scripted_daemon: Daemon, ask: Any) -> None:
    message = ask(scripted_daemon, "counter", stop_sequences=["nine", "three"])
    assert text_of(message) == "one, two, "
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "three")


@ways
def test_a_limit_ends_the_message(scripted_daemon: Daemon, ask: Any) -> None:
    message = ask(scripted_daemon, "counter", max_tokens=2)
    assert text_of(message) == "one, two, "
    assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("max_tokens", 2)


def test_a_crash_in_mid_stream_is_an_error_event(scripted_daemon: Daemon) -> None:
    *others, last = events(scripted_daemon, "breaking")
    assert others[0]["type"] == "message_start"
    assert "message_stop" not in {event["type"] for event in others}
    assert last["type"] == "error"
    assert last["error"]["type"] == "api_error"
    assert "unexpectedly stopped" in last["error"]["message"]


@pytest.mark.parametrize("stream", [True, False])
def test_errors_before_the_first_byte_have_a_status(scripted_daemon: Daemon, stream: bool) -> None:
    for fields, status, kind, words in (
        ({"model": "missing"}, 404, "not_found_error", "model 'missing' not found"),
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens: is required"),
        ({"tools": [WEATHER]}, 400, "invalid_request_error", "does not support tools"),
    ):
        body = body_of("counter", stream=stream) | fields
        reply = scripted_daemon.json("POST", "/v1/messages", body, status=status)
        assert (reply["type"], reply["error"]["type"]) == ("error", kind)
        assert words in reply["error"]["message"]


def test_a_client_that_leaves_frees_its_slot(scripted_daemon: Daemon) -> None:
    with scripted_daemon.open(
        "POST", "/v1/messages", body_of("endless", stream=True, max_tokens=10**6)
    ) as response:
        while b"text_delta" not in response.readline():
            pass
        assert scripted_daemon.n_busy() == 1
    wait_until(lambda: scripted_daemon.n_busy() == 0, "the slot to be free")


def test_several_at_once_get_what_is_theirs(scripted_daemon: Daemon) -> None:
    def ask(number: int) -> str:
        messages = [{"role": "user", "content": f"number {number}."}]
        way = list(BOTH.values())[number % 2]
        return text_of(way(scripted_daemon, "echo", messages=messages, max_tokens=500))

    with ThreadPoolExecutor(12) as pool:
        for number, text in enumerate(pool.map(ask, range(12))):
            assert f"number {number}." in text


def test_a_full_queue_is_an_overload(start_daemon: Callable[..., Daemon], fake_model: Any) -> None:
    daemon = start_daemon(NUM_PARALLEL=1, MAX_QUEUE=1)
    daemon.create("m", fake_model(pieces=["la "], endless=True, step_s=0.01))
    body = body_of("m", stream=True, max_tokens=10**6)
    with daemon.open("POST", "/v1/messages", body) as first:
        first.readline()
        wait_until(lambda: daemon.n_busy() == 1, "the first to run")
        with daemon.open("POST", "/v1/messages", body) as second:
            second.readline()
            with daemon.open("POST", "/v1/messages", body) as third:
                assert third.status == 503
                assert int(third.headers["retry-after"]) > 0
                assert json.loads(third.read())["error"]["type"] == "overloaded_error"


def test_a_message_that_only_waited_goes_on_in_a_fresh_runner(
    start_daemon: Callable[..., Daemon], fake_model: Any
) -> None:
    daemon = start_daemon(NUM_PARALLEL=1)
    daemon.create("m", fake_model(echo=True, step_s=0.02))
    long = body_of("m", stream=True, messages=[{"role": "user", "content": "x" * 1000}])
    with daemon.open("POST", "/v1/messages", long | {"max_tokens": 1000}) as first:
        while b"text_delta" not in first.readline():
            pass
        short = body_of("m", stream=True, messages=[{"role": "user", "content": "hi"}])
        with daemon.open("POST", "/v1/messages", short) as second:
            begin = second.readline()
            wait_until(lambda: daemon.ps()[0]["queued"] == 1, "the second to wait")
            daemon.runners()[0].kill()
            rest = second.read()
        assert b"event: error" in first.read()
    # It has begun, with the count of a prompt that is prepared anew, and begins only once.
    assert begin == b"event: message_start\n"
    assert b"message_start" not in rest.partition(b"\n\n")[2]
    assert rest.endswith(b'{"type":"message_stop"}\n\n')


# ---- a real one

_CHATS: dict[str, dict[str, Any]] = {
    "a question": {},
    "a system text": {"system": [{"type": "text", "text": "Answer in one word."}]},
    "turns": {"messages": [QUESTION, {"role": "assistant", "content": "Paris"}, QUESTION]},
    "a turn that was begun": {"messages": [QUESTION, {"role": "assistant", "content": "It is"}]},
    "tools": {"tools": [WEATHER], "tool_choice": {"type": "any"}},
    "thinking": {"thinking": {"type": "enabled", "budget_tokens": 1024}},
}


@pytest.mark.parametrize("chat", _CHATS)
def test_the_count_is_what_the_message_has(smollm2_daemon: Daemon, chat: str) -> None:
    n_tokens = count(smollm2_daemon, SMOLLM2, **_CHATS[chat])
    messages = [
        ask(smollm2_daemon, SMOLLM2, max_tokens=12, **_CHATS[chat]) for ask in BOTH.values()
    ]
    assert [n_input(message) for message in messages] == [n_tokens] * 2
    # Of what has just been computed most is there the second time.
    assert messages[-1]["usage"]["cache_read_input_tokens"] > 0


def test_a_prompt_beyond_the_window_is_counted_to_its_end(
    smollm2_daemon: Daemon, scripted_daemon: Daemon
) -> None:
    def long(n_words: int) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": "word " * n_words}]}

    counts = [count(smollm2_daemon, SMOLLM2, **long(n_words)) for n_words in (1000, 3000, 5000)]
    assert counts[2] - counts[1] == counts[1] - counts[0] == 2000
    message = whole(scripted_daemon, "counter", max_tokens=1, **long(5000))
    n_tokens = count(scripted_daemon, "counter", **long(5000))
    assert n_input(message) + message["usage"]["dropped_tokens"] == n_tokens


def test_megabytes_are_counted(smollm2_daemon: Daemon) -> None:
    def long(n_words: int) -> dict[str, Any]:
        return {"system": "word " * n_words}

    # More than the window has room for by any tokens, and of several parts.
    few, many = (count(smollm2_daemon, SMOLLM2, **long(n)) for n in (1000, 1_000_000))
    assert abs(many - few - 999_000) <= 5


def test_whole_and_streamed_say_the_same(smollm2_daemon: Daemon) -> None:
    said = [ask(smollm2_daemon, SMOLLM2, temperature=0, max_tokens=24) for ask in BOTH.values()]
    assert text_of(said[0]) == text_of(said[1])
    assert "Paris" in text_of(said[0])
    assert said[0]["stop_reason"] == said[1]["stop_reason"] == "end_turn"


@ways
def test_a_tool_has_to_be_called(smollm2_daemon: Daemon, ask: Any) -> None:
    for choice in (
        {"type": "any", "disable_parallel_tool_use": True},
        {"type": "tool", "name": "weather"},
    ):
        message = ask(smollm2_daemon, SMOLLM2, tools=[WEATHER], tool_choice=choice)
        assert {block["type"] for block in message["content"]} == {"tool_use"}
        assert message["content"][0]["name"] == "weather"
        assert message["content"][0]["input"]["city"] in ("Oslo", "Rome")


@ways
def test_an_answer_has_the_form_that_was_asked_for(smollm2_daemon: Daemon, ask: Any) -> None:
    schema = {
        "type": "object",
        "properties": {
            "capital": {"type": "string", "maxLength": 20},
            "is_large": {"type": "boolean"},
        },
        "required": ["capital", "is_large"],
        "additionalProperties": False,
    }
    config = {"format": {"type": "json_schema", "schema": schema}}
    message = ask(smollm2_daemon, SMOLLM2, output_config=config)
    assert json.loads(text_of(message)).keys() == {"capital", "is_large"}
