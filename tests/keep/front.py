"""Something in front of a registry that wants tokens, breaks connections and moves uploads."""

import http.client
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

_PIECE_BYTES = 64 << 10
_DROPPED = ("connection", "transfer-encoding", "keep-alive", "authorization")


@dataclass
class Front:
    """Passes requests on to the registry at `port`, with faults.

    `cuts` maps the number of a PATCH (from 1) to the bytes of it that arrive before the connection
    breaks. docker-registry gives an upload up then; with `keeps` this goes on as other registries
    do, which say where it stands; with `lies`, where it stood before the cut. `statuses` maps the
    number to a status that is answered in its place. With `wants_token`, only tokens of its own
    token service are let in, and their scopes are in `scopes`.
    """

    port: int
    cuts: dict[int, int] = field(default_factory=dict)
    statuses: dict[int, int] = field(default_factory=dict)
    keeps: bool = False
    lies: bool = False
    is_relative: bool = False
    wants_token: bool = False
    requests: list[tuple[str, str]] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    scopes: list[list[str]] = field(default_factory=list)
    moved: dict[str, str] = field(default_factory=dict)
    stood: str = ""

    def __post_init__(self) -> None:
        self.server = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Handler", (_Handler,), {"front": self})
        )
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    @property
    def host(self) -> str:
        """`127.0.0.1:port`."""
        return f"127.0.0.1:{self.server.server_address[1]}"

    def count(self, method: str) -> int:
        """How many requests of that method have come."""
        return sum(one == method for one, _ in self.requests)

    def close(self) -> None:
        """Ends it and waits."""
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    front: Front

    def _answer(self) -> None:
        front = self.front
        if self.path.startswith("/token"):
            front.scopes.append(parse_qs(urlsplit(self.path).query)["scope"])
            return self._send(200, json.dumps({"token": "good"}).encode(), {})
        if front.wants_token and self.headers.get("Authorization") != "Bearer good":
            self._drain()
            scope = "repository:library/m:pull,push"
            challenge = f'Bearer realm="http://{front.host}/token",service="front",scope="{scope}"'
            return self._send(401, b"{}", {"WWW-Authenticate": challenge})
        front.requests.append((self.command, self.path))
        number = front.count("PATCH") if self.command == "PATCH" else 0
        if number:
            front.ranges.append(self.headers["Content-Range"])
        if number in front.statuses:
            self._drain()
            return self._send(front.statuses[number], b"", {})
        return self._pass_on(front.cuts.get(number))

    do_GET = do_HEAD = do_POST = do_PATCH = do_PUT = do_DELETE = _answer

    def _pass_on(self, cut: int | None) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        kept = length if cut is None else min(cut, length)
        changed = {}
        if self.front.keeps and kept < length:
            start = int(self.headers["Content-Range"].partition("-")[0])
            changed = {"content-length": kept, "content-range": f"{start}-{start + kept - 1}"}
        upstream = http.client.HTTPConnection("127.0.0.1", self.front.port, timeout=30)
        path = self.front.moved.get(self.path, self.path)
        upstream.putrequest(self.command, path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in _DROPPED:
                upstream.putheader(name, str(changed.get(name.lower(), value)))
        upstream.endheaders()
        left = kept
        while left:
            piece = self.rfile.read(min(left, _PIECE_BYTES))
            upstream.send(piece)
            left -= len(piece)
        if cut is None or changed:
            with upstream.getresponse() as response:
                self._pass_back(response, is_cut=cut is not None)
        upstream.close()
        if cut is not None:
            self.connection.close()
            self.close_connection = True

    def _pass_back(self, response: http.client.HTTPResponse, *, is_cut: bool) -> None:
        body = response.read()
        headers = {k: v for k, v in response.getheaders() if k.lower() not in _DROPPED}
        here = headers.get("Location", "").partition(self.front.host)[2]
        if is_cut:
            self.front.moved[self.path] = here
            self.front.stood = self.headers["Content-Range"].partition("-")[0]
            return
        if self.front.lies and self.command == "GET" and "Range" in headers:
            headers["Range"] = f"0-{int(self.front.stood) - 1}"
        if self.front.is_relative and here:
            headers["Location"] = here
        self._send(response.status, body, headers)

    def _drain(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _send(self, status: int, body: bytes, headers: dict[str, Any]) -> None:
        self.send_response_only(status)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return
