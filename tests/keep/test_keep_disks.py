"""Stores on other disks, of other owners, or not to be written at all."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from keep_steps import Fake, Start, copy_in, manifest_path, names, weights_blob
from live import wait_until
from partial_writer import leave_partial

from modelstore.digest import Digest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("what", ["store", "parent", "blob"])
def test_links_to_another_disk_are_followed(
    start_daemon: Start, fake_model: Fake, tmp_path: Path, what: str
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    model = fake_model(pieces=["ok"])
    store = tmp_path / "home" / "models"
    if what == "parent":
        store.parent.symlink_to(disk)
    else:
        store.parent.mkdir()
    if what == "store":
        store.symlink_to(disk)
    daemon = start_daemon(MODELS=f"{store}/")
    copy_in(daemon, "m", model)
    blob = weights_blob(store, model)
    if what == "blob":
        shutil.move(blob, disk / "weights")
        blob.symlink_to(disk / "weights")
    else:
        assert weights_blob(disk / "models" if what == "parent" else disk, model).is_file()
    daemon.terminate()
    daemon = start_daemon(MODELS=store)
    assert str(store) in daemon.log()
    assert names(daemon) == ["m:latest"]
    assert daemon.chat("m", "hi")["message"]["content"] == "ok"
    daemon.json("DELETE", "/api/delete", {"model": "m"})
    assert not os.path.lexists(blob)
    if what == "blob":
        assert (disk / "weights").is_file(), "what lies outside is not the store's"


@pytest.mark.parametrize("setting", ["~/here", "here", "./here/"])
def test_the_path_of_the_store_may_be_short_and_the_whole_one_is_logged(
    start_daemon: Start,
    fake_model: Fake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for a daemon that starts in another folder
    daemon = start_daemon(MODELS=setting)
    assert f"models in {tmp_path / 'here'}\n" in daemon.log()
    copy_in(daemon, "m", fake_model(pieces=["ok"]))
    assert daemon.chat("m", "hi")["message"]["content"] == "ok"
    assert manifest_path(tmp_path / "here", "m").is_file()


def test_a_path_that_cannot_be_used_stops_the_start_and_is_named(
    tmp_path: Path, start_daemon: Start
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(AssertionError, match="daemon ended") as caught:
        start_daemon(MODELS=tmp_path / "file" / "models")
    assert str(tmp_path / "file" / "models") in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.fixture
def make_read_only() -> Iterator[Callable[[Path], None]]:
    """Makes a folder one that nobody can write; root needs a mount for that."""
    mounted: list[Path] = []

    def make(folder: Path) -> None:
        if os.geteuid():
            for path in [folder, *folder.rglob("*")]:
                path.chmod(path.stat().st_mode & ~0o222)
            return
        for options in (["--bind", str(folder)], ["-o", "remount,ro,bind"]):
            done = subprocess.run(["mount", *options, str(folder)], check=False)
            if done.returncode:
                pytest.skip("root needs a read-only mount, which is not permitted here")
            if options[0] == "--bind":
                mounted.append(folder)

    yield make
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_store_that_cannot_be_written_serves_what_it_has(
    start_daemon: Start, fake_model: Fake, root: Path, make_read_only: Callable[[Path], None]
) -> None:
    daemon = start_daemon()
    model = fake_model(pieces=["ok"])
    copy_in(daemon, "m", model)
    daemon.terminate()
    make_read_only(root)
    daemon = start_daemon()
    pid = daemon.json("GET", "/api/version")["pid"]
    assert names(daemon) == ["m:latest"]
    assert daemon.chat("m", "hi")["message"]["content"] == "ok"
    body = {"model": "n", "path": str(model), "stream": False}
    for method, path, request in [
        ("POST", "/api/create", body),
        ("POST", "/api/copy", {"source": "m", "destination": "n"}),
        ("DELETE", "/api/delete", {"model": "m"}),
        ("POST", "/api/prune", {}),
    ]:
        error = daemon.json(method, path, request, status=500)["error"]
        assert "may not write to its model store" in error, path
    assert daemon.json("GET", "/api/df")["models"][0]["name"] == "m:latest"
    assert daemon.json("POST", "/api/verify", {"stream": False})["ok"]
    wait_until(lambda: "as user" in daemon.log(), "the log to say who may not write")
    assert daemon.json("GET", "/api/version")["pid"] == pid


def test_the_folder_of_ollama_is_used_and_not_changed_at_start(
    start_daemon: Start, fake_model: Fake, root: Path
) -> None:
    daemon = start_daemon()
    copy_in(daemon, "m", fake_model(pieces=["ok"]))
    daemon.terminate()
    for ours in (".localrun-store", ".lock"):
        (root / ours).unlink(missing_ok=True)
    orphan = root / "blobs" / Digest.of(b"orphan").file_name
    orphan.write_bytes(b"orphan")
    old = leave_partial(root / "blobs", b"weights", "big", age_s=1e6)
    os.utime(orphan, (1e9, 1e9))
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    daemon = start_daemon()
    assert names(daemon) == ["m:latest"]
    assert daemon.chat("m", "hi")["message"]["content"] == "ok"
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
    code, out, err = daemon.cli("prune")
    assert (code, out) == (1, "")
    assert "--foreign" in err
    assert orphan.exists()
    code, out, err = daemon.cli("prune", "--foreign")
    assert (code, err) == (0, "")
    assert not orphan.exists()
    assert not old.exists()
