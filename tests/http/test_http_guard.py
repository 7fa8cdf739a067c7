"""What a request passes before any handler: origin, host, size, pace, shutdown, log line."""

import asyncio
import json
import logging

import pytest
from http_fakes import Exchange, ScriptedService, app_of

from localrun.http.guard import Limits
from localrun.http.origins import changes_models
from localrun.http.routes import Life, Registries, table
from localrun.settings import BadSetting, Settings
from modelstore.store import Store


def ask(tmp_path, method="GET", path="/api/version", headers=None, body=b"", **more):
    """(status, headers, body) of one request to a fresh application."""
    app = app_of(ScriptedService(), tmp_path, **more)
    return asyncio.run(Exchange(app, method, path, body, headers).run())


ALLOWED = [
    "http://localhost",
    "http://localhost:3000",
    "https://127.0.0.1:8080",
    "http://0.0.0.0",
    "app://obsidian.md",
    "file://",
    "tauri://localhost",
    "vscode-webview://abc",
]
REFUSED = [
    "https://evil.example",
    "null",
    "chrome-extension://id",
    "http://localhost.evil.example",
    "http://localhost:80.evil.example",
    "http://localhost:x",
    "https://evil.example#http://localhost",
]


@pytest.mark.parametrize("origin", ALLOWED)
def test_local_origins_may_call(tmp_path, origin):
    status, headers, _ = ask(tmp_path, headers={"Origin": origin})
    assert (status, headers["access-control-allow-origin"]) == (200, origin)
    assert headers["vary"] == "Origin"
    assert "access-control-allow-credentials" not in headers


@pytest.mark.parametrize("origin", REFUSED)
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/"), ("DELETE", "/api/delete"), ("OPTIONS", "/x"), ("GET", "/x")]
)
def test_foreign_origins_are_refused_everywhere(tmp_path, origin, method, path):
    status, headers, body = ask(tmp_path, method, path, {"Origin": origin})
    assert status == 403
    assert "LOCALRUN_ORIGINS" in json.loads(body)["error"]
    assert "access-control-allow-origin" not in headers


def test_the_same_origin_needs_no_grant(tmp_path):
    headers = {"Host": "box.local:11434", "Origin": "http://box.local:11434"}
    status, headers, _ = ask(tmp_path, headers=headers)
    assert status == 200
    assert "access-control-allow-origin" not in headers


def test_a_preflight_is_answered_by_the_guard(tmp_path):
    origin = {"Origin": "http://localhost:3000"}
    status, headers, body = ask(tmp_path, "OPTIONS", "/api/chat", origin)
    assert (status, body) == (204, b"")
    assert headers["access-control-allow-methods"] == "GET,POST,PUT,PATCH,DELETE,HEAD,OPTIONS"
    assert headers["access-control-max-age"] == "43200"
    allowed = headers["access-control-allow-headers"].lower().split(",")
    assert {"authorization", "x-api-key", "anthropic-version", "anthropic-beta"} <= set(allowed)
    assert "x-stainless-retry-count" in allowed


def test_options_without_an_origin_is_a_wrong_method(tmp_path):
    status, headers, body = ask(tmp_path, "OPTIONS", "/api/chat")
    assert (status, headers["allow"], body) == (405, "POST", b"405 method not allowed")


@pytest.mark.parametrize(
    ("entry", "origin", "status"),
    [
        ("https://chat.example", "https://chat.example", 200),
        ("https://chat.example/", "https://chat.example", 200),
        ("https://chat.example", "https://chat.example.evil", 403),
        ("https://*.example", "https://a.example", 200),
        ("https://*.example", "https://a.example.evil", 403),
        ("chrome-extension://*", "chrome-extension://id", 200),
        ("*", "https://evil.example", 200),
        ("*", "null", 200),
    ],
)
def test_configured_origins_come_on_top(tmp_path, entry, origin, status):
    settings = Settings(origins=(entry,))
    got, headers, _ = ask(tmp_path, headers={"Origin": origin}, settings=settings)
    assert got == status
    if entry == "*":
        assert headers["access-control-allow-origin"] == "*"
        assert "vary" not in headers


@pytest.mark.parametrize("entry", ["example.org", "https://*.*", ""])
def test_an_origin_that_cannot_match_stops_the_start(tmp_path, entry):
    with pytest.raises(BadSetting, match="LOCALRUN_ORIGINS"):
        app_of(ScriptedService(), tmp_path, settings=Settings(origins=(entry,)))


GOOD_HOSTS = [
    "127.0.0.1:11434",
    "127.0.0.1",
    "[::1]:11434",
    "[::1]",
    "LOCALHOST:11434",
    "localhost.",
    "",
    "a.localhost",
    "box.local:11434",
    "host.docker.internal",
    "192.168.1.5:11434",
    "0.0.0.0",
]
EVIL_HOSTS = [
    "evil.example:11434",
    "evil.example",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "evillocalhost",
    "[evil]",
    "0x7f000001",
]


@pytest.mark.parametrize("host", GOOD_HOSTS)
def test_hosts_of_this_machine_pass(tmp_path, host):
    assert ask(tmp_path, headers={"Host": host})[0] == 200


@pytest.mark.parametrize("host", EVIL_HOSTS)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS", "DELETE"])
def test_a_rebound_name_reaches_nothing(tmp_path, host, method):
    for headers in ({"Host": host}, {"Host": host, "Origin": f"http://{host}"}):
        for path in ("/api/version", "/", "/health", "/api/delete", "/nope"):
            assert ask(tmp_path, method, path, headers)[0] == 403


def test_two_host_headers_are_refused(tmp_path):
    async def main():
        exchange = Exchange(app_of(ScriptedService(), tmp_path), "GET", "/api/version")
        exchange.scope["headers"].append((b"host", b"127.0.0.1"))
        return await exchange.run()

    assert asyncio.run(main())[0] == 400


def test_beyond_loopback_any_host_name_will_do(tmp_path):
    settings = Settings(host="0.0.0.0")
    assert ask(tmp_path, headers={"Host": "gpu.example"}, settings=settings)[0] == 200


@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
def test_a_body_beyond_the_limit_is_refused(tmp_path, path, announced):
    headers = {"Content-Length": "101"} if announced else {}
    status, headers, body = ask(
        tmp_path, "POST", path, headers, b"x" * 101, limits=Limits(json_bytes=100)
    )
    assert (status, headers["connection"]) == (413, "close")
    assert "larger than" in str(json.loads(body)["error"])


def test_a_blob_may_be_larger(tmp_path):
    path = "/api/blobs/sha256:" + "0" * 64
    length = {"Content-Length": "101"}
    status, _, body = ask(tmp_path, "POST", path, length, b"x" * 101, limits=Limits(json_bytes=9))
    assert status == 400
    assert b"digest mismatch" in body


def test_a_body_that_stops_arriving_is_given_up(tmp_path):
    async def main():
        app = app_of(ScriptedService(), tmp_path, limits=Limits(body_idle_s=0.01))
        exchange = Exchange(app, "POST", "/api/chat")
        exchange._requests = asyncio.Queue()
        exchange.send_body(b"{", more=True)
        return await exchange.run()

    status, headers, body = asyncio.run(main())
    assert (status, headers["connection"]) == (408, "close")
    assert b"stopped arriving" in body


def test_while_draining_nothing_new_begins(tmp_path):
    for path in ("/api/chat", "/v1/chat/completions"):
        status, headers, body = ask(tmp_path, "POST", path, life=Life(is_draining=lambda: True))
        assert (status, headers["connection"]) == (503, "close")
        assert "shutting down" in str(json.loads(body)["error"])


def test_one_line_per_request_and_no_way_to_write_another(tmp_path, caplog):
    caplog.set_level(logging.INFO, "localrun.access")
    ask(tmp_path, "POST", "/nope%0A\n127.0.0.1", body=b"secret")
    (record,) = [r for r in caplog.records if r.name == "localrun.access"]
    line = record.getMessage()
    assert line.startswith("POST /nope%0A")
    assert " 404 " in line
    assert "secret" not in line


# ---- heads that contradict themselves


@pytest.mark.parametrize("status", [200, 403])
def test_the_host_of_a_url_counts_and_not_the_header(tmp_path, status):
    host = "127.0.0.1:11434" if status == 200 else "evil.example"

    async def main():
        exchange = Exchange(app_of(ScriptedService(), tmp_path), "GET", "/api/version")
        exchange.scope["path"] = f"http://{host}/api/version"
        exchange.scope["raw_path"] = exchange.scope["path"].encode()
        return await exchange.run()

    assert asyncio.run(main())[0] == status


@pytest.mark.parametrize("path", ["ftp://127.0.0.1/x", "nonsense", "http:/x"])
def test_a_target_that_is_neither_path_nor_url_is_refused(tmp_path, path):
    assert ask(tmp_path, path=path)[0] == 400


def test_length_and_transfer_encoding_together_are_refused(tmp_path):
    both = {"Content-Length": "2", "Transfer-Encoding": "chunked"}
    status, headers, body = ask(tmp_path, "POST", "/api/chat", both, b"{}")
    assert (status, headers["connection"]) == (400, "close")
    assert b"Transfer-Encoding" in body


def test_a_head_beyond_the_limit_is_refused(tmp_path):
    status, headers, _ = ask(tmp_path, headers={"Cookie": "x" * (33 << 10)})
    assert (status, headers["connection"]) == (431, "close")


@pytest.mark.parametrize("encoding", ["zstd", "gzip", "br", "gzip, identity"])
def test_a_compressed_body_is_refused_with_words(tmp_path, encoding):
    for path in ("/v1/chat/completions", "/api/chat"):
        status, _, body = ask(tmp_path, "POST", path, {"Content-Encoding": encoding}, b"\x28")
        assert status == 415
        assert encoding in str(json.loads(body)["error"])


def test_an_identity_encoding_is_none(tmp_path):
    status, _, body = ask(tmp_path, "POST", "/api/chat", {"Content-Encoding": "Identity"})
    assert (status, json.loads(body)) == (400, {"error": "missing request body"})


# ---- any origin is not any right


EVIL = "https://evil.example"


def test_every_route_that_writes_to_the_store_counts_as_a_change(tmp_path):
    rows = table(ScriptedService(), Store(tmp_path), None, Registries())
    asks = {"/api/show", "/api/generate", "/api/chat", "/v1/chat/completions", "/v1/completions"}
    asks |= {"/api/tokenize", "/api/detokenize", "/api/embed", "/api/embeddings"}
    asks |= {
        *("/v1/responses", "/v1/responses/input_tokens", "/v1/responses/compact"),
        "/v1/embeddings",
        "/v1/rerank",
        "/v1/messages",
        "/v1/messages/count_tokens",
    }
    cloud = {"/api/me", "/api/signout", "/api/user/keys/{key}"}
    for methods, path, _ in rows:
        for method in methods.split():
            changes = changes_models(method, path.replace("{digest}", "sha256:0"))
            is_ask = path in asks | cloud or "experimental" in path
            assert changes == (method in ("POST", "DELETE") and not is_ask), (method, path)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/api/delete"),
        ("OPTIONS", "/api/delete"),
        ("POST", "/api/pull"),
        ("POST", "/api/blobs/sha256:" + "0" * 64),
    ],
)
def test_a_star_does_not_cover_changes_without_a_key(tmp_path, method, path):
    status, headers, body = ask(
        tmp_path, method, path, {"Origin": EVIL}, settings=Settings(origins=("*",))
    )
    assert status == 403
    assert "may not change models" in json.loads(body)["error"]
    assert "access-control-allow-origin" not in headers
    named = Settings(origins=("*", EVIL))
    assert ask(tmp_path, method, path, {"Origin": EVIL}, settings=named)[0] != 403
    local = {"Origin": "http://localhost:1"}
    assert ask(tmp_path, method, path, local, settings=Settings(origins=("*",)))[0] != 403


def test_with_a_key_a_star_covers_everything(tmp_path):
    settings = Settings(origins=("*",), api_key="k")
    status, headers, _ = ask(
        tmp_path,
        "DELETE",
        "/api/delete",
        {"Origin": EVIL, "x-api-key": "k"},
        json.dumps({"model": "m"}).encode(),
        settings=settings,
    )
    assert (status, headers["access-control-allow-origin"]) == (404, "*")
