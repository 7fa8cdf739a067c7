"""API keys: who gets in, what the others are told, and how much one key may have at once."""

import asyncio
import json
import logging

import pytest
from http_fakes import DONE, Exchange, ScriptedAnswer, ScriptedService, app_of

from localrun.core import TextDelta
from localrun.http.keys import load_keys, parse_keys
from localrun.http.routes import Registries, table
from localrun.settings import BadSetting, Settings
from modelstore.store import Store

SECRET = "sk-secret-1"
WITH_KEY = Settings(api_key=SECRET)
CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": False}


def ask(tmp_path, method, path, headers=None, body=b"", settings=WITH_KEY):
    app = app_of(ScriptedService(DONE), tmp_path, settings=settings)
    return asyncio.run(Exchange(app, method, path, body, headers).run())


def all_routes(tmp_path):
    rows = table(ScriptedService(), Store(tmp_path), None, Registries())
    return [
        (method, path.replace("{digest}", "sha256:" + "0" * 64).replace("{model:path}", "m"))
        for methods, path, _ in rows
        for method in methods.split()
    ]


def test_every_route_but_two_needs_the_key(tmp_path):
    for method, path in all_routes(tmp_path):
        if path in ("/", "/health"):
            assert ask(tmp_path, method, path)[0] == 200
            continue
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"x-api-key": SECRET[:-1]}):
            status, got, body = ask(tmp_path, method, path, headers)
            assert status == 401, (method, path)
            assert got["www-authenticate"].startswith("Bearer")
            error = json.loads(body)["error"]
            message = error["message"] if path.startswith("/v1") else error
            assert "API key" in message
            assert SECRET not in message


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {SECRET}"},
        {"Authorization": f"bearer  {SECRET} "},
        {"Authorization": f"BEARER {SECRET}"},
        {"x-api-key": SECRET},
        # As Anthropic's client with both variables set.
        {"x-api-key": SECRET, "Authorization": "Bearer other"},
    ],
)
def test_the_right_key_gets_in(tmp_path, headers):
    assert ask(tmp_path, "GET", "/api/version", headers)[0] == 200
    assert ask(tmp_path, "POST", "/v1/chat/completions", headers, CHAT)[0] == 200


@pytest.mark.parametrize(
    "headers", [{"Authorization": f"Basic {SECRET}"}, {"Authorization": SECRET}, {"Cookie": SECRET}]
)
def test_nothing_else_counts_as_a_key(tmp_path, headers):
    status, got, _ = ask(tmp_path, "GET", "/api/tags", headers)
    assert (status, got["www-authenticate"]) == (401, 'Bearer realm="localrun"')


def test_a_key_in_the_url_is_none(tmp_path):
    async def main():
        app = app_of(ScriptedService(), tmp_path, settings=WITH_KEY)
        exchange = Exchange(app, "GET", "/api/tags")
        exchange.scope["query_string"] = f"api_key={SECRET}&key={SECRET}".encode()
        return await exchange.run()

    assert asyncio.run(main())[0] == 401


def test_preflights_need_no_key_and_a_page_can_read_the_refusal(tmp_path):
    origin = {"Origin": "http://localhost:3000"}
    assert ask(tmp_path, "OPTIONS", "/api/chat", origin)[0] == 204
    status, headers, _ = ask(tmp_path, "POST", "/api/chat", origin)
    assert (status, headers["access-control-allow-origin"]) == (401, origin["Origin"])


def test_no_key_is_ever_logged(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    for key in (SECRET, "sk-wrong-2"):
        ask(tmp_path, "GET", "/api/version", {"Authorization": f"Bearer {key}"})
        ask(tmp_path, "GET", "/api/version", {"x-api-key": key})
    assert "sk-" not in caplog.text
    assert SECRET not in repr(WITH_KEY)


def test_a_key_is_a_client_and_a_scope_of_its_own(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# for the house\nada: k-1\n\nk-2\n")
    file.chmod(0o600)
    settings = Settings(api_key=SECRET, api_keys_file=file)
    service = FreshService()
    app = app_of(service, tmp_path, settings=settings)

    async def main():
        for key in (SECRET, "k-1", "k-2"):
            await Exchange(app, "POST", "/api/chat", CHAT, {"x-api-key": key}).run()

    asyncio.run(main())
    assert [call.scope for call in service.calls] == ["default", "ada", "line-4"]
    assert len({call.client for call in service.calls}) == 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "there is no key"),
        ("# nothing\n\n", "there is no key"),
        ("ok: fine\nname:key\n", "line 2"),
        (": key", "line 1"),
        ("name: a b", "line 1"),
        ("name: schlüssel", "line 1"),
        ("a: one\na: two", "same name"),
        ("a: one\nb: one", "stands there twice"),
        ("b: sk-secret-1", "stands there twice"),
        ("default: x", "same name"),
    ],
)
def test_a_file_of_keys_that_cannot_be_meant_stops_the_start(tmp_path, text, problem):
    file = tmp_path / "keys"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(BadSetting, match=problem) as caught:
        load_keys(Settings(api_key=SECRET, api_keys_file=file))
    assert "one" not in str(caught.value).replace("one on each", "")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o602])
def test_a_file_that_others_may_use_is_refused(tmp_path, mode):
    file = tmp_path / "keys"
    file.write_text("k")
    file.chmod(mode)
    with pytest.raises(BadSetting, match="chmod 600"):
        load_keys(Settings(api_keys_file=file))


def test_a_missing_file_of_keys_is_refused(tmp_path):
    with pytest.raises(BadSetting, match="cannot be read"):
        load_keys(Settings(api_keys_file=tmp_path / "no"))


def test_names_of_keys_may_hold_colons():
    assert [key.name for key in parse_keys("a:b: k\nteam: x: k2")] == ["a:b", "team: x"]


# ---- how much one key may have at once


@pytest.mark.parametrize(
    "settings",
    [
        Settings(max_running_per_key=1),
        Settings(api_key=SECRET, max_queued_per_key=1),
    ],
)
def test_limits_without_effect_stop_the_start(tmp_path, settings):
    with pytest.raises(BadSetting, match="PER_KEY"):
        app_of(ScriptedService(), tmp_path, settings=settings)


class FreshService(ScriptedService):
    """A new answer for each call, by `script`."""

    script = (DONE,)

    async def open(self, call):
        await super().open(call)
        return ScriptedAnswer(*self.script)


class Crowd:
    """Requests of one key to an application in which one may run and one may wait."""

    def __init__(self, tmp_path, max_queued=1):
        settings = Settings(api_key=SECRET, max_running_per_key=1, max_queued_per_key=max_queued)
        self.service = FreshService()
        self.service.gate.clear()
        self.app = app_of(self.service, tmp_path, settings=settings)

    async def begin(self, body=CHAT, path="/api/chat"):
        exchange = Exchange(self.app, "POST", path, body, {"x-api-key": SECRET})
        task = exchange.start()
        for _ in range(10):
            await asyncio.sleep(0)
        return exchange, task


def test_more_than_may_wait_are_told_to_come_back(tmp_path):
    async def main():
        crowd = Crowd(tmp_path)
        first, second = await crowd.begin(), await crowd.begin()
        assert len(crowd.service.calls) == 1
        third, task = await crowd.begin(path="/v1/chat/completions")
        await task
        status, headers = await third.head()
        error = json.loads(await third.piece())["error"]
        assert (status, headers["retry-after"]) == (429, "1")
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        crowd.service.gate.set()
        for exchange, running in (first, second):
            await running
            assert (await exchange.head())[0] == 200

    asyncio.run(main())


@pytest.mark.parametrize("leaves", ["running", "waiting"])
def test_a_client_that_leaves_gives_its_place_to_the_next(tmp_path, leaves):
    async def main():
        crowd = Crowd(tmp_path)
        exchanges = [await crowd.begin(), await crowd.begin()]
        leaver, task = exchanges.pop(0 if leaves == "running" else 1)
        leaver.hang_up()
        await task
        third = await crowd.begin()
        crowd.service.gate.set()
        await exchanges[0][1]
        await third[1]
        assert (await third[0].head())[0] == 200

    asyncio.run(main())


def test_an_error_gives_the_turn_back(tmp_path):
    async def main():
        crowd = Crowd(tmp_path, max_queued=0)
        crowd.service.gate.set()
        crowd.service.error = ValueError("a bug")
        for _ in range(3):
            exchange, task = await crowd.begin()
            await task
            assert (await exchange.head())[0] == 500
        crowd.service.error = None
        crowd.service.script = (TextDelta("a"), ValueError("another"))
        exchange, task = await crowd.begin(CHAT | {"stream": True})
        await task
        crowd.service.script = (DONE,)
        exchange, task = await crowd.begin()
        await task
        assert (await exchange.head())[0] == 200

    asyncio.run(main())
