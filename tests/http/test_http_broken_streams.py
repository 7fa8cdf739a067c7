"""What ends an answer early: errors, clients that leave, and those that stop reading."""

import asyncio
import json

import pytest
from http_fakes import DONE, Exchange, ScriptedService, deltas, leave_while_it_opens, run
from stream_routes import (
    ALL,
    CHAT,
    GENERATE,
    LOST,
    OPENAI,
    RESPONSES,
    ROUTES,
    events,
    lines,
    post,
)

from localrun.core import TextDelta
from localrun.errors import ContextOverflow, QueueFull, ShuttingDown
from localrun.http.streaming import AnswerResponse
from localrun.wire.native_writer import NativeWriter
from modelstore.errors import ModelNotFound


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ContextOverflow(9, 8), 400, "context_length_exceeded"),
        (ModelNotFound("m:latest"), 404, "model_not_found"),
        (QueueFull(1, 7), 503, "queue_full"),
        (ShuttingDown(), 503, "shutting_down"),
        (LOST, 500, "runner_lost"),
        (KeyError("secret"), 500, "internal_error"),
    ],
)
def test_an_error_before_the_first_byte_has_its_status(tmp_path, error, status, code, stream):
    async def main():
        service = ScriptedService(error=error)
        got, headers, body = await post(service, tmp_path, GENERATE, stream=stream).run()
        assert (got, headers["content-type"]) == (status, "application/json; charset=utf-8")
        assert list(json.loads(body)) == ["error"]
        got, headers, openai = await post(service, tmp_path, OPENAI, stream=stream).run()
        assert got == status
        assert json.loads(openai)["error"]["code"] == code
        # Only the advice differs: OpenAI's clients have no `num_ctx`.
        native = json.loads(body)["error"].replace("num_ctx or ", "")
        assert json.loads(openai)["error"]["message"] == native
        assert headers.get("retry-after") == ("7" if code == "queue_full" else None)
        assert b"/home" not in body
        assert b"secret" not in body

    run(main())


def test_an_unknown_model_is_named_as_it_was_sent(tmp_path):
    async def main():
        service = ScriptedService(error=ModelNotFound("m:latest"))
        for route in ALL:
            _, _, body = await post(service, tmp_path, route).run()
            assert b"model 'm' not found" in body

    run(main())


@pytest.mark.parametrize("error", [LOST, KeyError("secret")])
@pytest.mark.parametrize("stream", [True, False])
def test_an_error_in_a_response_fails_it_and_gives_nothing_away(tmp_path, error, stream):
    async def main():
        service = ScriptedService(*deltas("a"), error)
        status, _, body = await post(service, tmp_path, RESPONSES, stream=stream).run()
        assert status == (200 if stream else 500)
        for hidden in (b"secret", b"/home"):
            assert hidden not in body
        assert (b"response.failed" in body) is stream
        assert b"response.completed" not in body
        assert service.answer.n_closed == 1

    run(main())


@pytest.mark.parametrize("error", [LOST, KeyError("secret")])
def test_an_error_in_a_native_stream_is_its_last_line(tmp_path, error):
    async def main():
        service = ScriptedService(TextDelta("He"), error)
        status, _, body = await post(service, tmp_path, CHAT).run()
        first, last = lines(body)
        assert status == 200
        assert not first["done"]
        assert list(last) == ["error"]
        assert "secret" not in last["error"]
        assert service.answer.n_closed == 1

    run(main())


def test_an_error_in_an_openai_stream_ends_it_without_a_finish(tmp_path):
    async def main():
        _, _, body = await post(ScriptedService(TextDelta("He"), LOST), tmp_path, OPENAI).run()
        first, last = map(json.loads, events(body))
        assert first["choices"][0]["finish_reason"] is None
        assert last["error"]["code"] == "runner_lost"
        assert last["error"]["message"].endswith("cannot open blob-1: killed by signal 9")

    run(main())


@pytest.mark.parametrize("route", ROUTES)
def test_an_error_while_collecting_has_its_status(tmp_path, route):
    async def main():
        service = ScriptedService(TextDelta("He"), LOST)
        status, _, body = await post(service, tmp_path, route, stream=False).run()
        assert (status, list(json.loads(body))) == (500, ["error"])
        assert service.answer.n_closed == 1

    run(main())


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_ends_without_its_done_is_an_error(tmp_path, stream):
    async def main():
        service = ScriptedService(TextDelta("He"), StopAsyncIteration())
        _, _, body = await post(service, tmp_path, CHAT, stream=stream).run()
        assert json.loads(body.splitlines()[-1]) == {"error": "internal error"}

    run(main())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("route", ALL)
def test_a_client_that_leaves_before_the_answer_is_open(tmp_path, route, stream):
    async def main():
        service = ScriptedService()
        await leave_while_it_opens(service, post(service, tmp_path, route, stream=stream))

    run(main())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n_before", [0, 5])
@pytest.mark.parametrize("route", ALL)
def test_a_client_that_leaves_closes_the_answer(tmp_path, route, n_before, stream):
    async def main():
        service = ScriptedService(*deltas(*"x" * n_before))
        exchange = post(service, tmp_path, route, stream=stream)
        task = exchange.start()
        await service.opening.wait()
        exchange.hang_up()
        await task
        assert service.answer.n_closed == 1

    run(main())


def test_a_server_that_stops_closes_the_answer(tmp_path):
    async def main():
        service = ScriptedService()
        exchange = post(service, tmp_path, CHAT)
        task = exchange.start()
        await exchange.head()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert service.answer.n_closed == 1

    run(main())


def test_a_reader_that_stops_is_cut_off(caplog):
    async def main():
        service = ScriptedService(*deltas("a", "b"))

        async def opening():
            return await service.open(None)

        writer = NativeWriter("m", "chat")
        response = AnswerResponse(opening, writer, "native", stream=True, stall_s=0.01)
        exchange = Exchange(response, "POST", "/api/chat")
        exchange.is_reading.clear()
        await exchange.start()
        assert service.answer.n_closed == 1
        assert exchange.sent.empty()

    run(main())
    assert "has not read for" in caplog.text


def test_a_slow_reader_pauses_the_answer_and_loses_nothing(tmp_path):
    async def main():
        service = ScriptedService(*deltas(*map(str, range(1000, 1100))), DONE)
        exchange = post(service, tmp_path, CHAT)
        exchange.is_reading.clear()
        task = exchange.start()
        for _ in range(1000):  # turns of the loop, not time: everything that can run has run
            await asyncio.sleep(0)
        assert service.answer.n_taken == 0  # the headers have not left, so nothing was asked for
        exchange.is_reading.set()
        await task
        assert service.answer.n_taken == 101

    run(main())
