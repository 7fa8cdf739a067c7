"""Real servers for models on loopback: Debian's docker-registry, and nginx as a source of files."""

import hashlib
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from live import wait_until

from modelstore.manifest import CONFIG_TYPE, MANIFEST_TYPE, MODEL_TYPE

_LISTENING = re.compile(r"listening on 127\.0\.0\.1:(\d+)")


def needs(program: str) -> str:
    """The path of a program; skips the test where it is not installed."""
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/bin:/sbin")
    if path is None:
        pytest.skip(f"{program} is not installed")
    return path


def digest_of(data: bytes) -> str:
    """`sha256:<hex>`."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def manifest_of(
    layers: Iterable[tuple[str, bytes]], config: bytes = b'{"model_format":"gguf"}'
) -> tuple[bytes, dict[str, bytes]]:
    """A manifest's bytes, and the blobs by digest that it names."""
    found = list(layers)
    blobs = {digest_of(data): data for data in (config, *(data for _, data in found))}
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": _layer(CONFIG_TYPE, config),
        "layers": [_layer(media_type, data) for media_type, data in found],
    }
    # Not as our own encoder would write it: the bytes have to be kept as they are.
    return json.dumps(document, indent=2).encode(), blobs


def _layer(media_type: str, data: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest_of(data), "size": len(data)}


class Server:
    """A process that serves on loopback, logs into a file and is ended by `kill`."""

    def __init__(self, command: list[str], log_path: Path) -> None:
        self.log_path = log_path
        with log_path.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OTEL_TRACES_EXPORTER": "none"},
            )

    def log(self) -> str:
        """What it has written."""
        return self.log_path.read_text(errors="replace")

    def kill(self) -> None:
        """Ends it and waits."""
        self.process.terminate()
        self.process.wait()


class DockerRegistry(Server):
    """`docker-registry serve` with its files in `folder`."""

    def __init__(self, folder: Path, *, extra: str = "") -> None:
        program = needs("docker-registry")
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "config.yml"
        config.write_text(
            "version: 0.1\n"
            f"storage:\n  filesystem:\n    rootdirectory: {folder / 'data'}\n"
            f"http:\n  addr: 127.0.0.1:0\n  secret: none\n{extra}"
        )
        super().__init__([program, "serve", str(config)], folder / "registry.log")

        def find_port() -> int:
            if self.process.poll() is not None:
                raise AssertionError(f"docker-registry ended: {self.log()}")
            match = _LISTENING.search(self.log())
            return int(match[1]) if match else 0

        self.port: int = wait_until(find_port, "docker-registry to listen")

    @property
    def host(self) -> str:
        """`127.0.0.1:port`."""
        return f"127.0.0.1:{self.port}"

    def put(self, repository: str, tag: str, model: bytes, **layers: bytes) -> bytes:
        """Stores a model by plain requests; returns its manifest. `template=b"…"` is a layer."""
        texts = [(f"application/vnd.ollama.image.{kind}", data) for kind, data in layers.items()]
        manifest, blobs = manifest_of([(MODEL_TYPE, model), *texts])
        for digest, data in blobs.items():
            self._put_blob(repository, digest, data)
        headers = {"Content-Type": MANIFEST_TYPE}
        self._request("PUT", f"/v2/{repository}/manifests/{tag}", manifest, headers)
        return manifest

    def blob_path(self, digest: str) -> Path:
        """The file in which it keeps a blob."""
        name = digest.removeprefix("sha256:")
        return self.log_path.parent / "data/docker/registry/v2/blobs/sha256" / name[:2] / name

    def _put_blob(self, repository: str, digest: str, data: bytes) -> None:
        location = self._request("POST", f"/v2/{repository}/blobs/uploads/")["location"]
        path = location.partition(self.host)[2]
        separator = "&" if "?" in path else "?"
        self._request("PUT", f"{path}{separator}digest={digest}", data)

    def _request(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> dict[str, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request(method, path, body, headers or {})
        with connection.getresponse() as response:
            assert response.status < 300, (response.status, response.read())
            found = {name.lower(): value for name, value in response.getheaders()}
        connection.close()
        return found


class Nginx(Server):
    """nginx that serves the files of `folder`; `rules` go into its server block."""

    def __init__(self, folder: Path, work: Path, *, rules: str = "", tls: str = "") -> None:
        program = needs("nginx")
        work.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        config = work / "nginx.conf"
        log = work / "access.log"
        listen = f"listen 127.0.0.1:{self.port}{' ssl' if tls else ''};"
        user = "user root;" if os.geteuid() == 0 else ""
        temps = " ".join(
            f"{name}_temp_path {work / name};"
            for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        config.write_text(
            f"daemon off; master_process off; pid {work / 'nginx.pid'}; {user}\n"
            "error_log stderr warn; events { worker_connections 64; }\n"
            f"http {{ {temps} access_log {log}; sendfile on;\n"
            f"server {{ {listen} {tls} root {folder}; {rules} }} }}\n"
        )
        super().__init__(
            [program, "-p", str(work), "-e", "stderr", "-c", str(config)], work / "nginx.log"
        )
        self.access_path = log
        wait_until(self._listens, "nginx to listen")

    @property
    def host(self) -> str:
        """`127.0.0.1:port`."""
        return f"127.0.0.1:{self.port}"

    def _listens(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"nginx ended: {self.log()}")
        try:
            socket.create_connection(("127.0.0.1", self.port), 5).close()
        except OSError:
            return False
        return True


def free_port() -> int:
    """A port that nobody had a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def make_certificates(folder: Path, *names: str) -> tuple[Path, Path, Path]:
    """(authority, certificate, key) for `localhost`, 127.0.0.1 and `names`, made with openssl."""
    program = needs("openssl")
    folder.mkdir(parents=True, exist_ok=True)
    authority, authority_key = folder / "ca.pem", folder / "ca.key"
    certificate, key, request = folder / "server.pem", folder / "server.key", folder / "server.csr"
    san = folder / "san.cnf"
    listed = ",".join(["IP:127.0.0.1", "DNS:localhost", *(f"DNS:{name}" for name in names)])
    san.write_text(f"subjectAltName={listed}\n")
    signed = ["-CAcreateserial", "-out", certificate, "-days", "2", "-extfile", san]
    ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    for command in (
        ["req", "-x509", *ec, "-keyout", authority_key, "-out", authority, "-subj", "/CN=test"],
        ["req", *ec[:-2], "-keyout", key, "-out", request, "-subj", "/CN=localhost"],
        ["x509", "-req", "-in", request, "-CA", authority, "-CAkey", authority_key, *signed],
    ):
        subprocess.run([program, *map(str, command)], check=True, capture_output=True)
    return authority, certificate, key
