"""A live daemon that pulls: what clients see, and what it survives."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import ollama
import pytest
from faulty_server import Asked, Fault, FaultyRegistry
from live import wait_until
from pull_client import Make, Start, daemon_blobs, is_unlocked, names, pulled, refusal
from registry_servers import DockerRegistry, digest_of

from modelstore.manifest import MODEL_TYPE


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
