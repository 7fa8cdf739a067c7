"""`create` against a scripted daemon: Modelfiles, files by path and files by upload."""

import hashlib
import os
from pathlib import Path

import pytest
from cli_stub import Reply, Shell, Stub


def test_create_from_a_modelfile(stub: Stub, shell: Shell, tmp_path: Path) -> None:
    stub.on("POST", "/api/create", Reply(lines=[{"status": "writing manifest"}]))
    modelfile = tmp_path / "Other"
    modelfile.write_text(
        'FROM base:1\nSYSTEM be brief\nPARAMETER stop "a b"\nPARAMETER stop c\n'
        "PARAMETER temperature 0.5\nPARAMETER num_ctx 512\nMESSAGE user hi\nLICENSE free\n"
    )
    result = shell("create", "n", "-f", str(modelfile))
    assert (result.code, result.out, result.err) == (0, "", "writing manifest\n")
    assert stub.asked("/api/create")[0].json == {
        "model": "n",
        "stream": True,
        "from": "base:1",
        "system": "be brief",
        "license": ["free"],
        "parameters": {"stop": ["a b", "c"], "temperature": 0.5, "num_ctx": 512},
        "messages": [{"role": "user", "content": "hi"}],
    }


def test_create_names_a_local_file_by_its_path(stub: Stub, shell: Shell, tmp_path: Path) -> None:
    stub.on("POST", "/api/create", Reply(lines=[{"status": "success"}]))
    weights = tmp_path / "w.gguf"
    weights.write_bytes(b"GGUF")
    (tmp_path / "Modelfile").write_text("FROM ./w.gguf\n")
    assert shell("create", "n", "-f", str(tmp_path / "Modelfile")).code == 0
    assert shell("create", "n", "--from-file", str(weights), "--in-place").code == 0
    bodies = [request.json for request in stub.asked("/api/create")]
    assert [(body["path"], body["in_place"]) for body in bodies] == [
        (str(weights), False),
        (str(weights), True),
    ]


def test_create_uploads_what_a_distant_daemon_lacks(
    stub: Stub, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.commands.create.is_loopback", lambda _: False)
    weights = tmp_path / "w.gguf"
    weights.write_bytes(b"GGUF and more")
    digest = "sha256:" + hashlib.sha256(b"GGUF and more").hexdigest()
    stub.on("HEAD", f"/api/blobs/{digest}", Reply(404), Reply())
    stub.on("POST", f"/api/blobs/{digest}", Reply(201))
    stub.on("POST", "/api/create", Reply(lines=[{"status": "success"}]))
    assert shell("create", "n", "--from-file", str(weights)).code == 0
    assert shell("create", "n", "--from-file", str(weights)).code == 0
    uploads = [r.body for r in stub.asked(f"/api/blobs/{digest}") if r.method == "POST"]
    assert uploads == [b"GGUF and more"]
    assert stub.asked("/api/create")[0].json["files"] == {"w.gguf": digest}
    refused = shell("create", "n", "--from-file", str(weights), "--in-place")
    assert (refused.code, "daemon on this machine" in refused.err) == (2, True)


def test_create_uploads_what_a_near_daemon_may_not_read(
    stub: Stub, shell: Shell, tmp_path: Path
) -> None:
    weights = tmp_path / "w.gguf"
    weights.write_bytes(b"GGUF")
    digest = "sha256:" + hashlib.sha256(b"GGUF").hexdigest()
    refusal = Reply(403, {"error": "cannot read `w.gguf`"})
    stub.on("POST", "/api/create", refusal, Reply(lines=[{"status": "success"}]), refusal)
    stub.on("HEAD", f"/api/blobs/{digest}", Reply(404))
    stub.on("POST", f"/api/blobs/{digest}", Reply(201))
    assert shell("create", "n", "--from-file", str(weights)).code == 0
    first, second = (request.json for request in stub.asked("/api/create"))
    assert (first["path"], "files" in first) == (str(weights), False)
    assert (second["files"], "path" in second) == ({"w.gguf": digest}, False)
    in_place = shell("create", "n", "--from-file", str(weights), "--in-place")
    assert (in_place.code, in_place.err) == (1, "Error: cannot read `w.gguf`\n")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("FROM ./none.gguf\n", "there is no file `./none.gguf`"),
        ("FROM .\n", "has neither GGUF nor safetensors files"),
        ("FROM ./x-00001-of-00002.gguf\n", "there is no file `./x-00001-of-00002.gguf`"),
        ("FROM m\nADAPTER ./lora/lora.safetensors\n", "convert_lora_to_gguf.py"),
        ("FROM m\nDRAFT ./d.gguf\n", "line 2: there is no speculative decoding"),
        ("FROM ./Modelfile\n", "is not a GGUF file"),
        ("FROM m\nPARAMETER heat 3\n", "Modelfile line 2: unknown PARAMETER `heat`"),
        ("FROM m\n\nPARAMETER top_k warm\n", 'line 3: option "top_k" must be of type integer'),
        ("FROM m\nADAPTER ./Modelfile\n", "Modelfile` is not a GGUF file"),
        ("FROM m\nADAPTER m2\n", "ADAPTER takes a GGUF file"),
        ("SYSTEM x\n", "no FROM line"),
    ],
)
def test_create_refuses(shell: Shell, stub: Stub, tmp_path: Path, text: str, part: str) -> None:
    (tmp_path / "Modelfile").write_text(text)
    (tmp_path / "lora").mkdir()
    (tmp_path / "lora" / "lora.safetensors").touch()
    result = shell("create", "n", "-f", str(tmp_path / "Modelfile"))
    assert result.code == 2
    assert part in result.err
    assert not stub.asked("/api/create")


def test_an_adapter_that_is_none_is_refused_before_the_weights_are_sent(
    stub: Stub, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.commands.create.is_loopback", lambda _: False)
    (tmp_path / "w.gguf").write_bytes(b"GGUF and more")
    (tmp_path / "lora.bin").write_bytes(b"something else")
    (tmp_path / "Modelfile").write_text("FROM ./w.gguf\nADAPTER ./lora.bin\n")
    result = shell("create", "n", "-f", str(tmp_path / "Modelfile"))
    assert (result.code, "lora.bin` is not a GGUF file" in result.err) == (2, True)
    assert not any(request.path.startswith("/api/blobs") for request in stub.requests)


def test_create_without_a_modelfile(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    missing = shell("create", "n", "-f", "none")
    assert (missing.code, missing.err) == (2, "Error: there is no Modelfile `none`\n")
    assert "--from-file" in shell("create", "n").err


def place(folder: Path, what: str) -> Path:
    """A path at which `what` is."""
    path = folder / "x.gguf"
    match what:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "loop":
            path.symlink_to(path)
        case "link":
            path.symlink_to(folder / "gone")
        case "device":
            return Path(os.devnull)
    return path


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ("folder", "`{}` is a folder"),
        ("pipe", "`{}` is a named pipe"),
        ("device", "`{}` is a device"),
        ("loop", "`{}` is a loop of symbolic links"),
        ("link", "`{}` is a symbolic link to a file that is not there"),
        ("nothing", "there is no file `{}`"),
    ],
)
def test_create_says_what_is_in_the_place_of_a_file(
    stub: Stub, shell: Shell, tmp_path: Path, what: str, problem: str
) -> None:
    path = place(tmp_path, what)
    said = problem.format(path)
    weights = shell("create", "n", "--from-file", str(path))
    assert (weights.code, weights.err) == (2, f"Error: {said}; --from-file takes a GGUF file\n")
    by_name = shell("create", "n", "-f", "-", stdin=f"FROM {path}\n")
    if what == "folder":  # which can hold a model
        assert (by_name.code, "has neither GGUF nor" in by_name.err) == (2, True)
    else:
        assert (by_name.code, said in by_name.err) == (2, True)
    modelfile = shell("create", "n", "-f", str(path))
    assert modelfile.code == 2
    if what != "nothing":
        assert modelfile.err.startswith(f"Error: {said}; a Modelfile is a file")
    assert not stub.asked("/api/create")


def test_create_of_a_modelfile_that_is_none(stub: Stub, shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "big").write_text("#" * ((1 << 20) + 1))
    for result in (
        shell("create", "n", "-f", str(tmp_path / "big")),
        shell("create", "n", "-f", "-", stdin=(tmp_path / "big").read_text()),
    ):
        assert (result.code, "is larger than 1 MiB; it holds texts" in result.err) == (2, True)
    name = shell("create", "n", "-f", "-", stdin="FROM a//b\n")
    assert (name.code, "invalid model name" in name.err) == (2, True)
    nobody = shell("create", "n", "--from-file", "~nobody-of-this-name/x")
    assert (nobody.code, "there is no file `~nobody" in nobody.err) == (2, True)


def test_create_shows_one_line_on_a_terminal(stub: Stub, shell: Shell, tmp_path: Path) -> None:
    lines = [{"status": "copying", "completed": 1, "total": 4}, {"status": "success"}]
    stub.on("POST", "/api/create", Reply(lines=lines))
    (tmp_path / "Modelfile").write_text("FROM m\n")
    result = shell("create", "n", "-f", str(tmp_path / "Modelfile"), is_terminal=True)
    assert result.err == "\r\x1b[Kcopying 25%\r\x1b[Ksuccess\r\x1b[K"


def test_create_uploads_all_that_belongs_to_a_model(
    stub: Stub, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.commands.create.is_loopback", lambda _: False)
    stub.on("POST", "/api/create", Reply(lines=[{"status": "success"}]))
    folder = tmp_path / "model"
    (folder / "1_Pooling").mkdir(parents=True)
    contents = {
        "model-00001-of-00002.safetensors": b"one",
        "model-00002-of-00002.safetensors": b"two",
        "config.json": b"{}",
        "1_Pooling/config.json": b"[]",
    }
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    (folder / "pytorch_model.bin").write_bytes(b"another format")
    (folder / "README.md").write_text("prose")
    digests = {
        name: "sha256:" + hashlib.sha256(data).hexdigest() for name, data in contents.items()
    }
    for digest in digests.values():
        stub.on("HEAD", f"/api/blobs/{digest}", Reply(200))
    result = shell("create", "n", "-f", "-", "-q", "Q8_0", stdin=f"FROM {folder}\n")
    assert result.code == 0
    body = stub.asked("/api/create")[0].json
    assert (body["files"], body["quantize"]) == (digests, "Q8_0")


def test_create_names_a_folder_of_a_near_daemon(stub: Stub, shell: Shell, tmp_path: Path) -> None:
    stub.on("POST", "/api/create", Reply(lines=[{"status": "success"}]))
    for number in (1, 2):
        (tmp_path / f"x-0000{number}-of-00002.gguf").write_bytes(b"GGUF")
    assert shell("create", "n", "-f", "-", stdin=f"FROM {tmp_path}\n").code == 0
    second = tmp_path / "x-00002-of-00002.gguf"
    assert shell("create", "n", "--from-file", str(second)).code == 0
    (tmp_path / "x-00001-of-00002.gguf").unlink()
    missing = shell("create", "n", "--from-file", str(second))
    assert (missing.code, "`x-00001-of-00002.gguf` is missing" in missing.err) == (2, True)
    bodies = [request.json for request in stub.asked("/api/create")]
    assert [body["path"] for body in bodies] == [str(tmp_path), str(second)]


def test_a_warning_of_the_daemon_stays_on_the_terminal(stub: Stub, shell: Shell) -> None:
    lines = [{"status": "warning: no template"}, {"status": "success"}]
    stub.on("POST", "/api/create", Reply(lines=lines))
    result = shell("create", "n", "-f", "-", stdin="FROM m\n", is_terminal=True)
    assert "warning: no template\n" in result.err
    assert "success\n" not in result.err


def test_create_leaves_out_parameters_without_effect(
    stub: Stub, shell: Shell, tmp_path: Path
) -> None:
    stub.on("POST", "/api/create", Reply(lines=[{"status": "success"}]))
    text = "FROM m\nPARAMETER tfs_z 24\nPARAMETER mirostat 1\nPARAMETER top_k 3\n"
    result = shell("create", "n", "-f", "-", stdin=text)
    assert (result.code, result.err.splitlines()[:2]) == (
        0,
        [
            f"warning: PARAMETER {name} has no effect and is left out"
            for name in ("mirostat", "tfs_z")
        ],
    )
    assert stub.asked("/api/create")[0].json["parameters"] == {"top_k": 3}


def test_create_tells_which_instructions_have_no_effect(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/create", Reply(lines=[{"status": "success"}]))
    text = "FROM m\nRENDERER r\nREQUIRES 0.1.0\n"
    assert shell("create", "n", "-f", "-", stdin=text).err.splitlines()[:2] == [
        f"warning: {word} has no effect; it is only kept" for word in ("RENDERER", "REQUIRES")
    ]
