"""The daemon's HTTP API for one process: typed answers, typed failures, no proxies.

Owns one connection, kept between requests. It stands on `http.client` because that is quick to
import, sets TCP_NODELAY itself and never looks at proxy variables, which are meant for the way to
a registry, not for loopback. Knows nothing of commands or terminals.
"""

import http.client
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from cli.errors import (
    ApiError,
    CliError,
    ConnectionLost,
    DaemonUnreachable,
    Failed,
    NotUnderstood,
)
from cli.replies import Failure, Version
from localrun.wire.streams import LineTooLong, NdjsonDecoder

T = TypeVar("T")

# A host that does not even complete a connection is not worth more patience at a prompt.
CONNECT_TIMEOUT_S = 5.0
_READ_BYTES = 64 * 1024
# The daemon would keep an idle connection for longer, but a restart breaks it unnoticed, and then
# the next request on it fails. On loopback a new one costs less than a millisecond.
_REUSE_WITHIN_S = 2.0
_FOREIGN = (
    "the server there is not a localrun or Ollama; stop it, or choose another address with "
    "LOCALRUN_HOST=host:port"
)
_BROKEN = "the daemon closed the connection before it had answered; its log says why"


class Client:
    """A connection to the daemon at `url`. Not for use by two threads."""

    def __init__(self, url: str, *, api_key: str = "", timeout_s: float | None = None) -> None:
        """`timeout_s` bounds every wait for bytes; None waits as long as a model needs to load.

        `api_key` goes along with every request, if there is one.
        """
        parts = urlsplit(url)
        self.url = url
        self.host = parts.hostname or "127.0.0.1"
        self._timeout_s = timeout_s
        self.api_key = api_key
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        connect_s = CONNECT_TIMEOUT_S if timeout_s is None else min(timeout_s, CONNECT_TIMEOUT_S)
        self._connection = http.client.HTTPConnection(
            self.host, parts.port or 80, timeout=connect_s
        )
        self._used_at = 0.0

    def close(self) -> None:
        """Ends the connection; the daemon cancels what it was still doing for it."""
        self._connection.close()

    def version(self) -> Version:
        """Who answers here.

        Raises: DaemonUnreachable (also when it is neither localrun nor Ollama), ApiError, Failed.
        """
        try:
            found = self.get("/api/version", Version)
        except NotUnderstood as error:
            raise DaemonUnreachable(self.url, _FOREIGN) from error
        except ApiError as error:
            # Both always have this route, but refuse strange host names and ours a wrong key, and
            # both may be going away.
            if error.status in (401, 403) or (error.status >= 500 and error.status != 501):
                raise
            raise DaemonUnreachable(self.url, _FOREIGN) from error
        if not found.version and not found.localrun:
            raise DaemonUnreachable(self.url, _FOREIGN)
        return found

    def is_healthy(self) -> bool:
        """True when the server here says that it is ready for requests."""
        try:
            self._read(self._send("GET", "/health"))
        except CliError:
            return False
        return True

    def get(self, path: str, reply: type[T]) -> T:
        """The answer to GET. Raises: ApiError, DaemonUnreachable, Failed."""
        return self._decode(self._read(self._send("GET", path)), reply)

    def post(self, path: str, body: Any, reply: type[T]) -> T:
        """The answer to POST. Raises: ApiError, DaemonUnreachable, Failed."""
        return self._decode(self._read(self._send("POST", path, body)), reply)

    def perform(self, method: str, path: str, body: Any) -> None:
        """A request whose answer has no content. Raises: ApiError, DaemonUnreachable, Failed."""
        self._read(self._send(method, path, body))

    @contextmanager
    def stream(self, path: str, body: Any, line: type[T]) -> Iterator[Iterator[T]]:
        """The lines of an NDJSON answer as they come.

        Leaving the block before the end closes the connection, which cancels the request.
        Raises: ApiError (also for an error line), DaemonUnreachable, Failed.
        """
        response = self._send("POST", path, body)
        try:
            yield self._lines(response, line)
        finally:
            if not response.isclosed():
                self.close()

    def has_blob(self, digest: str) -> bool:
        """True when the store holds `digest`. Raises: ApiError, DaemonUnreachable, Failed."""
        try:
            self._read(self._send("HEAD", f"/api/blobs/{digest}"))
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def upload(self, digest: str, path: Path, chunks: Iterator[bytes]) -> None:
        """Sends `chunks`, the content of the file at `path`, as the blob `digest`.

        Raises: ApiError, DaemonUnreachable, Failed.
        """
        headers = {"Content-Length": str(path.stat().st_size)}
        self._read(self._send("POST", f"/api/blobs/{digest}", chunks, headers))

    def _send(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> http.client.HTTPResponse:
        if body is not None and headers is None:
            body = msgspec.json.encode(body)
            headers = {"Content-Type": "application/json"}
        if time.monotonic() - self._used_at > _REUSE_WITHIN_S:
            self.close()
        try:
            if self._connection.sock is None:
                self._connect()
        except OSError as error:
            self.close()
            refused = isinstance(error, ConnectionRefusedError)
            raise DaemonUnreachable(self.url, "" if refused else _reason(error)) from error
        is_sent = self._request(method, path, body, self._headers | (headers or {}))
        response = self._response()
        self._used_at = time.monotonic()
        if response.status >= 400:
            refusal = ApiError(response.status, self._error_text(response))
            if not is_sent:
                self.close()
            raise refusal
        if not is_sent:
            self.close()
            raise ConnectionLost(_BROKEN)
        return response

    def _request(self, method: str, path: str, body: Any, headers: dict[str, str]) -> bool:
        """False when the server stopped reading: its refusal may be here already."""
        try:
            self._connection.request(method, path, body=body, headers=headers)
        except (BrokenPipeError, ConnectionResetError):
            return False
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Failed(_lost(error)) from error
        return True

    def _response(self) -> http.client.HTTPResponse:
        try:
            return self._connection.getresponse()
        except TimeoutError as error:
            self.close()
            raise Failed(_lost(error)) from error
        except OSError as error:  # RemoteDisconnected too, which is also an HTTPException
            self.close()
            raise ConnectionLost(_BROKEN) from error
        except http.client.HTTPException as error:
            self.close()
            raise NotUnderstood(f"the server at {self.url} does not speak HTTP") from error

    def _connect(self) -> None:
        self._connection.connect()
        self._connection.sock.settimeout(self._timeout_s)

    def _error_text(self, response: http.client.HTTPResponse) -> str:
        try:
            return msgspec.json.decode(self._read(response), type=Failure).error
        except msgspec.MsgspecError:
            return f"the server at {self.url} answered with HTTP status {response.status}"

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        try:
            return response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Failed(_lost(error)) from error

    def _decode(self, body: bytes, reply: type[T]) -> T:
        try:
            return msgspec.json.decode(body, type=reply)
        except msgspec.MsgspecError as error:
            raise NotUnderstood(f"the answer of {self.url} is not understood: {error}") from error

    def _lines(self, response: http.client.HTTPResponse, line: type[T]) -> Iterator[T]:
        decoder = msgspec.json.Decoder(line)
        for raw in self._raw_lines(response):
            if b'"error"' in raw:
                failure = self._decode(raw, Failure)
                if failure.error:
                    raise ApiError(0, failure.error, failure.code)
            try:
                yield decoder.decode(raw)
            except msgspec.MsgspecError as error:
                raise NotUnderstood(
                    f"the answer of {self.url} is not understood: {error}"
                ) from error

    def _raw_lines(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        framing = NdjsonDecoder()
        try:
            while piece := response.read1(_READ_BYTES):
                yield from framing.feed(piece)
        except (OSError, http.client.HTTPException, LineTooLong) as error:
            self.close()
            raise Failed(_lost(error)) from error
        yield from framing.flush()


def _lost(error: Exception) -> str:
    if isinstance(error, LineTooLong):
        return str(error)
    return "the daemon did not answer in time" if isinstance(error, TimeoutError) else _BROKEN


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    return error.strerror or str(error)
