"""The disk of a live daemon: what it takes, what goes, what is damaged."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from keep_steps import (
    Fake,
    Start,
    copy_in,
    disk_use,
    manifest_path,
    names,
    referenced,
    weights_blob,
)
from live import Daemon, chat_body, wait_until
from partial_writer import leave_partial

# ---- interrupted downloads


@pytest.mark.parametrize("command", ["rm", "prune", "prune --partials"])
def test_a_documented_command_frees_an_interrupted_download(
    daemon: Daemon, fake_model: Fake, root: Path, command: str
) -> None:
    copy_in(daemon, "m", fake_model(pieces=["ok"]))
    before = disk_use(root)
    leave_partial(root / "blobs", b"w" * 5_000_000, "big:70b", n_here=2_000_000)
    code, out, err = daemon.cli("prune", "--dry-run")
    assert (code, err) == (0, "")
    assert "big:70b" in out
    assert "2 MB of 5 MB" in out
    assert "would free 2 MB" in out
    assert "big:70b" in daemon.cli("df")[1]
    assert names(daemon) == ["m:latest"]
    arguments = ["rm", "big:70b"] if command == "rm" else command.split()
    assert daemon.cli(*arguments)[0] == 0
    assert disk_use(root) == before
    assert daemon.cli("rm", "big:70b")[0] == 4


# ---- broken and foreign files


def break_manifest(path: Path, damage: str) -> None:
    if damage == "empty":
        path.write_bytes(b"")
    elif damage == "half":
        path.write_bytes(path.read_bytes()[:100])
    else:
        path.unlink()
        path.mkdir()


@pytest.mark.parametrize(
    ("damage", "cure"), [("empty", "rm"), ("half", "create"), ("folder", "rm")]
)
def test_a_broken_manifest_takes_nothing_else_down_and_can_be_cured(
    start_daemon: Start, fake_model: Fake, root: Path, damage: str, cure: str
) -> None:
    daemon = start_daemon()
    for name in ("a", "b", "broken"):
        copy_in(daemon, name, fake_model(pieces=[name]))
    break_manifest(manifest_path(root, "broken"), damage)
    assert names(daemon) == ["a:latest", "b:latest"]
    wait_until(lambda: "broken:latest is not listed" in daemon.log(), "the log to name it")
    copy_in(daemon, "c", fake_model(pieces=["c"]))
    code, _, err = daemon.cli("prune")
    assert code == 1
    assert "`broken:latest`" in err
    assert daemon.terminate() == 0
    daemon = start_daemon()
    assert names(daemon) == ["a:latest", "b:latest", "c:latest"]
    assert daemon.chat("a", "hi")["message"]["content"] == "a"
    if cure == "rm":
        assert daemon.cli("rm", "broken")[0] == 0
    else:
        copy_in(daemon, "broken", fake_model(pieces=["cured"]))
        assert daemon.chat("broken", "hi")["message"]["content"] == "cured"
    daemon.json("POST", "/api/prune", {"min_age_s": 0})
    assert set(os.listdir(root / "blobs")) == referenced(root)


def test_strangers_files_among_the_manifests_change_nothing(
    start_daemon: Start, fake_model: Fake, root: Path
) -> None:
    daemon = start_daemon()
    copy_in(daemon, "tiny", fake_model(pieces=["ok"]))
    before = daemon.json("GET", "/api/tags")
    folder = manifest_path(root, "tiny").parent
    (folder / ".DS_Store").write_bytes(b"\0")
    (folder / "latest~").write_bytes(b"a backup")
    (folder.parent / "tiny.meta").write_text("text")
    (folder.parent / "empty").mkdir()
    blobs = os.listdir(root / "blobs")
    assert daemon.json("GET", "/api/tags") == before
    pruned = daemon.json("POST", "/api/prune", {"min_age_s": 0})
    assert (pruned["gone"], pruned["unreadable"]) == ([], [])
    assert os.listdir(root / "blobs") == blobs
    assert (folder / ".DS_Store").exists()
    assert "not listed" not in daemon.log()
    daemon.terminate()
    assert start_daemon().json("GET", "/api/tags") == before


def test_the_disk_holds_what_is_referenced_after_every_removal_and_overwriting(
    daemon: Daemon, fake_model: Fake, root: Path
) -> None:
    def create(name: str, **body: Any) -> None:
        daemon.json("POST", "/api/create", {"model": name, "stream": False, **body})

    def remove(name: str) -> None:
        daemon.json("DELETE", "/api/delete", {"model": name})

    first, second = fake_model(pieces=["1"]), fake_model(pieces=["2"])
    steps: list[Callable[[], None]] = [
        lambda: create("a", path=str(first)),
        lambda: create("a", path=str(second)),
        lambda: create("b", **{"from": "a", "system": "shared"}),
        lambda: create("c", **{"from": "b", "system": "other"}),
        lambda: remove("a"),
        lambda: remove("b"),
    ]
    for step in steps:
        step()
        assert set(os.listdir(root / "blobs")) == referenced(root)
    assert daemon.chat("c", "hi")["message"]["content"] == "2"
    remove("c")
    assert os.listdir(root / "blobs") == []


def test_an_uploaded_blob_that_became_no_model_is_shown_and_freed(
    daemon: Daemon, root: Path
) -> None:
    data = b"an upload"
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    daemon.request("POST", f"/api/blobs/{digest}", data)
    assert daemon.json("GET", "/api/df")["unreferenced"] == {"count": 1, "size": len(data)}
    young = daemon.json("POST", "/api/prune", {})
    assert (young["gone"], young["spared"]) == ([], 1)  # a request to create may be on its way
    old = daemon.json("POST", "/api/prune", {"min_age_s": 0})
    assert [piece["kind"] for piece in old["gone"]] == ["blob"]
    assert old["freed"] == len(data)
    assert os.listdir(root / "blobs") == []


@pytest.mark.parametrize("body", [{"min_age_s": -1}, {"min_age_s": "1h"}, {"dry_run": "yes"}])
def test_a_request_to_prune_that_is_wrong_removes_nothing(
    daemon: Daemon, body: dict[str, Any]
) -> None:
    assert "error" in daemon.json("POST", "/api/prune", body, status=400)
    assert "error" in daemon.json("POST", "/api/prune", b"", status=400)


# ---- damage


def test_a_damaged_model_is_found_set_aside_and_told(
    daemon: Daemon, fake_model: Fake, root: Path
) -> None:
    name = "localhost:1/a/bad:latest"  # of a registry that nobody may contact
    bad = fake_model(pieces=["bad "] * 200, step_s=0.01)
    good = fake_model(pieces=["good"])
    copy_in(daemon, name, bad)
    copy_in(daemon, "good", good)
    code, out, _ = daemon.cli("verify")
    assert (code, out) == (0, f"{name}: ok\ngood:latest: ok\n")
    answer = daemon.stream("/api/chat", chat_body(name, "hi"))
    next(answer)
    blob = weights_blob(root, bad)
    blob.chmod(0o644)
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    code, out, err = daemon.cli("verify", name)
    assert code == 1
    assert out.startswith(f"{name}: damaged\n  the weights (blob ")
    assert "Traceback" not in out + err
    assert blob.with_name(blob.name + "-corrupt").exists()
    # In memory it is what it was.
    assert list(answer)[-1]["eval_count"] == 200
    refusal = daemon.json("POST", "/api/generate", {"model": name, "prompt": "hi"}, status=500)
    assert "is not in the store" in refusal["error"]
    assert f"`localrun verify --repair {name}`" in refusal["error"]
    assert daemon.chat("good", "hi")["message"]["content"] == "good"
    assert "corrupt, set aside" in daemon.cli("df")[1]
    code, out, _ = daemon.cli("verify", name, "--repair")
    assert code == 1
    assert "not repaired: `localhost` is not contacted" in out
    copy_in(daemon, name, bad)
    assert daemon.cli("verify")[0] == 0


def test_verify_tells_its_progress_and_ends_with_every_model(
    daemon: Daemon, fake_model: Fake
) -> None:
    copy_in(daemon, "m", fake_model(pieces=["ok"]))
    *steps, last = daemon.stream("/api/verify", {})
    assert {step["status"] for step in steps} == {"verifying"}
    assert steps[-1]["completed"] == steps[-1]["total"]
    assert last == {
        "status": "success",
        "ok": True,
        "models": [{"model": "m:latest", "ok": True, "repaired": False, "problems": []}],
    }
    assert daemon.json("POST", "/api/verify", {"model": "m", "stream": False}) == last
    assert daemon.json("POST", "/api/verify", {"models": ["x/y/z/u"]}, status=400)
    assert daemon.json("POST", "/api/verify", {"model": "nosuch"}, status=404)
    code, _, err = daemon.cli("verify", "nosuch")
    assert code == 4
    assert "nosuch" in err


# ---- names that want out


BAD_DIGESTS = [
    "sha256:../../x",
    "sha256-..%2f",
    "sha256:..%2F..%2Fx",
    "sha256:" + "a" * 63,
    "sha256:" + "a" * 65,
    "sha256:" + "A" * 64,
    "sha512:" + "a" * 128,
    "%2e%2e%2f" + "a" * 64,
    "sha256:" + "a" * 64 + "%00",
    "sha256:" + "a" * 64 + "-corrupt",
    "sha256:" + "a" * 64 + "-partial",
]


def test_digests_and_names_that_would_leave_the_store_are_refused_before_a_file_is_made(
    daemon: Daemon, fake_model: Fake, tmp_path: Path, root: Path
) -> None:
    data = fake_model(pieces=["ok"]).read_bytes()
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    daemon.request("POST", f"/api/blobs/{digest}", data)
    log = daemon.log_path

    def snapshot() -> set[str]:
        return {str(path) for path in tmp_path.rglob("*") if path != log}

    before = snapshot()
    for bad in BAD_DIGESTS:
        for method in ("HEAD", "POST"):
            status, _ = daemon.request(method, f"/api/blobs/{bad}", b"x" * (method == "POST"))
            # With a separator it is another path, where there is nothing.
            is_path = "/" in bad or "%2f" in bad.lower()
            assert status in ((307, 404) if is_path else (400,)), (method, bad)
        for field in ("files", "adapters"):
            body = {"model": "m", "from": "x", field: {"a.gguf": bad}, "stream": False}
            assert daemon.request("POST", "/api/create", body)[0] == 400, (field, bad)
    for name in ("../x.gguf", "/abs.gguf", "a\\b.gguf", "..", "x/../../y.gguf", "a\0.gguf", ""):
        body = {"model": "m", "files": {name: digest}, "stream": False}
        assert daemon.request("POST", "/api/create", body)[0] == 400, name
    for name in ("../x", "a/../b", "..", "x:..", "/etc/passwd", ".hidden", "a/b/c/d"):
        for path, body in [
            ("create", {"model": name, "files": {"a.gguf": digest}}),
            ("copy", {"source": name, "destination": "x"}),
            ("copy", {"source": "x", "destination": name}),
            ("show", {"model": name}),
            ("verify", {"models": [name]}),
        ]:
            status, _ = daemon.request("POST", f"/api/{path}", {**body, "stream": False})
            assert status in (400, 404), (path, name)
        assert daemon.request("DELETE", "/api/delete", {"model": name})[0] == 400, name
    assert snapshot() == before
