"""The order on the wire of an answer, and the end of the work when the client is gone."""

import json

import pytest
from http_fakes import DONE, ScriptedService, deltas, run
from stream_routes import ALL, CHAT, COMPLETION, LOST, OPENAI, ROUTES, events, lines, post

from localrun.core import (
    Done,
    TextDelta,
    ThinkingDelta,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from localrun.http.origins import EXPOSE_HEADERS


def _end(index: int) -> Done:
    return Done("stop", Usage(completion_count=1), index=index)


def test_a_native_stream(tmp_path):
    async def main():
        service = ScriptedService(*deltas("He", "llo"), DONE)
        status, headers, body = await post(service, tmp_path, CHAT).run()
        assert status == 200
        assert headers["content-type"] == "application/x-ndjson"
        assert headers["cache-control"] == "no-cache"
        assert headers["x-accel-buffering"] == "no"
        first, second, last = lines(body)
        assert first["message"] == {"role": "assistant", "content": "He"}
        assert second["message"]["content"] == "llo"
        assert (last["done"], last["done_reason"], last["eval_count"]) == (True, "stop", 2)
        assert service.answer.n_closed == 1

    run(main())


def test_an_openai_stream(tmp_path):
    async def main():
        service = ScriptedService(*deltas("He", "llo"), DONE)
        options = {"stream_options": {"include_usage": True}}
        status, headers, body = await post(service, tmp_path, OPENAI, **options).run()
        assert (status, headers["content-type"]) == (200, "text/event-stream")
        *chunks, last = events(body)
        assert last == "[DONE]"
        first, second, finish, usage = map(json.loads, chunks)
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": "He"}
        assert second["choices"][0]["delta"] == {"content": "llo"}
        assert finish["choices"] == [{"index": 0, "delta": {}, "finish_reason": "stop"}]
        assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], 5)
        assert len({chunk["id"] for chunk in (first, second, finish, usage)}) == 1

    run(main())


@pytest.mark.parametrize("route", ALL)
def test_without_stream_the_text_is_one_object(tmp_path, route):
    async def main():
        service = ScriptedService(*deltas("He", "llo"), DONE)
        status, headers, body = await post(service, tmp_path, route, stream=False).run()
        assert status == 200
        assert headers["content-type"].startswith("application/json")
        assert b"Hello" in body
        assert json.loads(body)
        assert service.answer.n_closed == 1

    run(main())


CALL = ToolCall("weather", {"city": "Oslo"}, "call_abcd1234")
THOUGHTFUL = [
    ThinkingDelta("I "),
    ThinkingDelta("see", logprobs=(TokenLogprob(b"see", -0.5),)),
    *deltas("Let me ", "look."),
    ToolCallDelta(CALL),
    DONE,
]


def test_thinking_text_and_calls_are_the_same_streamed_and_whole_natively(tmp_path):
    async def main():
        _, _, body = await post(ScriptedService(*THOUGHTFUL), tmp_path, CHAT).run()
        messages = [line["message"] for line in lines(body)]
        assert [sorted(message)[1:] for message in messages] == [
            *[["role", "thinking"]] * 2,
            *[["role"]] * 2,
            ["role", "tool_calls"],
            ["role"],
        ]
        assert lines(body)[-1]["done_reason"] == "stop"
        service = ScriptedService(*THOUGHTFUL)
        _, _, whole = await post(service, tmp_path, CHAT, stream=False).run()
        message = json.loads(whole)["message"]
        assert message["content"] == "".join(m["content"] for m in messages) == "Let me look."
        assert message["thinking"] == "I see"
        assert message["tool_calls"] == messages[4]["tool_calls"]

    run(main())


def test_thinking_text_and_calls_are_the_same_streamed_and_whole_for_openai(tmp_path):
    async def main():
        _, _, body = await post(ScriptedService(*THOUGHTFUL), tmp_path, OPENAI).run()
        *chunks, last = events(body)
        assert last == "[DONE]"
        choices = [json.loads(chunk)["choices"][0] for chunk in chunks]
        (call,) = (c["delta"]["tool_calls"][0] for c in choices if "tool_calls" in c["delta"])
        service = ScriptedService(*THOUGHTFUL)
        _, _, whole = await post(service, tmp_path, OPENAI, stream=False).run()
        choice = json.loads(whole)["choices"][0]
        message = choice["message"]
        texts = ("content", "reasoning", "reasoning_content")
        assert [message[name] for name in texts] == ["Let me look.", "I see", "I see"]
        for name in texts:
            assert message[name] == "".join(c["delta"].get(name, "") for c in choices)
        assert call == {"index": 0} | message["tool_calls"][0]
        assert json.loads(call["function"]["arguments"]) == CALL.arguments
        assert choice["finish_reason"] == choices[-1]["finish_reason"] == "tool_calls"

    run(main())


@pytest.mark.parametrize("stream", [True, False])
def test_a_completion_leaves_out_what_the_model_thinks(tmp_path, stream):
    async def main():
        script = [ThinkingDelta("hm", logprobs=(TokenLogprob(b"hm", -1.0),)), *deltas("4"), DONE]
        service = ScriptedService(*script)
        exchange = post(service, tmp_path, COMPLETION, stream=stream, logprobs=0)
        _, _, body = await exchange.run()
        assert b"hm" not in body
        documents = events(body)[:-1] if stream else [body]
        texts = [json.loads(document)["choices"][0]["text"] for document in documents]
        assert "".join(texts) == "4"

    run(main())


@pytest.mark.parametrize("route", ROUTES)
def test_tools_thinking_and_schemas_reach_the_service(tmp_path, route):
    async def main():
        service = ScriptedService(DONE)
        tool = {"type": "function", "function": {"name": "f"}}
        fields = {"tools": [tool], "think": "low", "reasoning_effort": "low", "format": "json"}
        fields["response_format"] = {"type": "json_object"}
        status, _, _ = await post(service, tmp_path, route, **fields).run()
        assert status == 200
        (call,) = service.calls
        (prompt,) = call.prompts
        assert json.loads(call.schema or "") == {"type": "object"}
        is_chat = route in (CHAT, OPENAI)
        assert [tool.name for tool in prompt.tools] == (["f"] if is_chat else [])
        assert prompt.think == (None if route is COMPLETION else "low")

    run(main())


def test_a_stream_of_several_choices_ends_with_the_last_of_them(tmp_path):
    async def main():
        script = [TextDelta("b", 1), TextDelta("a"), _end(1), TextDelta("a"), _end(0)]
        service = ScriptedService(*script)
        _, _, body = await post(service, tmp_path, OPENAI, n=2).run()
        *chunks, last = events(body)
        choices = [json.loads(chunk)["choices"][0] for chunk in chunks]
        assert [choice["index"] for choice in choices] == [1, 0, 1, 0, 0]
        assert [choice["finish_reason"] for choice in choices] == [None, None, "stop", None, "stop"]
        assert last == "[DONE]"
        assert service.calls[0].n_choices == 2
        assert service.answer.n_closed == 1

    run(main())


def test_several_whole_choices_stand_in_their_order(tmp_path):
    async def main():
        script = [TextDelta("c", 2), _end(2), _end(0), TextDelta("b", 1), _end(1)]
        body = {"prompt": ["x", "y", "z"], "stream": False}
        _, _, body = await post(ScriptedService(*script), tmp_path, COMPLETION, **body).run()
        choices = json.loads(body)["choices"]
        assert [(choice["index"], choice["text"]) for choice in choices] == [
            (0, ""),
            (1, "b"),
            (2, "c"),
        ]

    run(main())


@pytest.mark.parametrize("stream", [True, False])
def test_an_error_of_one_choice_is_the_only_end_of_all(tmp_path, stream):
    async def main():
        service = ScriptedService(TextDelta("a"), _end(0), LOST)
        status, _, body = await post(service, tmp_path, OPENAI, n=2, stream=stream).run()
        last = events(body)[-1] if stream else body
        assert json.loads(last)["error"]["code"] == "runner_lost"
        assert status == (200 if stream else 500)
        assert b"[DONE]" not in body
        assert service.answer.n_closed == 1

    run(main())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("reason", ["load", "unload"])
def test_a_load_is_one_object_whatever_stream_says(tmp_path, stream, reason):
    async def main():
        service = ScriptedService(Done(reason, Usage(load_ns=5)))
        route = ("/api/generate", {"model": "m", "stream": stream, "keep_alive": 0})
        status, headers, body = await post(service, tmp_path, route).run()
        assert (status, headers["content-type"]) == (200, "application/json; charset=utf-8")
        reply = json.loads(body)
        assert (reply["done"], reply["done_reason"], reply["response"]) == (True, reason, "")
        assert "load_duration" not in reply
        assert service.calls[0].keep_alive_s == 0

    run(main())


@pytest.mark.parametrize("route", ROUTES)
def test_headers_leave_before_the_first_token_and_each_piece_at_once(tmp_path, route):
    async def main():
        service = ScriptedService()
        exchange = post(service, tmp_path, route)
        task = exchange.start()
        assert (await exchange.head())[0] == 200
        assert service.answer.n_taken == 0
        for text in ("one", "two"):
            service.answer.script.put_nowait(TextDelta(text))
            assert text.encode() in await exchange.piece()
        service.answer.script.put_nowait(DONE)
        await task

    run(main())


def test_every_piece_is_a_write_of_its_own(tmp_path):
    async def main():
        exchange = post(ScriptedService(*deltas(*"abcdef"), DONE), tmp_path, CHAT)
        await exchange.start()
        await exchange.head()
        for _ in range(7):
            assert len(lines(await exchange.piece())) == 1
        assert exchange.sent.empty()

    run(main())


@pytest.mark.parametrize("stream", [True, False])
def test_what_calls_are_not_held_to_is_named_in_a_header_of_plain_text(tmp_path, stream):
    async def main():
        service = ScriptedService(DONE)
        service.answer.loosened = (
            "f: properties.a.pattern",
            "g: anyOf[0].é,\r\nSet-Cookie: x",
            *(f"h: properties.p{n}" for n in range(100)),
        )
        _, headers, _ = await post(service, tmp_path, CHAT, stream=stream).run()
        first, second, *others = headers["x-localrun-loosened-schemas"].split(", ")
        assert first == "f: properties.a.pattern"
        assert second == "g: anyOf[0].????Set-Cookie: x"
        assert others == [f"h: properties.p{n}" for n in range(30)]
        assert "X-Localrun-Loosened-Schemas" in EXPOSE_HEADERS["Access-Control-Expose-Headers"]
        _, headers, _ = await post(ScriptedService(DONE), tmp_path, CHAT, stream=stream).run()
        assert "x-localrun-loosened-schemas" not in headers

    run(main())


def test_options_without_effect_are_named_in_a_header(tmp_path):
    async def main():
        service = ScriptedService(DONE)
        options = {"tfs_z": 1, "num_ctxx": 2, "bad\r\nname": 3, "ü": 4}
        _, headers, _ = await post(service, tmp_path, CHAT, options=options, seed=1).run()
        assert headers["x-localrun-ignored-options"] == "tfs_z, num_ctxx, seed"
        _, headers, _ = await post(ScriptedService(DONE), tmp_path, CHAT).run()
        assert "x-localrun-ignored-options" not in headers

    run(main())
