"""A registry that misbehaves as it is told, and remembers everything it was asked.

`plan` decides for every request of a blob what goes wrong; without one it behaves. A `Gate` holds a
reply in mid-body until the test opens it or the client has gone.
"""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from registry_servers import digest_of, manifest_of

from modelstore.transfer.effort import Effort

_PIECE_BYTES = 16 << 10

# Pauses of milliseconds, and pieces so small that a blob of a few megabytes has many.
QUICK = Effort(
    first_pause_s=0.005, part_bytes=256 << 10, checkpoint_s=0.05, forgiving_bytes=64 << 10
)


@dataclass
class Asked:
    """One request; `start` and `end` are the bytes of a blob that it wants, end exclusive."""

    method: str
    path: str
    headers: dict[str, str]
    start: int = 0
    end: int = 0
    number: int = 0  # among the requests of this blob
    port: int = 0  # the client's: one for each connection

    @property
    def is_ranged(self) -> bool:
        return "range" in self.headers


@dataclass
class Fault:
    """What goes wrong with one reply; offsets count bytes of the blob."""

    status: int = 0
    flip_at: int | None = None
    stall_at: int | None = None  # no bytes from here on, the connection stays open
    reset_at: int | None = None
    whole: bool = False  # 200 with everything, whatever range was asked for
    html: bool = False
    claims_total: int | None = None
    starts_off_by: int = 0
    location: str = ""
    gate: threading.Event | None = None  # waits here before the first byte
    pause_s: float = 0.0  # between two pieces
    headers: dict[str, str] = field(default_factory=dict)


Plan = Callable[[Asked], Fault | None]


@dataclass
class FaultyRegistry:
    """On a free port of loopback, for one test. `n_bytes` counts the blobs' bytes that it sent."""

    plan: Plan = lambda asked: None
    manifests: dict[str, bytes] = field(default_factory=dict)
    manifest_status: int = 200
    blobs: dict[str, bytes] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    n_bytes: int = 0
    realm: str = ""  # a Bearer challenge with this realm until `Bearer good` comes

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self.server = _Server(("127.0.0.1", 0), type("Bound", (_Handler,), {"registry": self}))
        self.port: int = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def put(self, name: str, *layers: tuple[str, bytes], **more: Any) -> bytes:
        """Offers `namespace/model:tag`; returns the manifest's bytes."""
        repository, _, tag = name.partition(":")
        manifest, blobs = manifest_of(layers, **more)
        self.manifests[f"/v2/{repository}/manifests/{tag or 'latest'}"] = manifest
        self.blobs |= blobs
        return manifest

    def of(self, data: bytes) -> list[Asked]:
        """The requests for this blob."""
        return [asked for asked in self.asked if asked.path.endswith(digest_of(data))]

    def close(self) -> None:
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_: Any) -> None:
        """A client that has gone is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    registry: FaultyRegistry

    def do_GET(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = Asked(self.command, self.path, headers, port=self.client_address[1])
        registry = self.registry
        digest = self.path.rpartition("/")[2]
        blob = registry.blobs.get(digest)
        if blob is not None:
            asked.start, asked.end = _range(headers.get("range", ""), len(blob))
        with registry.lock:
            asked.number = sum(digest in other.path for other in registry.asked)
            registry.asked.append(asked)
        if registry.realm and headers.get("authorization") != "Bearer good":
            if self.path.startswith("/token"):
                self._plain(200, b'{"token":"good"}')
                return
            challenge = f'Bearer realm="{registry.realm}",service="fake",scope="repository:x:pull"'
            self._plain(401, b"secret of the server", {"WWW-Authenticate": challenge})
        elif self.path in registry.manifests:
            self._plain(registry.manifest_status, registry.manifests[self.path])
        elif blob is not None:
            self._blob(asked, blob, registry.plan(asked) or Fault())
        else:
            self._plain(404, b"secret of the server")

    do_HEAD = do_GET

    def _plain(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body)

    def _blob(self, asked: Asked, blob: bytes, fault: Fault) -> None:
        if fault.gate is not None:
            self._wait(fault.gate)
        if fault.location:
            self._plain(307, b"", {"Location": fault.location})
            return
        if fault.html:
            self._plain(
                200,
                b"<!DOCTYPE html><html>secret of the server</html>" * 100,
                {"Content-Type": "text/html"},
            )
            return
        if fault.status:
            self._plain(fault.status, b"secret of the server", fault.headers)
            return
        is_whole = fault.whole or not asked.is_ranged
        start, end = (0, len(blob)) if is_whole else (asked.start, asked.end)
        total = len(blob) if fault.claims_total is None else fault.claims_total
        self.send_response(200 if is_whole else 206)
        if is_whole:
            self.send_header("Content-Length", str(total))
        else:
            first = start + fault.starts_off_by
            self.send_header("Content-Length", str(end - start))
            self.send_header("Content-Range", f"bytes {first}-{end - 1}/{total}")
        self.end_headers()
        if self.command != "HEAD":
            self._send(blob, start, end, fault)

    def _send(self, blob: bytes, start: int, end: int, fault: Fault) -> None:
        stops = [at for at in (fault.stall_at, fault.reset_at) if at is not None and at >= start]
        last = min([end, *stops])
        for at in range(start, last, _PIECE_BYTES):
            piece = bytearray(blob[at : min(at + _PIECE_BYTES, last)])
            if fault.flip_at is not None and at <= fault.flip_at < at + len(piece):
                piece[fault.flip_at - at] ^= 0x40
            self.wfile.write(piece)
            with self.registry.lock:
                self.registry.n_bytes += len(piece)
            if fault.pause_s and self.registry.closing.wait(fault.pause_s):
                break
        if last < end and fault.reset_at == last:
            # Linger 0: the client sees a reset, not an orderly end.
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.close_connection = True
            self.connection.close()
        elif last < end:
            self._wait(threading.Event())
            self.close_connection = True

    def _wait(self, gate: threading.Event) -> None:
        """Returns when the gate is open, the client gone, or the test over."""
        self.connection.settimeout(0.02)
        while not gate.is_set() and not self.registry.closing.is_set():
            try:
                if self.connection.recv(1) == b"":
                    return
            except TimeoutError:
                continue
            except OSError:
                return
        self.connection.settimeout(None)

    def log_message(self, *_: object) -> None:
        return


def _range(text: str, total: int) -> tuple[int, int]:
    first, _, last = text.removeprefix("bytes=").partition("-")
    return int(first or 0), min(int(last) + 1 if last else total, total)


@contextmanager
def serving(**more: Any) -> Iterator[FaultyRegistry]:
    registry = FaultyRegistry(**more)
    try:
        yield registry
    finally:
        registry.close()
