"""Interrupted downloads and broken manifests of pulled models, in a live daemon."""

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from live import Daemon, wait_until, write_fake_model

from modelstore.manifest import MODEL_TYPE
from tests.pull.faulty_server import Fault, serving

Start = Callable[..., Daemon]


def cli(daemon: Daemon, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    process = daemon.start_cli(*arguments)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def model_file(tmp_path: Path, n_bytes: int, text: str) -> bytes:
    data = write_fake_model(tmp_path / "made.gguf", {"pieces": [text]}).read_bytes()
    return data + random.Random(text).randbytes(n_bytes - len(data))


def disk_use(root: Path) -> set[tuple[str, int]]:
    """Every file with its size, but for the lock of the store."""
    files = (path for path in root.rglob("*") if path.is_file() and path.name != ".lock")
    return {(str(path), path.stat().st_size) for path in files}


@pytest.mark.parametrize("command", ["rm", "prune"])
def test_an_interrupted_pull_is_shown_and_a_command_frees_its_disk(
    start_daemon: Start, tmp_path: Path, command: str
) -> None:
    with serving() as registry:
        data = model_file(tmp_path, 24 << 20, "ok")
        registry.put("a/big", (MODEL_TYPE, data))
        registry.plan = lambda asked: Fault(pause_s=0.005)
        daemon = start_daemon(REGISTRIES=f"http://{registry.host}")
        root = tmp_path / "models"
        name = f"{registry.host}/a/big:latest"
        before = disk_use(root)
        pulling = daemon.start_cli("pull", name)
        wait_until(
            lambda: any(
                one["size"] > 2_000_000 for one in daemon.json("GET", "/api/df")["partials"]
            ),
            "the first bytes to arrive",
        )
        # While it goes on, nobody takes it away.
        code, _, err = cli(daemon, "rm", name)
        assert code == 1
        assert "is being downloaded" in err
        code, out, err = cli(daemon, "prune")
        assert (code, out, err) == (
            0,
            "freed 0 B\n",
            "1 file stayed: in use, or too young to be given up\n",
        )
        pulling.send_signal(signal.SIGINT)
        pulling.communicate(timeout=60)
        assert pulling.returncode == 130
        assert daemon.json("GET", "/api/tags")["models"] == []
        assert name in cli(daemon, "df")[1]

        def is_offered() -> bool:
            code, out, _ = cli(daemon, "prune", "--dry-run")
            return code == 0 and name in out

        wait_until(is_offered, "the transfer to end")
        assert cli(daemon, *([command, name] if command == "rm" else [command]))[0] == 0
        assert disk_use(root) == before
        registry.plan = lambda asked: None
        assert cli(daemon, "pull", name)[0] == 0
        assert daemon.chat(name, "hi")["message"]["content"] == "ok"


@pytest.mark.parametrize("damage", [b"", b'{"schemaVersion": 2, "config'])
def test_pulling_again_repairs_a_broken_manifest_and_others_can_be_pulled_beside_it(
    start_daemon: Start, tmp_path: Path, damage: bytes
) -> None:
    with serving() as registry:
        for name in ("one", "two", "broken"):
            registry.put(f"a/{name}", (MODEL_TYPE, model_file(tmp_path, 100_000, name)))
        daemon = start_daemon(REGISTRIES=f"http://{registry.host}")

        def pull(name: str) -> None:
            body = {"model": f"{registry.host}/a/{name}", "stream": False}
            daemon.json("POST", "/api/pull", body)

        pull("one")
        pull("broken")
        path = tmp_path / "models" / "manifests" / registry.host / "a" / "broken" / "latest"
        path.write_bytes(damage)
        pull("two")
        names = {model["name"] for model in daemon.json("GET", "/api/tags")["models"]}
        assert names == {f"{registry.host}/a/{name}:latest" for name in ("one", "two")}
        pull("broken")
        assert len(daemon.json("GET", "/api/tags")["models"]) == 3
        pruned = daemon.json("POST", "/api/prune", {"min_age_s": 0})
        assert (pruned["gone"], pruned["unreadable"]) == ([], [])
