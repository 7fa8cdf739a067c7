"""A live daemon that pulls: what clients see, what reaches the network, and what it survives."""

import contextlib
import fcntl
import http.client
import json
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import ollama
import pytest
from faulty_server import Asked, Fault, FaultyRegistry, serving
from live import Daemon, wait_until
from registry_servers import DockerRegistry, Nginx, digest_of, make_certificates

from modelstore.manifest import MODEL_TYPE

Start = Callable[..., Daemon]
Make = Callable[..., bytes]


def pull(daemon: Daemon, model: str, **more: Any) -> list[dict[str, Any]]:
    """The lines of a streamed pull; `completed` must never fall."""
    lines, most = [], dict[str, int]()
    for line in daemon.stream("/api/pull", {"model": model, **more}):
        if digest := line.get("digest"):
            assert line.get("completed", 0) >= most.get(digest, 0)
            most[digest] = line.get("completed", 0)
        lines.append(line)
    return lines


def pulled(daemon: Daemon, model: str, **more: Any) -> list[dict[str, Any]]:
    lines = pull(daemon, model, **more)
    assert lines[-1] == {"status": "success"}, lines[-1]
    return lines


def refusal(daemon: Daemon, model: Any, **more: Any) -> tuple[int, str]:
    """(status, error) of a pull that is not streamed."""
    status, body = daemon.request("POST", "/api/pull", {"model": model, "stream": False, **more})
    return status, json.loads(body).get("error", "")


def names(daemon: Daemon) -> list[str]:
    return [model["name"] for model in daemon.json("GET", "/api/tags")["models"]]


def test_a_pulled_model_answers(
    start_daemon: Start, docker_registry: DockerRegistry, gguf: Make
) -> None:
    docker_registry.put("user/m", "q4", gguf(200_000, pieces=["hel", "lo"]), system=b"Be kind")
    daemon = start_daemon(REGISTRIES=f"http://{docker_registry.host}")
    name = f"{docker_registry.host}/user/m:q4"
    lines = pulled(daemon, name)
    assert lines[0] == {"status": "pulling manifest"}
    assert names(daemon) == [name]
    assert daemon.chat(name, "hi")["message"]["content"] == "hello"
    assert daemon.json("POST", "/api/pull", {"name": name, "stream": False}) == {
        "status": "success"
    }


def test_a_model_is_made_from_one_that_has_to_be_pulled_first(
    start_daemon: Start, docker_registry: DockerRegistry, gguf: Make
) -> None:
    docker_registry.put("user/base", "q4", gguf(200_000, pieces=["hel", "lo"]))
    daemon = start_daemon(REGISTRIES=f"http://{docker_registry.host}")
    base = f"{docker_registry.host}/user/base:q4"
    body = {"model": "mine", "from": base, "system": "Be brief"}
    statuses = [line.get("status") for line in daemon.stream("/api/create", body)]
    assert statuses[0] == "pulling manifest"
    assert [status for status in statuses if status == "success"] == statuses[-1:]
    assert set(names(daemon)) == {base, "mine:latest"}
    assert daemon.chat("mine", "hi")["message"]["content"] == "hello"
    status, reply = daemon.request(
        "POST",
        "/api/create",
        {**body, "from": f"{docker_registry.host}/user/none", "stream": False},
    )
    assert (status, "file does not exist" in reply.decode()) == (404, True)


def test_the_python_client_follows_a_pull(
    start_daemon: Start, registry: FaultyRegistry, gguf: Make
) -> None:
    data = gguf(500_000)
    registry.put("a/b", (MODEL_TYPE, data))
    daemon = start_daemon(REGISTRIES=f"http://{registry.host}")
    client = ollama.Client(daemon.url)
    steps = list(client.pull(f"{registry.host}/a/b", stream=True, insecure=True))
    assert steps[-1].status == "success"
    assert (digest_of(data), len(data)) in {(step.digest, step.completed) for step in steps}
    with pytest.raises(ollama.ResponseError) as caught:
        client.pull(f"{registry.host}/a/nothing")
    client._client.close()
    assert caught.value.status_code == 404


def test_a_flipped_byte_and_a_whole_file_for_a_range(
    start_daemon: Start, registry: FaultyRegistry, gguf: Make
) -> None:
    data = gguf(48 << 20)
    name = f"{registry.host}/a/b"
    registry.put("a/b", (MODEL_TYPE, data))
    flipped: list[int] = []
    flip_at = 20_000_000
    listed: list[list[str]] = []
    daemon = start_daemon(REGISTRIES=f"http://{registry.host}")

    def flip(asked: Asked) -> Fault | None:
        listed.append(names(daemon))
        if asked.start <= flip_at < asked.end and not flipped:
            flipped.append(1)
            return Fault(flip_at=flip_at)
        return None

    registry.plan = flip
    pulled(daemon, name)
    assert registry.n_bytes < 2 * len(data)
    assert listed
    assert not any(listed)
    assert names(daemon) == [f"{name}:latest"]

    other = gguf(20 << 20)
    registry.put("a/other", (MODEL_TYPE, other))
    registry.plan = lambda asked: Fault(whole=True)
    pulled(daemon, f"{registry.host}/a/other")


def test_stalls_and_resets_show_that_they_are_tried_again(
    start_daemon: Start, registry: FaultyRegistry, gguf: Make
) -> None:
    data = gguf(8 << 20)
    registry.put("a/b", (MODEL_TYPE, data))
    registry.plan = lambda asked: (
        Fault(reset_at=asked.start + 5000)
        if asked.number == 0 and asked.path.endswith(digest_of(data))
        else None
    )
    daemon = start_daemon(REGISTRIES=f"http://{registry.host}")
    lines = pulled(daemon, f"{registry.host}/a/b")
    assert any("try 2 of 6" in line["status"] for line in lines)


def test_a_full_disk_is_told_and_later_pulls_work(
    start_daemon: Start, registry: FaultyRegistry, gguf: Make, small_disk: Path
) -> None:
    daemon = start_daemon(MODELS=small_disk, REGISTRIES=f"http://{registry.host}")
    for name, n_bytes in (("first", 40 << 20), ("large", 100 << 20), ("small", 20 << 20)):
        registry.put(f"a/{name}", (MODEL_TYPE, gguf(n_bytes, pieces=[name])))
    pulled(daemon, f"{registry.host}/a/first")
    status, error = refusal(daemon, f"{registry.host}/a/large")
    assert status == 507
    assert "disk space" in error
    # What the check cannot know: somebody else fills the disk meanwhile.
    filler = small_disk / "filler"
    fill(filler)
    status, error = refusal(daemon, f"{registry.host}/a/small")
    assert status == 507
    assert names(daemon) == [f"{registry.host}/a/first:latest"]
    filler.unlink()
    status, _ = daemon.request("DELETE", "/api/delete", {"model": f"{registry.host}/a/first"})
    assert status == 200
    pulled(daemon, f"{registry.host}/a/small")
    assert names(daemon) == [f"{registry.host}/a/small:latest"]


def fill(path: Path) -> None:
    """Writes until nothing fits any more."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 20))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """64 MiB of their own."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk is not permitted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


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


def test_a_client_that_leaves_stops_the_transfer(
    start_daemon: Start, registry: FaultyRegistry, gguf: Make
) -> None:
    data = gguf(36 << 20)
    registry.put("a/b", (MODEL_TYPE, data))
    registry.plan = lambda asked: Fault(pause_s=0.005)
    daemon = start_daemon(REGISTRIES=f"http://{registry.host}")
    body = {"model": f"{registry.host}/a/b"}
    for line in daemon.stream("/api/pull", body):
        if line.get("completed", 0) > 2_000_000:
            break
    partial = daemon_blobs(daemon) / f"{digest_of(data).replace(':', '-')}-partial"
    # The lock of a transfer is free when it has ended.
    wait_until(lambda: is_unlocked(Path(f"{partial}.lock")), "the transfer to end")
    sent = registry.n_bytes
    assert sent < len(data)
    assert partial.is_file()
    registry.plan = lambda asked: None
    n_there = sum(
        end - start for start, end in json.loads(Path(f"{partial}.json").read_text())["completed"]
    )
    assert n_there > 2_000_000
    pulled(daemon, f"{registry.host}/a/b")
    # What was on its way when the connections were closed counts as sent.
    assert registry.n_bytes < sent + len(data) - n_there + (1 << 20)


def daemon_blobs(daemon: Daemon) -> Path:
    return daemon.log_path.parent / "models" / "blobs"


def is_unlocked(path: Path) -> bool:
    with path.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


def test_a_killed_daemon_goes_on_where_it_was(
    start_daemon: Start, registry: FaultyRegistry, gguf: Make
) -> None:
    data = gguf(36 << 20)
    registry.put("a/b", (MODEL_TYPE, data))
    registry.plan = lambda asked: Fault(stall_at=34 << 20) if asked.end > 34 << 20 else None
    first = start_daemon(REGISTRIES=f"http://{registry.host}")
    journal = daemon_blobs(first) / f"{digest_of(data).replace(':', '-')}-partial.json"

    def n_saved() -> int:
        if not journal.is_file():
            return 0
        return sum(b - a for a, b in json.loads(journal.read_text())["completed"])

    lines = first.stream("/api/pull", {"model": f"{registry.host}/a/b"})
    for _ in lines:
        if n_saved() > 30 << 20:
            break
    first.kill()
    sent = registry.n_bytes
    registry.plan = lambda asked: None
    pulled(start_daemon(REGISTRIES=f"http://{registry.host}"), f"{registry.host}/a/b")
    assert registry.n_bytes - sent < 16 << 20


def test_a_daemon_that_is_told_to_go_does_not_wait_for_a_pull(
    start_daemon: Start, registry: FaultyRegistry, gguf: Make
) -> None:
    registry.put("a/b", (MODEL_TYPE, gguf(1_000_000)))
    registry.plan = lambda asked: Fault(stall_at=500_000)
    daemon = start_daemon(REGISTRIES=f"http://{registry.host}")
    lines = daemon.stream("/api/pull", {"model": f"{registry.host}/a/b"})
    next(line for line in lines if line.get("completed", 0) >= 500_000)
    assert daemon.terminate() == 0


BAD_NAMES = [
    "",
    "a//b",
    ":tag",
    "name:",
    "../x",
    "http://x/y",
    "x" * 300,
    "{host}/a/two words",
    "{host}/a/emoji😀",
    "{host}/a/nul\0",
    "{host}/a/b/",
    "/etc/hostname",
    "user:secret@{host}/a/b",
    "https://user:secret@{host}/x.gguf",
    "[::1]:80/x/y",
]


def test_what_is_no_name_is_400_and_goes_nowhere(
    start_daemon: Start, registry: FaultyRegistry
) -> None:
    daemon = start_daemon(REGISTRIES=f"http://{registry.host}")
    for text in BAD_NAMES:
        name = text.format(host=registry.host)
        for path in ("/api/pull", "/api/show"):
            status, body = daemon.request("POST", path, {"model": name})
            assert status in (400, 404), (path, name, body)
            assert json.loads(body)["error"]
            assert b"secret" not in body
        assert refusal(daemon, name)[0] == 400
    assert registry.asked == []
    status, error = refusal(daemon, f"{registry.host}/a/unknown")
    assert status == 404
    assert error.startswith("pull model manifest: file does not exist")
    assert f"{registry.host}/a/unknown:latest" in error
    last = pull(daemon, f"{registry.host}/a/unknown")[-1]
    assert last == {"error": error, "code": "model_not_found"}
    assert "secret of the server" not in error


@pytest.mark.parametrize("insecure", [False, True])
def test_nothing_inside_is_contacted_unless_it_is_listed(
    start_daemon: Start, insecure: bool
) -> None:
    daemon = start_daemon()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"127.1:{port}", "169.254.169.254"):
            for name in (f"{host}/x/y", f"http://{host}/x/y.gguf", f"https://{host}/x.gguf"):
                status, error = refusal(daemon, name, insecure=insecure)
                assert status == 403, (name, error)
                assert "LOCALRUN_REGISTRIES" in error
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_a_redirect_of_a_blob_to_the_inside_is_refused(
    start_daemon: Start, registry: FaultyRegistry, gguf: Make
) -> None:
    registry.put("a/b", (MODEL_TYPE, gguf(1000)))
    with serving() as inside:
        registry.plan = lambda asked: Fault(location=f"http://{inside.host}/secret")
        daemon = start_daemon(REGISTRIES=f"http://{registry.host}")
        status, error = refusal(daemon, f"{registry.host}/a/b", insecure=True)
        assert (status, inside.asked) == (403, [])
        assert "secret" not in error


def test_a_manifest_cannot_name_a_file_outside(
    start_daemon: Start, registry: FaultyRegistry, tmp_path: Path
) -> None:
    daemon = start_daemon(REGISTRIES=f"http://{registry.host}")
    registry.put("a/b", (MODEL_TYPE, b"GGUF"))
    (path,) = registry.manifests
    good = registry.manifests[path].decode()
    before = set(tmp_path.rglob("*"))
    for digest in ("sha256:../../../x", "sha256-..%2f", "sha256:" + "A" * 64, "sha512:" + "a" * 64):
        registry.manifests[path] = good.replace(digest_of(b"GGUF"), digest).encode()
        assert refusal(daemon, f"{registry.host}/a/b")[0] == 400
    assert set(tmp_path.rglob("*")) == before


def test_an_entry_of_registries_that_is_none_stops_the_start(start_daemon: Start) -> None:
    with pytest.raises(AssertionError, match="LOCALRUN_REGISTRIES") as caught:
        start_daemon(REGISTRIES="http://me:secret@host")
    assert "secret" not in str(caught.value)


# -- files at URLs


@pytest.mark.parametrize("rules", ["", "max_ranges 0;", "limit_rate 2m;"])
def test_a_file_at_a_url_becomes_a_model(
    start_daemon: Start, tmp_path: Path, gguf: Make, rules: str
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    data = gguf(3_000_000, pieces=["from a file"])
    (files / "My Model.gguf").write_bytes(data)
    nginx = Nginx(files, tmp_path / "nginx", rules=rules)
    try:
        daemon = start_daemon(REGISTRIES=f"http://{nginx.host}")
        lines = pulled(daemon, f"http://{nginx.host}/My%20Model.gguf")
        assert names(daemon) == ["My-Model:latest"]
        assert {line["total"] for line in lines if "total" in line} == {len(data)}
        assert daemon.chat("My-Model", "hi")["message"]["content"] == "from a file"
        blobs = os.listdir(daemon_blobs(daemon))
        assert digest_of(data).replace(":", "-") in blobs
        assert not any("partial" in name for name in blobs)
    finally:
        nginx.kill()


def test_a_file_behind_a_redirect_and_one_that_is_a_page(
    start_daemon: Start, tmp_path: Path, gguf: Make
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "m.gguf").write_bytes(gguf(100_000))
    (files / "page.gguf").write_text("<!DOCTYPE html><html>" + "secret " * 1000)
    (files / "text.gguf").write_text("secret " * 1000)
    nginx = Nginx(files, tmp_path / "nginx")
    moved = Nginx(
        files, tmp_path / "moved", rules=f"location / {{ return 302 http://{nginx.host}$uri; }}"
    )
    try:
        daemon = start_daemon(REGISTRIES=f"http://{moved.host},http://{nginx.host}")
        pulled(daemon, f"http://{moved.host}/m.gguf")
        for name in ("text.gguf", "missing.gguf"):
            status, error = refusal(daemon, f"http://{moved.host}/{name}")
            assert status in (400, 502), error
            assert "secret" not in error
        assert names(daemon) == ["m:latest"]
        assert len(os.listdir(daemon_blobs(daemon))) == 2
        elsewhere = start_daemon(MODELS=tmp_path / "other", REGISTRIES=f"http://{moved.host}")
        assert refusal(elsewhere, f"http://{moved.host}/m.gguf")[0] == 403
    finally:
        nginx.kill()
        moved.kill()


# -- the command


def test_run_pulls_what_is_not_here(
    start_daemon: Start, docker_registry: DockerRegistry, gguf: Make
) -> None:
    docker_registry.put("user/run", "latest", gguf(10_000, pieces=["pulled"]))
    daemon = start_daemon(REGISTRIES=f"http://{docker_registry.host}")
    out, err = daemon.start_cli("run", f"{docker_registry.host}/user/run", "hi").communicate(
        timeout=60
    )
    assert (out, err.splitlines()[-1]) == ("pulled\n", "success")


def test_a_model_without_its_blobs_is_repaired_and_never_replaced(
    start_daemon: Start, registry: FaultyRegistry, gguf: Make, tmp_path: Path
) -> None:
    old = gguf(10_000, pieces=["old"])
    registry.put("a/b", (MODEL_TYPE, old))
    daemon = start_daemon(REGISTRIES=f"http://{registry.host}")
    name = f"{registry.host}/a/b:latest"
    pulled(daemon, name)
    registry.put("a/b", (MODEL_TYPE, gguf(20_000, pieces=["new"])))
    blob = tmp_path / "models" / "blobs" / digest_of(old).replace(":", "-")
    blob.unlink()
    modelfile = tmp_path / "Modelfile"
    modelfile.write_text(f"FROM {name}\nSYSTEM x\n")
    for command in (["run", name, "hi"], ["create", "other", "-f", str(modelfile)]):
        process = daemon.start_cli(*command)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (1, "")
        assert f"`localrun verify --repair {name}`" in err
    assert names(daemon) == [name]
    out, _ = daemon.start_cli("verify", "--repair", name).communicate(timeout=60)
    assert out == f"{name}: repaired\n"
    assert daemon.chat(name, "hi")["message"]["content"] == "old"


def test_ctrl_c_ends_the_command_and_the_transfer(
    start_daemon: Start, registry: FaultyRegistry, gguf: Make
) -> None:
    data = gguf(1_000_000)
    registry.put("a/b", (MODEL_TYPE, data))
    registry.plan = lambda asked: Fault(stall_at=500_000)
    daemon = start_daemon(REGISTRIES=f"http://{registry.host}")
    with daemon.start_cli("pull", f"{registry.host}/a/b") as process:
        assert process.stderr is not None
        next(line for line in process.stderr if "40%" in line or "50%" in line)
        process.send_signal(signal.SIGINT)
        err = process.stderr.read()
        assert process.wait(30) == 130
    assert "goes on" in err
    assert "Traceback" not in err
    lock = daemon_blobs(daemon) / f"{digest_of(data).replace(':', '-')}-partial.lock"
    wait_until(lambda: is_unlocked(lock), "the transfer to end")
