"""What every request passes before anybody looks at it: plain ASGI middleware around the routes.

Owns, outermost first: the access log line, requests that contradict themselves, the browser
origins (CORS), the Host check against DNS rebinding, the refusal while the daemon goes away, the
API key, and the limits on size and pace of bodies.
Source: Ollama's HTTP server (`server/routes.go`) and its CORS library, gin-contrib/cors; RFC 9112
for what a server has to refuse.
"""

import asyncio
import ipaddress
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localrun.errors import ShuttingDown
from localrun.http.errors import Dialect, error_response
from localrun.http.keys import SCOPE_KEY, Caller, Keys
from localrun.http.origins import (
    ANY,
    BLOB_PREFIX,
    EXPOSE_HEADERS,
    PREFLIGHT_HEADERS,
    Origins,
    changes_models,
)
from localrun.http.refusals import (
    BadFraming,
    BodyTimeout,
    BodyTooLarge,
    EncodingRefused,
    HeadTooLarge,
    HostRefused,
    OriginRefused,
    TransportError,
)

_access = logging.getLogger("localrun.access")
_log = logging.getLogger(__name__)

# What answers without an API key, for whoever watches over the daemon. It tells nothing.
_OPEN_PATHS = ("/", "/health")
# Anthropic's routes stand among OpenAI's.
MESSAGES_PATH = "/v1/messages"
# A path of both.
MODELS_PATH = "/v1/models"
_PROBES = ("/", "/health", "/metrics", "/api/version")
# Names that resolve to this machine or its own network by standard or by habit (RFC 6761, 6762).
_LOCAL_SUFFIXES = (".localhost", ".local", ".internal")


@dataclass(frozen=True, slots=True)
class Limits:
    """`json_bytes` bounds every body but a blob's; `body_idle_s` is the longest gap in a body.

    `head_bytes` bounds the header lines of a request.
    """

    # Long chats with inline pictures are some tens of MiB; anything above is a mistake.
    json_bytes: int = 64 << 20
    # Slow enough for a phone on a train, short enough to free a connection that nobody feeds.
    body_idle_s: float = 60.0
    # As nginx (four buffers of 8 KiB): room for the cookies that a browser has for localhost.
    head_bytes: int = 32 << 10


class Guard:
    """The middleware. `is_draining` is asked at every request."""

    def __init__(
        self,
        app: ASGIApp,
        origins: Origins,
        keys: Keys,
        *,
        checks_host: bool,
        is_draining: Callable[[], bool],
        limits: Limits,
    ) -> None:
        self._app = app
        self._origins = origins
        self._keys = keys
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
        try:
            _use_authority(scope)
            headers = Headers(scope=scope)
            _check_framing(headers, self._limits.head_bytes)
            granted = self._grant(scope, headers)
            self._check_host(headers)
        except TransportError as error:
            await error_response(error, asked_dialect(scope))(scope, receive, send)
            return
        if granted:
            if scope["method"] == "OPTIONS":
                reply = Response(status_code=204, headers=granted | PREFLIGHT_HEADERS)
                await reply(scope, receive, send)
                return
            # From here on also a refusal can be read by the page.
            send = _with_headers(send, granted)
        try:
            self._check_caller(scope, headers)
            limit = self._check_body(scope, headers)
        except (TransportError, ShuttingDown) as error:
            await error_response(error, asked_dialect(scope))(scope, receive, send)
            return
        body = _Body(receive, limit, self._limits.body_idle_s)
        await self._app(scope, body.receive, send)

    def _grant(self, scope: Scope, headers: Headers) -> dict[str, str]:
        """The headers that let a page read the reply. Raises: OriginRefused."""
        origin = headers.get("origin")
        if not origin or self._is_same(origin, headers):
            return {}
        is_change = changes_models(scope["method"], scope["path"])
        if not self._origins.allows(origin, changes=is_change and not self._keys):
            _log.warning("origin %.200r is refused; LOCALRUN_ORIGINS can allow it", origin)
            raise OriginRefused(origin, is_change=self._origins.allows(origin))
        if self._origins.allows_any:
            return {"Access-Control-Allow-Origin": ANY, **EXPOSE_HEADERS}
        return {"Access-Control-Allow-Origin": origin, "Vary": "Origin", **EXPOSE_HEADERS}

    def _check_host(self, headers: Headers) -> None:
        """Raises: HostRefused."""
        host = headers.get("host", "")
        if self._checks_host and not self._is_local(host):
            _log.warning("host %.200r is refused: not a name of this machine", host)
            raise HostRefused(host)

    def _check_caller(self, scope: Scope, headers: Headers) -> None:
        """Leaves the owner of the request's key in `scope`. Raises: ShuttingDown, KeyMissing, …"""
        if self._is_draining():
            raise ShuttingDown
        if scope["method"] == "OPTIONS" or scope["path"] in _OPEN_PATHS:
            return
        key = self._keys.find(headers, is_anthropic=asked_dialect(scope) == "anthropic")
        if key is not None:
            scope[SCOPE_KEY] = Caller(f"key {key.name}", key.name, key)

    def _check_body(self, scope: Scope, headers: Headers) -> int | None:
        """The limit of the body in bytes. Raises: EncodingRefused, BodyTooLarge."""
        encoding = headers.get("content-encoding", "").strip().lower()
        if encoding not in ("", "identity"):
            raise EncodingRefused(encoding)
        if scope["path"].startswith(BLOB_PREFIX):
            return None
        limit = self._limits.json_bytes
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > limit:
            raise BodyTooLarge(limit)
        return limit

    def _is_same(self, origin: str, headers: Headers) -> bool:
        return origin.partition("://")[2] == headers.get("host") and origin.startswith(
            ("http://", "https://")
        )

    def _is_local(self, host: str) -> bool:
        host = _without_port(host).lower().removesuffix(".")
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
    if path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/"):
        return "anthropic"
    return "openai" if path.startswith("/v1/") else "native"


def asked_dialect(scope: Scope) -> Dialect:
    """Which dialect a request is answered in.

    Of models both OpenAI's and Anthropic's clients ask at one path; the latter name a version.
    """
    path: str = scope["path"]
    is_shared = path == MODELS_PATH or path.startswith(f"{MODELS_PATH}/")
    if is_shared and "anthropic-version" in Headers(scope=scope):
        return "anthropic"
    return dialect_of(path)


def _use_authority(scope: Scope) -> None:
    """`GET http://host/path`, as clients ask a proxy: then that host counts, not the header's.

    Source: RFC 9112, section 3.2.2. Raises: BadFraming for what is neither a path nor such a URL.
    """
    if scope["path"].startswith("/") or scope["path"] == "*":
        return
    url = urlsplit(scope["raw_path"].decode("latin-1"))
    if url.scheme.lower() not in ("http", "https") or not url.netloc:
        raise BadFraming("the request line has neither a path nor an http URL")
    scope["path"], scope["raw_path"] = unquote(url.path) or "/", url.path.encode("latin-1") or b"/"
    others = [pair for pair in scope["headers"] if pair[0] != b"host"]
    scope["headers"] = [*others, (b"host", url.netloc.rpartition("@")[2].encode("latin-1"))]


def _check_framing(headers: Headers, limit_bytes: int) -> None:
    """Raises: HeadTooLarge, BadFraming where two servers would read two different requests."""
    if sum(len(name) + len(value) for name, value in headers.raw) > limit_bytes:
        raise HeadTooLarge(limit_bytes)
    if len(headers.getlist("host")) > 1:
        raise BadFraming("the request has more than one Host header")
    if "transfer-encoding" in headers and "content-length" in headers:
        raise BadFraming("the request has both a Content-Length and a Transfer-Encoding")


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
