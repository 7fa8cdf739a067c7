"""The HTTP server around the application: uvicorn, its two parsers, and what it does not limit.

Owns the socket that listens, the limits on the head of a request, which end before any application
is asked, and the order of a shutdown. Knows neither models nor routes.
"""

import asyncio
import errno
import importlib.util
import logging
import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from localrun.loopback import is_loopback
from localrun.settings import Settings

_log = logging.getLogger(__name__)

# Seconds for the head of a request, from its first byte or from the connection's first moment.
# One packet does it; who takes longer keeps connections open without asking for anything.
HEAD_LIMIT_S = 20.0

# Bytes of a head that has not ended. The application refuses a smaller one with words; this is
# what may pile up before it is asked at all.
_HEAD_BYTES = 64 << 10

# Bytes of a body whose request has been refused already: read away, so that the sender sees why.
_REST_BYTES = 64 << 20

# An idle connection of a client's pool; below the usual 90 s of HTTP clients' own limits.
_KEEP_ALIVE_CONNECTION_S = 75

# The last frames of answers that a shutdown has aborted still have to leave.
FLUSH_S = 2.0

# What the kernel holds of a stream that nobody reads, twice of this on Linux, before our own
# buffers fill. Its default grows to megabytes: minutes of an answer to a client that sleeps.
_SEND_BUFFER_BYTES = 64 << 10


class AddressInUse(Exception):
    """`host`:`port` is taken by another process."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"{host}:{port} is in use")
        self.host = host
        self.port = port


class InsecureAddress(Exception):
    """The daemon would be open to the network without anybody having asked for that."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"refusing to listen on {host}: every machine that reaches it could use the models; "
            "set LOCALRUN_API_KEY so that only who has the key may, LOCALRUN_INSECURE=1 to allow "
            "everybody, or LOCALRUN_HOST to a loopback address"
        )


def bind(settings: Settings) -> socket.socket:
    """The listening socket. Raises AddressInUse, InsecureAddress, OSError."""
    family, _, _, _, address = socket.getaddrinfo(
        settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    is_guarded = settings.insecure or settings.has_keys
    if not is_guarded and not is_loopback(str(address[0])):
        raise InsecureAddress(settings.host)
    # With the protocol: else asyncio does not see that it is TCP, and leaves Nagle's algorithm on.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # The connections that it accepts have the same.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    try:
        sock.bind(address)
        sock.listen(2048)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(settings.host, settings.port) from error
        raise
    return sock


def config(
    app: Callable[..., Any], *, parser: str | None = None, head_limit_s: float = HEAD_LIMIT_S
) -> uvicorn.Config:
    """How uvicorn serves `app`. `parser` is h11 or httptools; None takes httptools if it is there.

    uvloop and httptools are in the extra `fast`.
    """
    return uvicorn.Config(
        app,
        http=_protocol(parser or _best_parser(), head_limit_s),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        lifespan="on",
        timeout_keep_alive=_KEEP_ALIVE_CONNECTION_S,
        timeout_graceful_shutdown=int(FLUSH_S),
        h11_max_incomplete_event_size=_HEAD_BYTES,
    )


class Server(uvicorn.Server):
    """uvicorn with our shutdown: the first signal drains, the second ends at once."""

    def __init__(self, config: uvicorn.Config, drain: Callable[[], Any]) -> None:
        super().__init__(config)
        self._drain = drain
        self._draining: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called in the main thread, between two steps of the loop."""
        if self._draining is not None:
            self.force_exit = self.should_exit = True
            return
        _log.info("%s: finishing running requests", signal.Signals(sig).name)
        self._draining = asyncio.get_running_loop().create_task(self._drain_and_exit())

    async def _drain_and_exit(self) -> None:
        await self._drain()
        self.should_exit = True


# ---- the two parsers


class _BoundedHead(asyncio.Protocol):
    """Goes in front of one of uvicorn's protocols: a head has to end soon, and stay small."""

    head_limit_s: float
    # Of uvicorn's protocols.
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    cycle: Any = None

    _timer: asyncio.TimerHandle | None = None
    _n_head_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        super().connection_made(transport)
        self._arm()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        if not self._is_answering:
            self._arm()
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before or self._is_answering:
            self._n_head_bytes = 0
            self._disarm()
            return
        self._n_head_bytes += len(data)
        is_rest_of_body = self.cycle is not None and self.cycle.more_body
        if self._n_head_bytes > (_REST_BYTES if is_rest_of_body else _HEAD_BYTES):
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._disarm()
        super().connection_lost(exc)

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.head_limit_s, self._give_up)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if not self._is_answering:
            self.transport.close()


def _best_parser() -> str:
    return "httptools" if importlib.util.find_spec("httptools") else "h11"


def _protocol(parser: str, limit_s: float) -> type[asyncio.Protocol]:
    if parser == "h11":
        return cast(
            type[asyncio.Protocol],
            type("BoundedH11", (_BoundedHead, H11Protocol), {"head_limit_s": limit_s}),
        )
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class BoundedHttpTools(_BoundedHead, HttpToolsProtocol):
        head_limit_s = limit_s

        def on_headers_complete(self) -> None:
            super().on_headers_complete()
            # As h11 gives it: of `GET http://host/path` httptools leaves the path alone, and
            # whoever looks at the request could not see whom it was meant for.
            if self.url and not self.url.startswith(b"/"):
                target = self.url.partition(b"?")[0]
                self.scope["raw_path"] = target
                self.scope["path"] = target.decode("latin-1")

    return BoundedHttpTools
