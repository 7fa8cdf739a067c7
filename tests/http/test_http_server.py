"""The server around the application, with both of uvicorn's parsers and real sockets."""

import asyncio
import http.client
import itertools
import json
import socket
import threading
import time
from contextlib import contextmanager

import pytest
from http_fakes import ScriptedAnswer, ScriptedService, app_of

from localrun.core import TextDelta
from localrun.http.routes import Life
from localrun.server import Server, bind, config
from localrun.settings import Settings

# A hang guard; every wait here ends by what the server does.
LIMIT_S = 20.0

LOCAL = b"Host: localhost\r\n"


def running(app, parser, head_limit_s=LIMIT_S):
    """The port of a server around `app`."""
    return serving(config(app, parser=parser, head_limit_s=head_limit_s))


@contextmanager
def serving(settings):
    """The port of a server in a thread of its own."""
    sock = bind(Settings(port=0))
    server = Server(settings, lambda: None)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[sock])))
    thread.start()
    try:
        yield sock.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(LIMIT_S)
        assert not thread.is_alive()


@pytest.fixture(params=["h11", "httptools"])
def parser(request):
    if request.param == "httptools":
        pytest.importorskip("httptools")
    return request.param


@pytest.fixture
def port(parser, tmp_path):
    with running(app_of(ScriptedService(), tmp_path), parser) as port:
        yield port


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)


def read_all(sock):
    """What the server sends until it closes; a reset counts as a close."""
    data = b""
    try:
        while piece := sock.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    return data


def exchange(port, *pieces):
    with connect(port) as sock:
        sock.sendall(b"".join(pieces))
        return read_all(sock)


def is_cut_off(sock, pieces):
    """Whether the server ends the connection before all pieces are sent, or the hang guard."""
    deadline = time.monotonic() + LIMIT_S
    try:
        for piece in pieces:
            sock.sendall(piece)
            if time.monotonic() > deadline:
                return False
    except (BrokenPipeError, ConnectionResetError):
        return True
    return False


def status_of(reply):
    return int(reply.split(b" ", 2)[1])


def test_a_request(port):
    reply = exchange(port, b"GET /api/version HTTP/1.1\r\n", LOCAL, b"Connection: close\r\n\r\n")
    assert status_of(reply) == 200
    assert b"localrun" in reply


@pytest.mark.parametrize(
    ("start", "headers", "statuses"),
    [
        (b"GET /api/version", b"Host: evil.example\r\n", {403}),
        (b"HEAD /api/version", b"Host: evil.example:11434\r\n", {403}),
        (b"OPTIONS /api/delete", b"Host: 127.0.0.1.evil.example\r\n", {403}),
        (b"DELETE /api/delete", b"Host: localhost.evil.example\r\n", {403}),
        (b"GET /api/version", b"Host: localhost\r\nHost: localhost\r\n", {400}),
        (b"GET /api/version", b"Host: localhost\r\nHost: evil.example\r\n", {400}),
        (b"GET http://evil.example/api/version", LOCAL, {403}),
        (b"GET http://evil.example:80/", LOCAL, {403}),
        (b"GET http://localhost:11434/api/version?x=1", b"Host: evil.example\r\n", {200}),
        (b"GET http://127.0.0.1/api/version", LOCAL, {200}),
        (b"GET nonsense", LOCAL, {400}),
        (b"GET ftp://localhost/api/version", LOCAL, {400}),
        (b"GET /api/version", b"Host: [::1]:11434\r\n", {200}),
    ],
)
def test_hosts_by_header_and_by_url(port, start, headers, statuses):
    reply = exchange(port, start, b" HTTP/1.1\r\n", headers, b"Connection: close\r\n\r\n")
    assert status_of(reply) in statuses


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 2\r\nContent-Length: 3\r\n",
        b"Content-Length: -1\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Bad Header: x\r\n",
    ],
)
def test_a_body_whose_length_is_doubtful_is_refused_and_the_connection_ends(port, headers):
    smuggled = b"0\r\n\r\nDELETE /api/delete HTTP/1.1\r\nHost: localhost\r\n\r\n"
    reply = exchange(port, b"POST /api/show HTTP/1.1\r\n", LOCAL, headers, b"\r\n", smuggled)
    assert reply.count(b"HTTP/1.1 ") == 1
    assert 400 <= status_of(reply) < 500


def test_a_head_that_does_not_end_is_given_up(parser, tmp_path):
    with running(app_of(ScriptedService(), tmp_path), parser, head_limit_s=0.3) as port:
        for begin in (b"", b"G", b"GET /api/version HTTP/1.1\r\nHost: localhost\r\nX: "):
            with connect(port) as sock:
                sock.sendall(begin)
                assert read_all(sock) == b""
        with connect(port) as sock:
            # Byte by byte, which every limit on silence would let pass.
            assert is_cut_off(sock, itertools.repeat(b"x"))


def test_a_second_head_on_a_connection_is_bounded_like_the_first(parser, tmp_path):
    app = app_of(ScriptedService(), tmp_path)
    with running(app, parser, head_limit_s=0.3) as port, connect(port) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status_of(sock.recv(65536)) == 200
        sock.sendall(b"GET /hea")
        assert b"HTTP/1.1" not in read_all(sock)


def test_a_slow_answer_is_no_slow_head(parser, tmp_path):
    service = ScriptedService()
    service.answer = None

    async def open_slowly(call):
        await asyncio.sleep(0.5)  # longer than the head may take
        return ScriptedAnswer(TextDelta("late"), ValueError("the end"))

    service.open = open_slowly
    body = json.dumps({"model": "m", "prompt": "x"}).encode()
    with running(app_of(service, tmp_path), parser, head_limit_s=0.2) as port:
        head = b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        length = b"Content-Length: %d\r\n\r\n" % len(body)
        reply = exchange(port, head + length + body)
    assert status_of(reply) == 200
    assert b"late" in reply


def test_a_head_that_is_too_large_is_refused(port):
    line = b"X: " + b"x" * 4000 + b"\r\n"
    reply = exchange(port, b"GET /health HTTP/1.1\r\n", LOCAL, line * 9, b"\r\n")
    assert status_of(reply) in (400, 431)


def test_a_head_without_end_does_not_pile_up(port):
    with connect(port) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\n")
        assert is_cut_off(sock, itertools.repeat(b"X: " + b"x" * 4000 + b"\r\n", 10_000))


def test_the_rest_of_a_refused_body_is_read_so_that_the_refusal_arrives(parser, tmp_path):
    size = 4 << 20
    app = app_of(ScriptedService(), tmp_path, settings=Settings(api_key="k"))
    with running(app, parser) as port, connect(port) as sock:
        sock.sendall(
            b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size
        )
        sock.sendall(b"x" * size)
        # Head and body may arrive apart.
        with http.client.HTTPResponse(sock, method="POST") as refusal:
            refusal.begin()
            assert refusal.status == 401
            assert refusal.read()
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert status_of(read_all(sock)) == 200


def test_requests_in_a_row_on_one_connection(port):
    one = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    reply = exchange(port, (one + b"\r\n") * 3 + one + b"Connection: close\r\n\r\n")
    assert reply.count(b'{"status":"ok"}') == 4


def test_a_new_request_during_the_shutdown_is_refused(parser, tmp_path):
    life = Life(is_draining=lambda: True)
    with running(app_of(ScriptedService(), tmp_path, life=life), parser) as port:
        reply = exchange(port, b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert status_of(reply) == 503


def test_small_pieces_leave_at_once(parser, tmp_path):
    seen = []

    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    settings = config(app, parser=parser)

    class Watching(settings.http):
        def connection_made(self, transport):
            super().connection_made(transport)
            sock = transport.get_extra_info("socket")
            seen.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            seen.append(sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))

    settings.http = Watching
    with serving(settings) as port:
        exchange(port, b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert seen[0] != 0
    assert seen[1] <= 256 << 10
