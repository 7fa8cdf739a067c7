"""Models come and go over HTTP; a broken or hostile file harms nobody."""

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from live import Daemon, chat_body

Start = Callable[..., Daemon]
Fake = Callable[..., Path]

HEADER = struct.Struct("<4sIQQ")


def upload(daemon: Daemon, data: bytes) -> str:
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    status, _ = daemon.request("POST", f"/api/blobs/{digest}", data)
    assert status in (200, 201)
    return digest


def create_from_blob(daemon: Daemon, name: str, digest: str) -> tuple[int, dict[str, str]]:
    body = {"model": name, "files": {"model.gguf": digest}, "stream": False}
    status, data = daemon.request("POST", "/api/create", body)
    return status, json.loads(data)


def test_an_uploaded_blob_becomes_a_model_that_answers(daemon: Daemon, fake_model: Fake) -> None:
    data = fake_model(pieces=["ok"]).read_bytes()
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    assert daemon.request("HEAD", f"/api/blobs/{digest}")[0] == 404
    assert daemon.request("POST", f"/api/blobs/{digest}", data)[0] == 201
    assert daemon.request("POST", f"/api/blobs/{digest}", data)[0] == 200
    assert daemon.request("HEAD", f"/api/blobs/{digest}")[0] == 200
    assert create_from_blob(daemon, "m", digest)[0] == 200
    assert daemon.chat("m", "hi")["message"]["content"] == "ok"


def test_a_blob_with_another_hash_is_refused_and_not_kept(daemon: Daemon) -> None:
    digest = "sha256:" + "0" * 64
    status, data = daemon.request("POST", f"/api/blobs/{digest}", b"something else")
    assert status == 400
    assert "digest mismatch" in json.loads(data)["error"]
    assert daemon.request("HEAD", f"/api/blobs/{digest}")[0] == 404


def test_system_template_parameters_and_messages_shape_the_answer(
    daemon: Daemon, fake_model: Fake
) -> None:
    daemon.create("base", fake_model(echo=True))
    template = "{{ .System }}|{{ range .Messages }}{{ .Role }}={{ .Content }};{{ end }}"
    body = {
        "model": "made",
        "from": "base",
        "system": "Be kind",
        "template": template,
        "parameters": {"stop": ["END"], "num_predict": 500},
        "messages": [{"role": "user", "content": "example"}],
        "stream": False,
    }
    daemon.json("POST", "/api/create", body)
    answer = daemon.chat("made", "hiEND")
    assert answer["message"]["content"] == "Be kind|system=Be kind;user=example\n\nhi"
    shown = daemon.json("POST", "/api/show", {"model": "made"})
    assert shown["system"] == "Be kind"
    assert "stop" in shown["parameters"]
    assert "made" in [m["name"].split(":")[0] for m in daemon.json("GET", "/api/tags")["models"]]
    daemon.json("DELETE", "/api/delete", {"model": "made"})
    assert daemon.request("POST", "/api/chat", chat_body("made", "hi"))[0] == 404
    assert daemon.chat("base", "still here")["message"]["content"] == "still here"


def test_a_parameter_that_run_would_refuse_is_refused_at_create(
    daemon: Daemon, fake_model: Fake
) -> None:
    daemon.create("base", fake_model(echo=True))
    for parameters in ({"temperature": "hot"}, {"top_p": 7}, {"no_such": 1}):
        body = {"model": "x", "from": "base", "parameters": parameters, "stream": False}
        error = daemon.json("POST", "/api/create", body, status=400)["error"]
        assert next(iter(parameters)) in error


@pytest.mark.parametrize("in_place", [True, False])
def test_a_file_on_this_disk_becomes_a_model(
    daemon: Daemon, fake_model: Fake, in_place: bool
) -> None:
    path = fake_model(pieces=["first"])
    body = {"model": "m", "path": str(path), "in_place": in_place, "stream": False}
    daemon.json("POST", "/api/create", body)
    assert daemon.chat("m", "hi")["message"]["content"] == "first"
    daemon.json("POST", "/api/generate", {"model": "m", "keep_alive": 0})
    path.unlink()
    status, data = daemon.request("POST", "/api/chat", chat_body("m", "hi", stream=False))
    if in_place:
        assert status >= 400
        assert str(path.parent) not in json.loads(data)["error"]
    else:
        assert status == 200


def test_a_path_that_is_no_gguf_is_refused(daemon: Daemon, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("secret")
    for path in (str(text), str(tmp_path), "/dev/zero", "relative.gguf", str(tmp_path / "none")):
        body = {"model": "m", "path": path, "stream": False}
        status, data = daemon.request("POST", "/api/create", body)
        assert 400 <= status < 500, (path, data)
        assert b"secret" not in data
    assert daemon.json("GET", "/api/tags")["models"] == []


# ---- files that are cut off or lie


@pytest.mark.parametrize("where", ["header", "keys", "tensors", "data", "one byte"])
def test_a_truncated_file_is_refused_and_never_listed(
    daemon: Daemon, smollm2_path: Path, where: str
) -> None:
    size = smollm2_path.stat().st_size
    cuts = {
        "header": 10,
        "keys": 1000,
        "tensors": 1_790_000,
        "data": 50_000_000,
        "one byte": size - 1,
    }
    with smollm2_path.open("rb") as file:
        digest = upload(daemon, file.read(cuts[where]))
    status, answer = create_from_blob(daemon, "cut", digest)
    assert status == 400
    assert "incomplete" in answer["error"] or "corrupt" in answer["error"]
    assert daemon.json("GET", "/api/tags")["models"] == []


def test_a_file_that_is_damaged_later_fails_at_load_with_the_same_words(
    start_daemon: Start, smollm2_path: Path, fake_model: Fake, tmp_path: Path
) -> None:
    daemon = start_daemon(CONTEXT_LENGTH=256, NUM_PARALLEL=1)
    daemon.json("POST", "/api/create", {"model": "m", "path": str(smollm2_path), "stream": False})
    daemon.create("good", fake_model(pieces=["ok"]))
    blob = max((tmp_path / "models" / "blobs").iterdir(), key=lambda path: path.stat().st_size)
    blob.chmod(0o644)
    with blob.open("r+b") as file:
        file.truncate(50_000_000)
    status, data = daemon.request("POST", "/api/chat", chat_body("m", "hi"))
    assert status in (400, 500)
    assert "incomplete" in json.loads(data)["error"]
    assert daemon.chat("good", "hi")["message"]["content"] == "ok"


def huge_string() -> bytes:
    return struct.pack("<Q", 1) + b"a" + struct.pack("<IQ", 8, 2**31)


def huge_array() -> bytes:
    return struct.pack("<Q", 1) + b"a" + struct.pack("<IIQ", 9, 8, 2**40)


def nested_arrays() -> bytes:
    return struct.pack("<Q", 1) + b"a" + struct.pack("<IIQ", 9, 9, 2**40)


HOSTILE = {
    "keys": HEADER.pack(b"GGUF", 3, 0, 2**40),
    "tensors": HEADER.pack(b"GGUF", 3, 2**40, 0),
    "string": HEADER.pack(b"GGUF", 3, 0, 1) + huge_string(),
    "array": HEADER.pack(b"GGUF", 3, 0, 1) + huge_array(),
    "nested": HEADER.pack(b"GGUF", 3, 0, 1) + nested_arrays(),
}


def test_tiny_files_that_claim_huge_counts_are_refused_without_eating_memory(
    daemon: Daemon, fake_model: Fake
) -> None:
    daemon.create("good", fake_model(pieces=["ok"]))
    process = psutil.Process(daemon.process.pid)
    daemon.json("GET", "/api/tags")
    before_bytes = process.memory_info().rss
    for name, data in HOSTILE.items():
        status, answer = create_from_blob(daemon, name, upload(daemon, data))
        assert status == 400, name
        assert "invalid GGUF" in answer["error"]
    # One put directly into the store, behind the daemon's back.
    assert process.memory_info().rss - before_bytes < 50_000_000
    assert [m["name"] for m in daemon.json("GET", "/api/tags")["models"]] == ["good:latest"]
    assert daemon.chat("good", "hi")["message"]["content"] == "ok"


def test_a_hostile_blob_in_the_store_hides_nothing_else(
    daemon: Daemon, fake_model: Fake, tmp_path: Path
) -> None:
    daemon.json(
        "POST",
        "/api/create",
        {"model": "m", "path": str(fake_model(pieces=["x"])), "stream": False},
    )
    daemon.create("good", fake_model(pieces=["ok"]))
    shown = daemon.json("POST", "/api/show", {"model": "m"})
    assert shown["model_info"]["general.architecture"] == "localrun-fake"
    blobs = [b for b in (tmp_path / "models" / "blobs").iterdir() if not b.is_symlink()]
    for blob in blobs:
        if blob.read_bytes()[:4] == b"GGUF":
            blob.chmod(0o644)
            blob.write_bytes(HOSTILE["array"])
    names = {m["name"] for m in daemon.json("GET", "/api/tags")["models"]}
    assert "good:latest" in names
    status, data = daemon.request("POST", "/api/chat", chat_body("m", "hi"))
    assert status in (400, 500)
    assert "error" in json.loads(data)
    assert daemon.chat("good", "hi")["message"]["content"] == "ok"


def test_a_large_vocabulary_is_listed_and_shown(daemon: Daemon, gemma3_path: Path) -> None:
    daemon.create("gemma3:270m", gemma3_path)
    (model,) = daemon.json("GET", "/api/tags")["models"]
    assert model["details"]["family"] == "gemma3"
    assert model["details"]["quantization_level"] == "Q4_K_M"
    shown = daemon.json("POST", "/api/show", {"model": "gemma3:270m"})
    assert shown["model_info"]["gemma3.context_length"] == 32768
    assert shown["capabilities"] == ["completion"]
