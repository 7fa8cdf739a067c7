"""Anthropic's routes over HTTP, with a scripted service: events on the wire, errors, headers."""

import json
from typing import Any

import pytest
from http_fakes import DONE, Exchange, ScriptedService, app_of, deltas, leave_while_it_opens, run

from localrun.core import Done, TextDelta, ThinkingDelta, ToolCall, ToolCallDelta, Usage
from localrun.errors import BadRequest, QueueFull, RunnerLost
from localrun.http.origins import EXPOSE_HEADERS
from localrun.settings import Settings

BODY = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
THOUGHTFUL = [
    ThinkingDelta("I "),
    ThinkingDelta("see"),
    *deltas("Let me ", "look."),
    ToolCallDelta(ToolCall("weather", {"city": "Oslo"}, "call_1")),
    ToolCallDelta(ToolCall("clock", {}, "call_2"), 1),
    TextDelta("Wait."),
    Done("stop", Usage(prompt_count=9, cached_count=4, completion_count=7)),
]


def post(service: ScriptedService, tmp_path: Any, path: str = "", **fields: Any) -> Exchange:
    return Exchange(app_of(service, tmp_path), "POST", f"/v1/messages{path}", BODY | fields)


def events(body: bytes) -> list[dict[str, Any]]:
    """The data of all events, whose names are their types."""
    found = []
    assert body.endswith(b"\n\n")
    for block in body.decode().removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def message_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a stream comes to, as Anthropic's own clients put it together."""
    first, *others, delta, last = found
    assert (first["type"], delta["type"], last["type"]) == (
        *("message_start", "message_delta"),
        "message_stop",
    )
    message = first["message"]
    open_index = None
    for event in others:
        match event["type"]:
            case "content_block_start":
                assert open_index is None
                open_index = event["index"]
                assert open_index == len(message["content"])
                message["content"].append(event["content_block"])
            case "content_block_delta":
                assert event["index"] == open_index
                (kind,) = event["delta"].keys() - {"type"}
                if kind == "partial_json":
                    message["content"][-1]["input"] = json.loads(event["delta"][kind])
                else:
                    message["content"][-1][kind] += event["delta"][kind]
            case "content_block_stop":
                assert event["index"] == open_index
                open_index = None
    assert open_index is None
    return message | delta["delta"] | {"usage": delta["usage"]}


def test_a_stream_comes_to_the_whole_message(tmp_path):
    async def main():
        _, _, streamed = await post(ScriptedService(*THOUGHTFUL), tmp_path, stream=True).run()
        _, _, whole = await post(ScriptedService(*THOUGHTFUL), tmp_path).run()
        message = json.loads(whole)
        found = events(streamed)
        assert found[0]["message"]["usage"]["input_tokens"] == 3
        assert found[0]["message"]["stop_reason"] is None
        assert message_of(found) | {"id": ""} == message | {"id": ""}
        assert message["content"] == [
            {"type": "thinking", "thinking": "I see", "signature": ""},
            {"type": "text", "text": "Let me look."},
            {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Oslo"}},
            {"type": "tool_use", "id": "call_2", "name": "clock", "input": {}},
            {"type": "text", "text": "Wait."},
        ]
        assert message["stop_reason"] == "tool_use"
        assert message["usage"] == {
            "input_tokens": 5,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 4,
            "output_tokens": 7,
        }

    run(main())


def test_the_message_begins_before_the_first_token(tmp_path):
    async def main():
        service = ScriptedService()
        exchange = post(service, tmp_path, stream=True)
        task = exchange.start()
        status, headers = await exchange.head()
        assert status == 200
        assert headers["content-type"] == "text/event-stream"
        assert headers["request-id"].startswith("req_")
        (begin,) = events(await exchange.piece())
        assert begin["message"]["content"] == []
        assert service.answer.n_taken == 0
        service.answer.script.put_nowait(TextDelta("one"))
        start, delta = events(await exchange.piece())
        assert start["content_block"] == {"type": "text", "text": ""}
        assert delta["delta"] == {"type": "text_delta", "text": "one"}
        service.answer.script.put_nowait(DONE)
        await task

    run(main())


@pytest.mark.parametrize("stream", [True, False])
def test_thinking_that_is_to_be_omitted_is(tmp_path, stream):
    async def main():
        thinking = {"type": "adaptive", "display": "omitted"}
        service = ScriptedService(*THOUGHTFUL)
        _, _, body = await post(service, tmp_path, stream=stream, thinking=thinking).run()
        assert b"I see" not in body
        assert b"thinking" not in body
        assert b"look." in body

    run(main())


def test_an_answer_without_a_word_has_no_blocks(tmp_path):
    async def main():
        _, _, body = await post(ScriptedService(DONE), tmp_path).run()
        assert json.loads(body)["content"] == []
        _, _, body = await post(ScriptedService(DONE), tmp_path, stream=True).run()
        assert message_of(events(body))["content"] == []

    run(main())


def test_an_error_in_a_stream_is_an_event_and_nothing_follows(tmp_path):
    async def main():
        lost = RunnerLost("decode", "cannot open /home/somebody/models/blob-1: killed")
        service = ScriptedService(TextDelta("He"), lost)
        _, headers, body = await post(service, tmp_path, stream=True).run()
        *_, delta, error = events(body)
        assert delta["type"] == "content_block_delta"
        assert error["type"] == "error"
        assert error["error"]["type"] == "api_error"
        assert "somebody" not in error["error"]["message"]
        assert error["request_id"] == headers["request-id"]
        assert service.answer.n_closed == 1

    run(main())


@pytest.mark.parametrize("stream", [True, False])
def test_a_full_queue_is_an_overload_that_says_when_to_come_back(tmp_path, stream):
    async def main():
        service = ScriptedService(error=QueueFull(5, 3))
        status, headers, body = await post(service, tmp_path, stream=stream).run()
        assert (status, headers["retry-after"]) == (503, "3")
        error = json.loads(body)
        assert error["error"]["type"] == "overloaded_error"
        assert error["request_id"] == headers["request-id"]

    run(main())


def test_tokens_are_counted(tmp_path):
    async def main():
        service = ScriptedService()
        status, headers, body = await post(service, tmp_path, "/count_tokens").run()
        assert (status, json.loads(body)) == (200, {"input_tokens": 3})
        assert headers["request-id"].startswith("req_")
        (call,) = service.calls
        assert call.client == "127.0.0.1"

    run(main())


def test_a_count_that_fails_has_its_status_and_form(tmp_path):
    async def main():
        service = ScriptedService(error=BadRequest("messages", "no"))
        status, _, body = await post(service, tmp_path, "/count_tokens").run()
        assert (status, json.loads(body)["error"]["type"]) == (400, "invalid_request_error")

    run(main())


def test_who_leaves_ends_the_count(tmp_path):
    async def main():
        service = ScriptedService()
        await leave_while_it_opens(service, post(service, tmp_path, "/count_tokens"))

    run(main())


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("POST", "/v1/messages/batches", 404, "not_found_error"),
        ("DELETE", "/v1/messages/count_tokens", 405, "invalid_request_error"),
    ],
)
def test_unknown_routes_and_methods_answer_in_the_same_form(tmp_path, method, path, status, kind):
    async def main():
        exchange = Exchange(app_of(ScriptedService(), tmp_path), method, path)
        got, _, body = await exchange.run()
        found = json.loads(body)
        assert (got, found["type"], found["error"]["type"]) == (status, "error", kind)

    run(main())


def test_a_thread_is_refused_in_words_that_clients_know(tmp_path):
    async def main():
        thread = {"type": "create"}
        status, _, body = await post(ScriptedService(), tmp_path, thread=thread).run()
        details = json.loads(body)["error"]["details"]
        assert (status, details) == (400, {"error_code": "thread_unsupported_request"})

    run(main())


def test_what_looks_alike_is_openais(tmp_path):
    async def main():
        exchange = Exchange(app_of(ScriptedService(), tmp_path), "GET", "/v1/messagesx")
        _, _, body = await exchange.run()
        assert "type" not in json.loads(body)

    run(main())


def test_its_key_may_come_in_its_own_header(tmp_path):
    async def main():
        app = app_of(ScriptedService(DONE), tmp_path, settings=Settings(api_key="sk-right"))
        for key, status in (("sk-right", 200), ("sk-wrong", 401)):
            exchange = Exchange(app, "POST", "/v1/messages", BODY, {"x-api-key": key})
            got, _, body = await exchange.run()
            assert got == status
        assert json.loads(body)["error"]["type"] == "authentication_error"

    run(main())


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/responses"])
def test_without_a_key_the_dialects_header_is_named(tmp_path, path):
    async def main():
        app = app_of(ScriptedService(), tmp_path, settings=Settings(api_key="sk-right"))
        status, _, body = await Exchange(app, "POST", path, BODY).run()
        message = json.loads(body)["error"]["message"]
        assert (status, "`Authorization: Bearer KEY`" in message) == (401, True)
        assert ("`x-api-key: KEY`" in message) == path.startswith("/v1/messages")

    run(main())


def test_a_page_may_send_and_read_its_headers(tmp_path):
    async def main():
        headers = {"Origin": "http://localhost:3000"}
        app = app_of(ScriptedService(), tmp_path)
        exchange = Exchange(app, "OPTIONS", "/v1/messages", b"", headers)
        status, granted, _ = await exchange.run()
        assert status == 204
        for name in ("x-api-key", "anthropic-version", "anthropic-beta"):
            assert name in granted["access-control-allow-headers"]
        assert "request-id" in EXPOSE_HEADERS["Access-Control-Expose-Headers"]

    run(main())


def test_what_has_no_effect_is_named(tmp_path):
    async def main():
        hidden = {"type": "redacted_thinking", "data": "x"}
        messages = [{"role": "user", "content": [hidden, {"type": "text", "text": "hi"}]}]
        fields = {"messages": messages, "seed": 7, "metadata": {"user_id": "u"}}
        _, headers, _ = await post(ScriptedService(DONE), tmp_path, **fields).run()
        assert headers["x-localrun-ignored-options"] == "seed, redacted_thinking"

    run(main())
