"""What every request passes before anybody looks at it: plain ASGI middleware around the routes.

Owns, outermost first: the access log line, the refusal while the daemon goes away, the browser
origins (CORS), the Host check against DNS rebinding, and the limits on size and pace of bodies.
Source: Ollama's HTTP server (`server/routes.go`) and its CORS library, gin-contrib/cors.
"""

import asyncio
import ipaddress
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localrun.errors import ShuttingDown
from localrun.http.errors import BodyTimeout, BodyTooLarge, Dialect, error_response
from localrun.http.origins import ANY, EXPOSE_HEADERS, PREFLIGHT_HEADERS, Origins

_access = logging.getLogger("localrun.access")
_log = logging.getLogger(__name__)

_BLOB_PREFIX = "/api/blobs/"
_PROBES = ("/", "/health", "/metrics", "/api/version")
# Names that resolve to this machine or its own network by standard or by habit (RFC 6761, 6762).
_LOCAL_SUFFIXES = (".localhost", ".local", ".internal")


@dataclass(frozen=True, slots=True)
class Limits:
    """`json_bytes` bounds every body but a blob's; `body_idle_s` is the longest gap in a body."""

    # Long chats with inline pictures are some tens of MiB; anything above is a mistake.
    json_bytes: int = 64 << 20
    # Slow enough for a phone on a train, short enough to free a connection that nobody feeds.
    body_idle_s: float = 60.0


class Guard:
    """The middleware. `is_draining` is asked at every request."""

    def __init__(
        self,
        app: ASGIApp,
        origins: Origins,
        *,
        checks_host: bool,
        is_draining: Callable[[], bool],
        limits: Limits,
    ) -> None:
        self._app = app
        self._origins = origins
        self._checks_host = checks_host
        self._is_draining = is_draining
        self._limits = limits
        self._own_name = socket.gethostname().lower()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        logged = _LoggedSend(send)
        started_at = time.perf_counter()
        try:
            await self._admit(scope, receive, logged)
        finally:
            elapsed_ms = (time.perf_counter() - started_at) * 1e3
            # The raw path: percent-encoded, so nobody can write lines of their own into the log.
            path = scope.get("raw_path") or scope["path"].encode("ascii", "backslashreplace")
            # Every command and every monitor asks these; their lines would bury the rest.
            level = logging.DEBUG if scope["path"] in _PROBES else logging.INFO
            _access.log(
                level,
                "%s %s %s %.1f ms",
                scope["method"],
                path.decode("latin-1"),
                logged.status or "-",
                elapsed_ms,
            )

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        granted = self._grant(headers)
        if granted and scope["method"] == "OPTIONS":
            await Response(status_code=204, headers=granted | PREFLIGHT_HEADERS)(
                scope, receive, send
            )
            return
        if granted:
            send = _with_headers(send, granted)
        limit = None if scope["path"].startswith(_BLOB_PREFIX) else self._limits.json_bytes
        body = _Body(receive, limit, self._limits.body_idle_s)
        await self._app(scope, body.receive, send)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        dialect = dialect_of(scope["path"])
        if self._is_draining():
            return error_response(ShuttingDown(), dialect)
        origin = headers.get("origin")
        if origin and not self._is_same(origin, headers) and not self._origins.allows(origin):
            _log.warning("origin %.200r is refused; LOCALRUN_ORIGINS can allow it", origin)
            return Response(status_code=403)
        if self._checks_host and not self._is_local(headers.getlist("host")):
            _log.warning("host %.200r is refused: not a name of this machine", headers.get("host"))
            return Response(status_code=403)
        limit = self._limits.json_bytes
        length = headers.get("content-length", "")
        if not scope["path"].startswith(_BLOB_PREFIX) and length.isdigit() and int(length) > limit:
            return error_response(BodyTooLarge(limit), dialect)
        return None

    def _is_same(self, origin: str, headers: Headers) -> bool:
        return origin.partition("://")[2] == headers.get("host") and origin.startswith(
            ("http://", "https://")
        )

    def _grant(self, headers: Headers) -> dict[str, str]:
        origin = headers.get("origin")
        if not origin or self._is_same(origin, headers):
            return {}
        if self._origins.allows_any:
            return {"Access-Control-Allow-Origin": ANY, **EXPOSE_HEADERS}
        return {"Access-Control-Allow-Origin": origin, "Vary": "Origin", **EXPOSE_HEADERS}

    def _is_local(self, hosts: list[str]) -> bool:
        if len(hosts) > 1:
            return False
        host = _without_port(hosts[0] if hosts else "").lower().removesuffix(".")
        if host in ("", "localhost", self._own_name) or host.endswith(_LOCAL_SUFFIXES):
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        # A literal address cannot be rebound: who reached us by one knew where we are.
        return True


def dialect_of(path: str) -> Dialect:
    """Which dialect's errors a path answers with."""
    return "openai" if path.startswith("/v1/") else "native"


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


class _LoggedSend:
    """`send` that remembers the status."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0

    def __call__(self, message: Message) -> Awaitable[None]:
        # Not a coroutine of its own: this stands in the way of every token.
        if message["type"] == "http.response.start":
            self.status = message["status"]
        return self._send(message)


def _with_headers(send: Send, headers: dict[str, str]) -> Send:
    def send_granted(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(headers)
        return send(message)

    return send_granted


class _Body:
    """`receive` with limits that end with the body; later it only reports the hang-up."""

    def __init__(self, receive: Receive, limit_bytes: int | None, idle_s: float) -> None:
        self._receive = receive
        self._limit_bytes = limit_bytes
        self._idle_s = idle_s
        self._n_bytes = 0
        self._is_complete = False

    async def receive(self) -> Message:
        """The next message. Raises BodyTooLarge, BodyTimeout."""
        if self._is_complete:
            return await self._receive()
        try:
            async with asyncio.timeout(self._idle_s):
                message = await self._receive()
        except TimeoutError:
            raise BodyTimeout(self._idle_s) from None
        self._n_bytes += len(message.get("body", b""))
        self._is_complete = not message.get("more_body", False)
        if self._limit_bytes is not None and self._n_bytes > self._limit_bytes:
            raise BodyTooLarge(self._limit_bytes)
        return message
