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


@pytest.mark.parametrize("path", ["/nope", "/api", "/v1/nope"])
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
        ("PUT", "/v1/models", {"GET", "HEAD"}),
    ],
)
def test_a_wrong_method_says_which_are_right(tmp_path, method, path, allowed):
    status, headers, body = ask(tmp_path, method, path)
    assert (status, body) == (405, b"405 method not allowed")
    assert set(headers["allow"].split(", ")) == allowed


@pytest.mark.parametrize(("method", "path"), [("GET", "/api/tags"), ("POST", "/api/chat")])
def test_a_trailing_slash_is_redirected(tmp_path, method, path):
    status, headers, _ = ask(tmp_path, method, path + "/")
    assert (status, headers["location"]) == (307, f"http://127.0.0.1:11434{path}")


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
