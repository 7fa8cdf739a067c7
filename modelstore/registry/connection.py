"""Connections that keep to the policy: an httpx transport over a network backend of our own.

Owns resolving, checking and connecting as one step, the choice of a proxy, the end of a read when
somebody asks for it, and the translation of the HTTP library's errors into the store's. Knows
nothing of registries; redirects and authorization are decided above.
"""

import contextlib
import os
import ssl
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator
from typing import Any

import httpcore
import httpx

from modelstore.errors import BadReply, HostUnreachable, Stopped, shown
from modelstore.registry.access import Pace
from modelstore.registry.address import Policy

# How soon a read notices that it is not wanted any more.
_SLICE_S = 0.25
# httpcore asks for 64 KiB at a time, and its parser costs as much for more.
_READ_BYTES = 128 << 10


class Transport(httpx.BaseTransport):
    """Sends requests directly or through the environment's proxy. Safe to share between threads.

    Raises: AddressNotAllowed, HostUnreachable, BadReply, Stopped.
    """

    def __init__(self, policy: Policy, stop: threading.Event, pace: Pace) -> None:
        self._policy = policy
        self._stop = stop
        self._pace = pace
        self._proxies = urllib.request.getproxies()
        self._routes: dict[tuple[str, str, int], str] = {}
        self._tls: ssl.SSLContext | None = None
        self._pools: dict[str, httpcore.ConnectionPool] = {}
        self._lock = threading.Lock()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """One request and the head of its answer; a proxy's name is in its `extensions`."""
        url = request.url
        port = url.port or (443 if url.scheme == "https" else 80)
        self._policy.check_url(url.scheme, url.host, port)
        proxy = self._route(url, port)
        shown_proxy = _without_userinfo(proxy)
        sent = httpcore.Request(
            request.method,
            httpcore.URL(
                scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
            ),
            headers=request.headers.raw,
            content=request.stream,
            extensions={
                "timeout": {
                    "connect": self._pace.connect_s,
                    "read": self._pace.stall_s,
                    "write": self._pace.stall_s,
                    "pool": self._pace.stall_s,
                }
            },
        )
        with _translated(url.host, shown_proxy):
            response = self._pool(proxy).handle_request(sent)
        return httpx.Response(
            response.status,
            headers=response.headers,
            stream=_Body(response, url.host, shown_proxy),
            extensions={"proxy": shown_proxy},
        )

    def close(self) -> None:
        """Closes every connection."""
        with self._lock:
            pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            pool.close()

    def _route(self, url: httpx.URL, port: int) -> str:
        """The proxy for a URL, or nothing; found out once for each host."""
        key = (url.scheme, url.host, port)
        if key not in self._routes:
            proxy = self._proxy_for(url, port)
            if proxy:
                self._policy.check_proxied(url.host, port)
            self._routes[key] = proxy
        return self._routes[key]

    def _proxy_for(self, url: httpx.URL, port: int) -> str:
        proxy = self._proxies.get(url.scheme) or self._proxies.get("all") or ""
        if not proxy or urllib.request.proxy_bypass(f"{url.host}:{port}"):
            return ""
        if self._policy.is_loopback(url.host, port):
            return ""  # a proxy has another idea of what loopback is
        return proxy if "://" in proxy else f"http://{proxy}"

    def _pool(self, proxy: str) -> httpcore.ConnectionPool:
        with self._lock:
            if proxy not in self._pools:
                self._pools[proxy] = self._make_pool(proxy)
            return self._pools[proxy]

    def _make_pool(self, proxy: str) -> httpcore.ConnectionPool:
        if self._tls is None:
            self._tls = _tls_context()
        backend = _Backend(None if proxy else self._policy, self._stop)
        if not proxy:
            return httpcore.ConnectionPool(ssl_context=self._tls, network_backend=backend)
        parsed = httpx.Proxy(proxy)
        if parsed.url.scheme not in ("http", "https"):
            raise HostUnreachable(
                _without_userinfo(proxy), "only http and https proxies can be used"
            )
        return httpcore.HTTPProxy(
            httpcore.URL(
                scheme=parsed.url.raw_scheme,
                host=parsed.url.raw_host,
                port=parsed.url.port,
                target=parsed.url.raw_path,
            ),
            proxy_auth=parsed.raw_auth,
            proxy_headers=parsed.headers.raw,
            ssl_context=self._tls,
            proxy_ssl_context=self._tls if parsed.url.scheme == "https" else None,
            network_backend=backend,
        )


class _Body(httpx.SyncByteStream):
    def __init__(self, response: httpcore.Response, host: str, proxy: str) -> None:
        self._response = response
        self._host = host
        self._proxy = proxy

    def __iter__(self) -> Iterator[bytes]:
        with _translated(self._host, self._proxy):
            yield from self._response.iter_stream()

    def close(self) -> None:
        self._response.close()


class _Backend(httpcore.NetworkBackend):
    """Connects to checked addresses; `policy` is None on the way to a proxy."""

    def __init__(self, policy: Policy | None, stop: threading.Event) -> None:
        self._policy = policy
        self._stop = stop
        self._sockets = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        addresses = [host] if self._policy is None else self._policy.addresses(host, port)
        failure: Exception | None = None
        for address in addresses:
            if self._stop.is_set():
                raise Stopped
            try:
                # A literal address: nothing is resolved a second time.
                stream = self._sockets.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
            else:
                return _Stream(stream, self._stop)
        raise failure or httpcore.ConnectError("no address")


class _Stream(httpcore.NetworkStream):
    """A connection whose reads end soon after `stop` is set."""

    def __init__(self, stream: httpcore.NetworkStream, stop: threading.Event) -> None:
        self._stream = stream
        self._stop = stop

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._stop.is_set():
            try:
                return self._stream.read(max(max_bytes, _READ_BYTES), _SLICE_S)
            except httpcore.ReadTimeout:
                if deadline is not None and time.monotonic() >= deadline:
                    raise
        raise Stopped

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if self._stop.is_set():
            raise Stopped
        self._stream.write(buffer, timeout)

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, timeout), self._stop)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


@contextlib.contextmanager
def _translated(host: str, proxy: str) -> Iterator[None]:
    try:
        yield
    except httpcore.ConnectTimeout as error:
        raise HostUnreachable(host, "it does not accept a connection in time", proxy) from error
    except (httpcore.TimeoutException, TimeoutError) as error:
        raise HostUnreachable(host, "it stalled: no bytes for too long", proxy) from error
    except httpcore.ProxyError as error:
        raise HostUnreachable(host, f"the proxy refuses: {shown(str(error))}", proxy) from error
    except (httpcore.NetworkError, OSError) as error:
        raise HostUnreachable(host, _problem_of(error), proxy) from error
    except httpcore.RemoteProtocolError as error:
        # What h11 says when a connection ends before the announced length.
        raise HostUnreachable(host, "the connection ended too early", proxy) from error
    except (httpcore.ProtocolError, httpcore.UnsupportedProtocol) as error:
        raise BadReply(host, "it does not speak HTTP") from error


def _problem_of(error: Exception) -> str:
    cause = error.__cause__ or error.__context__ or error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted: {cause.verify_message}; the daemon's SSL_CERT_FILE "
            "names other authorities"
        )
    if isinstance(cause, ssl.SSLError):
        return f"no TLS connection: {(cause.reason or 'it broke').replace('_', ' ').lower()}"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror.lower()
    return "the connection broke"


def _tls_context() -> ssl.SSLContext:
    # SSL_CERT_FILE or SSL_CERT_DIR alone where one is set; else the common authorities and those
    # of this machine, among which a company's own one may be.
    context = httpx.create_ssl_context(trust_env=True)
    if not os.environ.get("SSL_CERT_FILE") and not os.environ.get("SSL_CERT_DIR"):
        context.load_default_certs()
    return context


def _without_userinfo(proxy: str) -> str:
    return proxy.rpartition("://")[2].rpartition("@")[2].rstrip("/")
