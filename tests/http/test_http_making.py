"""The routes that make models: uploads of blobs, and `/api/create`."""

import asyncio
import hashlib
import json
import threading

import pytest
from http_fakes import Exchange, ScriptedService, app_of
from http_store import ask, steps

from localrun.http import create as create_module
from modelstore.create import Progress
from modelstore.errors import DiskFull
from modelstore.store import Store

DATA = b"some bytes of a model" * 1000
DIGEST = "sha256:" + hashlib.sha256(DATA).hexdigest()


def test_blobs(tmp_path):
    root, path = tmp_path / "store", f"/api/blobs/{DIGEST}"
    assert ask(root, "HEAD", path)[0] == 404
    assert ask(root, "POST", path, DATA) == (201, b"")
    assert ask(root, "HEAD", path)[0] == 200
    assert ask(root, "HEAD", path.replace(":", "-"))[0] == 200
    assert ask(root, "POST", path, DATA) == (200, b"")
    status, reply = ask(root, "POST", path, DATA[1:])
    assert status == 200  # the digest is there already; what was sent is not looked at
    status, reply = ask(root, "POST", path[:-1] + ("0" if path[-1] != "0" else "1"), DATA)
    assert (status, reply["error"][:15]) == (400, "digest mismatch")
    status, reply = ask(root, "POST", "/api/blobs/..%2f", DATA)
    assert status == 400
    assert "invalid digest format" in reply["error"]


def upload(root, service=None):
    exchange = Exchange(app_of(service or ScriptedService(), root), "POST", f"/api/blobs/{DIGEST}")
    exchange._requests = asyncio.Queue()
    return exchange


def test_an_upload_in_many_pieces(tmp_path):
    async def main():
        exchange = upload(tmp_path / "store")
        for i in range(0, len(DATA), 100):
            exchange.send_body(DATA[i : i + 100], more=True)
        exchange.send_body(b"", more=False)
        return await exchange.run()

    assert asyncio.run(main())[0] == 201


def test_an_upload_that_breaks_off_leaves_nothing(tmp_path):
    async def main():
        exchange = upload(tmp_path / "store")
        exchange.send_body(DATA[:-1], more=True)
        exchange.hang_up()
        await exchange.start()

    asyncio.run(main())
    assert list((tmp_path / "store" / "blobs").iterdir()) == []


def test_an_upload_that_the_store_refuses_is_not_read_to_its_end(tmp_path, monkeypatch):
    def full(self, chunks, expected, *, total_bytes):
        next(iter(chunks))
        raise DiskFull(5, 4)

    monkeypatch.setattr("modelstore.blobs.Blobs.ingest", full)

    async def main():
        exchange = upload(tmp_path / "store")
        for _ in range(100):
            exchange.send_body(b"x", more=True)
        return await exchange.run()

    assert asyncio.run(main())[0] == 507


def test_an_upload_that_cannot_fit_is_refused_before_it_comes(tmp_path):
    async def main():
        exchange = upload(tmp_path / "store")
        exchange.scope["headers"].append((b"content-length", b"%d" % (1 << 60)))
        return await exchange.run()  # nobody sends a byte

    status, _, body = asyncio.run(main())
    assert status == 507
    assert f"needs {1 << 60} bytes" in json.loads(body)["error"]


def test_create_from_a_blob(tmp_path, gguf):
    root, data = tmp_path / "store", gguf.read_bytes()
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    ask(root, "POST", f"/api/blobs/{digest}", data)
    body = {"model": "new", "files": {"a.gguf": digest}, "parameters": {"num_ctx": "64"}}
    status, reply = ask(root, "POST", "/api/create", body)
    assert status == 200
    assert steps(reply)[0] == {"status": "parsing GGUF"}
    assert steps(reply)[-1] == {"status": "success"}
    assert Store(root).resolve("new").parameters == {"num_ctx": 64}
    body = {"model": "child", "from": "new", "system": "s", "stream": False}
    assert ask(root, "POST", "/api/create", body) == (200, {"status": "success"})
    assert Store(root).resolve("child").system == "s"


@pytest.mark.parametrize("in_place", [True, False])
def test_create_from_a_file_of_this_machine(tmp_path, gguf, in_place):
    body = {"model": "new", "path": str(gguf), "in_place": in_place, "stream": False}
    root = tmp_path / "store"
    assert ask(root, "POST", "/api/create", body) == (200, {"status": "success"})
    assert Store(root).resolve("new").model_path.is_symlink() == in_place


@pytest.mark.parametrize(
    "where",
    [
        {"peer": "192.168.1.5"},
        {"peer": "::ffff:192.168.1.5"},
        {"headers": {"X-Forwarded-For": "192.168.1.5"}},
    ],
)
def test_a_stranger_names_no_file_of_this_machine(root, gguf, where):
    body = {"model": "new", "path": str(gguf)}
    status, reply = ask(root, "POST", "/api/create", body, **where)
    assert status == 403
    assert "upload it" in reply["error"]


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({}, 400, "neither 'from' or 'files' was specified"),
        # It would be pulled, but not from there.
        ({"from": "127.0.0.1:1/a/nope"}, 404, "not found, and it cannot be pulled: `127.0.0.1"),
        ({"from": "127.0.0.1:1/a/nope"}, 404, "LOCALRUN_REGISTRIES"),
        ({"files": {"../a": DIGEST}}, 400, "file path must be relative"),
        ({"files": {"a.gguf": ""}}, 400, "invalid digest format"),
        ({"path": "/etc/passwd"}, 403, "is not a GGUF file"),
        ({"path": "/dev/zero"}, 403, "is not a regular file"),
        ({"path": "tiny.gguf"}, 400, "path: must be absolute"),
        ({"from": "tiny", "parameters": {"num_ctxx": 1}}, 400, "parameters.num_ctxx"),
        ({"from": "tiny", "parameters": {"num_ctx": "x"}}, 400, "parameters.num_ctx"),
    ],
)
def test_create_refuses_with_a_status_before_it_makes_anything(root, fields, status, words):
    got, reply = ask(root, "POST", "/api/create", {"model": "new", "stream": False, **fields})
    assert got == status
    assert words in reply["error"]
    assert [listing.name.display() for listing in Store(root).list()] == ["tiny:latest"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_failure_on_the_way(root, monkeypatch, stream):
    def failing(store, request, **_passed_in):
        yield Progress("one")
        raise DiskFull(5, 4)

    monkeypatch.setattr(create_module, "create", failing)
    status, reply = ask(root, "POST", "/api/create", {"model": "new", "stream": stream})
    if stream:
        first, last = steps(reply)
        assert (status, first, last["code"]) == (200, {"status": "one"}, "disk_full")
    else:
        assert status == 507


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_the_making(root, monkeypatch, stream):
    is_closed = threading.Event()
    is_begun = threading.Event()

    def endless(store, request, **_passed_in):
        try:
            while True:
                is_begun.set()
                yield Progress("copying")
        finally:
            is_closed.set()

    monkeypatch.setattr(create_module, "create", endless)

    async def main():
        app = app_of(ScriptedService(), root)
        exchange = Exchange(app, "POST", "/api/create", {"model": "new", "stream": stream})
        task = exchange.start()
        await asyncio.to_thread(is_begun.wait, 30)
        exchange.hang_up()
        await task

    asyncio.run(main())
    assert is_closed.wait(30)


def test_what_follows_an_operation_cannot_spoil_its_answer(root):
    class Broken(ScriptedService):
        async def unload_unnamed(self):
            raise OSError("the folder is gone")

    body = {"model": "new", "from": "tiny", "stream": False}
    assert ask(root, "POST", "/api/create", body, service=Broken()) == (200, {"status": "success"})
