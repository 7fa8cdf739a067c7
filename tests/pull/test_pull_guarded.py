"""What a pull never does: contact what is not listed, write outside, take what is no name."""

import json
import socket
from pathlib import Path

import pytest
from faulty_server import Fault, FaultyRegistry, serving
from pull_client import Make, Start, pull, refusal
from registry_servers import digest_of

from modelstore.manifest import MODEL_TYPE

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
