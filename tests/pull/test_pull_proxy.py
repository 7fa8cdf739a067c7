"""Pulls through a proxy: what it is asked, and what is said when it refuses."""

import http.client
import select
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from faulty_server import FaultyRegistry
from pull_client import Make, Start, pulled, refusal
from registry_servers import Nginx, make_certificates

from modelstore.manifest import MODEL_TYPE


class Proxy:
    """A logging proxy that sends everything to one server, or answers with `status`."""

    def __init__(self, target: int, status: int = 0) -> None:
        self.asked: list[str] = []
        handler = type(
            "Bound", (_ProxyHandler,), {"asked": self.asked, "target": target, "status": status}
        )
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.port: int = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class _ProxyHandler(BaseHTTPRequestHandler):
    asked: list[str]
    target: int
    status: int

    def do_GET(self) -> None:
        self.asked.append(f"{self.command} {self.path}")
        if self.status:
            self.send_error(self.status)
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.target, timeout=30)
        path = "/" + self.path.split("/", 3)[3]
        connection.request(self.command, path, headers=dict(self.headers))
        with connection.getresponse() as response:
            self.send_response(response.status)
            for name, value in response.getheaders():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(response.read())
        connection.close()

    def do_CONNECT(self) -> None:
        self.asked.append(f"CONNECT {self.path}")
        if self.status:
            self.send_error(self.status)
            return
        with socket.create_connection(("127.0.0.1", self.target)) as server:
            self.send_response(200)
            self.end_headers()
            pair = {server: self.connection, self.connection: server}
            while ready := select.select(list(pair), [], [], 30)[0]:
                for end in ready:
                    data = end.recv(65536)
                    if not data:
                        return
                    pair[end].sendall(data)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def make_proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Proxy]]:
    """Makes a proxy and puts it into every variable that names one."""
    made: list[Proxy] = []

    def make(target: int, **more: Any) -> Proxy:
        made.append(Proxy(target, **more))
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            for spelled in (name, name.lower()):
                monkeypatch.setenv(spelled, f"http://127.0.0.1:{made[-1].port}")
        return made[-1]

    yield make
    for proxy in made:
        proxy.close()


def test_pulls_go_through_the_proxy_and_loopback_never_does(
    start_daemon: Start, registry: FaultyRegistry, gguf: Make, make_proxy: Callable[..., Proxy]
) -> None:
    registry.put("a/b", (MODEL_TYPE, gguf(10_000)))
    proxy = make_proxy(registry.port)
    # A name that only the proxy knows, as in many a company's network.
    daemon = start_daemon(REGISTRIES=f"http://models.test:80,http://{registry.host}")
    pulled(daemon, "models.test/a/b")
    assert "GET http://models.test/v2/a/b/manifests/latest" in proxy.asked
    n_asked = len(proxy.asked)
    pulled(daemon, f"{registry.host}/a/b")
    done = daemon.run_cli("list")
    assert done.returncode == 0
    assert "models.test/a/b" in done.stdout
    assert len(proxy.asked) == n_asked


def test_a_proxy_that_refuses_is_named_and_so_is_the_host(
    start_daemon: Start, make_proxy: Callable[..., Proxy]
) -> None:
    proxy = make_proxy(0, status=403)
    daemon = start_daemon(REGISTRIES="http://models.test:80")
    for name in ("models.test/a/b", "sealed.test/a/b"):
        status, error = refusal(daemon, name)
        assert status == 502
        assert f"127.0.0.1:{proxy.port}" in error
        assert name.partition("/")[0] in error
    assert "CONNECT sealed.test:443" in proxy.asked


def test_a_sealed_registry_through_a_proxy_with_a_certificate_of_its_own(
    start_daemon: Start,
    registry: FaultyRegistry,
    gguf: Make,
    make_proxy: Callable[..., Proxy],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    data = gguf(500_000)
    registry.put("a/b", (MODEL_TYPE, data))
    authority, certificate, key = make_certificates(tmp_path / "tls", "sealed.test")
    tls = f"ssl_certificate {certificate}; ssl_certificate_key {key};"
    rules = f"location / {{ proxy_pass http://{registry.host}; }}"
    nginx = Nginx(tmp_path, tmp_path / "nginx", tls=tls, rules=rules)
    try:
        proxy = make_proxy(nginx.port)
        untrusting = start_daemon(MODELS=tmp_path / "m1")
        status, error = refusal(untrusting, "sealed.test/a/b")
        assert status == 502
        assert "certificate" in error.lower()
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        pulled(start_daemon(MODELS=tmp_path / "m2"), "sealed.test/a/b")
        assert "CONNECT sealed.test:443" in proxy.asked
    finally:
        nginx.kill()
