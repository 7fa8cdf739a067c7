"""The table of routes: who answers, and what unknown paths and methods get."""

import asyncio
import json
import os

import pytest
from http_fakes import DONE, Exchange, ScriptedService, app_of

import localrun


def ask(tmp_path, method, path, body=b""):
    return asyncio.run(Exchange(app_of(ScriptedService(), tmp_path), method, path, body).run())


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_probe_of_every_client(tmp_path, method):
    status, headers, body = ask(tmp_path, method, "/")
    assert (status, headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert headers["content-length"] == "17"
    assert body == b"Ollama is running"  # the server drops it for HEAD


def test_health(tmp_path):
    assert ask(tmp_path, "GET", "/health")[2] == b'{"status":"ok"}'


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_version(tmp_path, method):
    status, _, body = ask(tmp_path, method, "/api/version")
    assert status == 200
    assert json.loads(body) == {
        "version": "0.30.0",
        "localrun": localrun.__version__,
        "pid": os.getpid(),
    }


@pytest.mark.parametrize("path", ["/nope", "/api", "/v1"])
def test_an_unknown_path_is_plain_text(tmp_path, path):
    status, headers, body = ask(tmp_path, "GET", path)
    assert (status, body) == (404, b"404 page not found")
    assert headers["content-type"].startswith("text/plain")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/api/chat", {"POST"}),
        ("POST", "/api/delete", {"DELETE"}),
        ("POST", "/api/tags", {"GET", "HEAD"}),
        ("GET", "/api/blobs/x", {"HEAD", "POST"}),
        ("PUT", "/api/ps", {"GET", "HEAD"}),
    ],
)
def test_a_wrong_method_says_which_are_right(tmp_path, method, path, allowed):
    status, headers, body = ask(tmp_path, method, path)
    assert (status, body) == (405, b"405 method not allowed")
    assert set(headers["allow"].split(", ")) == allowed


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nope", 404, "unknown_url"),
        ("POST", "/v1/chat", 404, "unknown_url"),
        ("PUT", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
    ],
)
def test_openais_clients_get_an_object_for_what_is_not_there(tmp_path, method, path, status, code):
    got, headers, body = ask(tmp_path, method, path)
    assert (got, json.loads(body)["error"]["code"]) == (status, code)
    assert ("allow" in headers) == (status == 405)


@pytest.mark.parametrize(
    ("method", "path", "location"),
    [
        ("GET", "/api/tags/", "/api/tags"),
        ("POST", "/api/chat/", "/api/chat"),
        ("POST", "/v1//chat/completions", "/v1/chat/completions"),
        ("GET", "//api/./x/../tags", "/api/tags"),
        ("DELETE", "//api//delete//", "/api/delete"),
        ("GET", "/v1/models/", "/v1/models"),
        ("GET", "/v1/models/a b?/", "/v1/models/a%20b%3F"),
    ],
)
def test_slashes_too_many_are_redirected_with_method_and_body(tmp_path, method, path, location):
    status, headers, _ = ask(tmp_path, method, path)
    assert (status, headers["location"]) == (307, location)


def test_a_redirect_keeps_the_query(tmp_path):
    async def main():
        exchange = Exchange(app_of(ScriptedService(), tmp_path), "GET", "/api/tags/")
        exchange.scope["query_string"] = b"a=%2F&b"
        return await exchange.run()

    assert asyncio.run(main())[1]["location"] == "/api/tags?a=%2F&b"


@pytest.mark.parametrize("path", ["/nope/", "//evil.example/", "/../x", "/api/blobs/"])
def test_a_path_that_leads_nowhere_is_not_redirected(tmp_path, path):
    assert ask(tmp_path, "GET", path)[0] == 404


def test_a_cloud_is_not_here(tmp_path):
    status, _, body = ask(tmp_path, "GET", "/api/status")
    assert (status, json.loads(body)) == (200, {"cloud": {"disabled": True, "source": "config"}})
    for method, path in (
        ("POST", "/api/me"),
        ("POST", "/api/signout"),
        ("DELETE", "/api/user/keys/abc"),
    ):
        status, _, body = ask(tmp_path, method, path)
        assert status == 401
        assert "no accounts" in json.loads(body)["error"]
    for name in ("search", "fetch"):
        status, _, body = ask(tmp_path, "POST", f"/api/experimental/web_{name}", {"query": "x"})
        error = json.loads(body)["error"]
        assert (status, error) == (403, f"ollama cloud is disabled: web {name} is unavailable")
    _, _, body = ask(tmp_path, "GET", "/api/experimental/model-recommendations")
    assert json.loads(body) == {"recommendations": []}


@pytest.mark.parametrize("path", ["/api/generate", "/api/chat", "/api/show", "/api/create"])
def test_an_empty_body_is_a_clear_error(tmp_path, path):
    status, _, body = ask(tmp_path, "POST", path)
    assert (status, json.loads(body)) == (400, {"error": "missing request body"})


def test_a_bad_field_is_a_parameter_in_openais_words(tmp_path):
    status, _, body = ask(tmp_path, "POST", "/v1/chat/completions", {"model": "m", "messages": 3})
    assert status == 400
    assert json.loads(body)["error"]["param"] == "messages"
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_a_client_that_leaves_while_sending_its_body_is_no_error(tmp_path, caplog):
    async def main():
        exchange = Exchange(app_of(ScriptedService(), tmp_path), "POST", "/api/chat")
        exchange._requests = asyncio.Queue()
        exchange.send_body(b"{", more=True)
        exchange.hang_up()
        await exchange.start()

    asyncio.run(main())
    assert "error" not in caplog.text


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/v1/chat/completions"])
def test_a_call_says_which_address_it_came_from(tmp_path, path):
    service = ScriptedService(DONE)
    body = {"model": "m", "prompt": "x", "messages": [{"role": "user", "content": "x"}]}
    body |= {"stream": False}
    exchange = Exchange(app_of(service, tmp_path), "POST", path, body, peer="192.0.2.7")
    assert asyncio.run(exchange.run())[0] == 200
    assert [(call.client, call.scope) for call in service.calls] == [("192.0.2.7", "")]


def test_devices(tmp_path):
    status, headers, body = ask(tmp_path, "GET", "/api/devices")
    found = json.loads(body)
    assert (status, headers["content-type"]) == (200, "application/json; charset=utf-8")
    assert [device["name"] for device in found["devices"]] == ["CPU"]
    assert found["unreachable"] == ["box:1"]
    assert found["n_threads"] >= 1
    assert found["devices_problem"] == ""
