"""Files that are broken or mean harm: one sentence says so, and nobody else notices."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from create_steps import make, refusal, upload
from live import Daemon, chat_body, running, wait_until, write_fake_model
from tiny_models import byte_level, write_tiny_llama, write_tokenizer

from localrun.runner.convert.convert import convert
from localrun.runner.jobs import Report
from tests.modelstore.gguf_writer import I32 as INT32
from tests.modelstore.gguf_writer import STRING as TEXT
from tests.modelstore.gguf_writer import U32 as UINT32
from tests.modelstore.gguf_writer import Typed, tiny_metadata, tiny_tensors, write_gguf


class Silent(Report):
    def __init__(self) -> None:
        return

    def progress(self, status: str, completed: int, total: int) -> None:
        return


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("hostile")
    with running(folder, CONTEXT_LENGTH=256, NUM_PARALLEL=1) as daemon:
        daemon.create("good", write_fake_model(folder / "good.gguf", {"echo": True}))
        yield daemon
        assert daemon.process.poll() is None
        assert daemon.chat("good", "still here")["message"]["content"] == "still here"


# ---- no tokenizer, an unknown architecture, a part of a model


def write_without(tmp_path: Path, name: str) -> Path:
    metadata = tiny_metadata()
    if name == "architecture":
        metadata["general.architecture"] = "madeup"
        metadata |= {key.replace("llama.", "madeup."): value for key, value in metadata.items()}
    if name == "tokenizer":
        metadata = {k: v for k, v in metadata.items() if not k.startswith("tokenizer")}
    metadata |= {
        "llama.attention.head_count": 2,
        "llama.feed_forward_length": 32,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }
    path = tmp_path / f"no-{name}.gguf"
    write_gguf(path, metadata, tiny_tensors())
    return path


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("architecture", "unknown model architecture: 'madeup'"),
        ("tokenizer", "key not found in model: tokenizer.ggml.model"),
        ("merges", "cannot find tokenizer merges in model file"),
    ],
)
def test_a_file_that_the_engine_cannot_load_says_why(
    daemon: Daemon, tmp_path: Path, name: str, words: str
) -> None:
    make(daemon, "unloadable", path=str(write_without(tmp_path, name)))
    body = chat_body("unloadable", "hi", stream=False)
    error = daemon.json("POST", "/api/chat", body, status=500)["error"]
    assert words in error
    assert str(tmp_path) not in error
    assert "unloadable:latest" not in {one["name"] for one in daemon.ps()}
    shown = daemon.json("POST", "/api/show", {"model": "unloadable"})
    assert shown["model_info"]["general.architecture"] in ("llama", "madeup")


@pytest.mark.parametrize("kind", ["adapter", "mmproj"])
def test_a_part_of_a_model_is_no_model(daemon: Daemon, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "part.gguf"
    write_gguf(path, tiny_metadata(general__type=kind), tiny_tensors())
    assert "exactly one file must be a model" in refusal(daemon, path=str(path))
    assert "exactly one" in refusal(daemon, files={"part.gguf": upload(daemon, path)})


# ---- the alignment


@pytest.mark.parametrize(
    "alignment",
    [
        Typed(INT32, 32),
        Typed(TEXT, "32"),
        Typed(UINT32, 0),
        Typed(UINT32, 3),
        Typed(UINT32, 2**30),
    ],
    ids=lambda value: repr(value.value),
)
def test_an_impossible_alignment_is_refused(
    daemon: Daemon, tmp_path: Path, alignment: Typed
) -> None:
    path = tmp_path / "aligned.gguf"
    write_gguf(path, tiny_metadata(general__alignment=alignment), tiny_tensors())
    digest = upload(daemon, path)
    for fields in ({"path": str(path)}, {"files": {"aligned.gguf": digest}}):
        error = refusal(daemon, **fields)
        assert error.startswith("invalid GGUF: ")
        assert "`general.alignment`" in error


# ---- put into the store behind the daemon's back


def overwrite_weights(daemon: Daemon, model: str, data: bytes) -> None:
    folder = daemon.log_path.parent / "models"
    (manifest,) = (folder / "manifests").glob(f"*/*/{model}/latest")
    layers = json.loads(manifest.read_bytes())["layers"]
    (digest,) = {one["digest"] for one in layers if one["mediaType"].endswith(".model")}
    blob = folder / "blobs" / digest.replace(":", "-")
    blob.write_bytes(data)


def test_a_blob_that_lies_is_refused_before_a_runner_sees_it(
    daemon: Daemon, tmp_path: Path
) -> None:
    path = tmp_path / "honest.gguf"
    layout = write_gguf(path, tiny_metadata(x=1), tiny_tensors())
    make(daemon, "lies", path=str(path))
    data = path.read_bytes()
    for offset in (8, 16):  # the counts of tensors and of keys
        wrong = data[:offset] + (2**40).to_bytes(8, "little") + data[offset + 8 :]
        overwrite_weights(daemon, "lies", wrong)
        body = chat_body("lies", "hi", stream=False)
        assert "invalid GGUF" in daemon.json("POST", "/api/chat", body, status=400)["error"]
        assert daemon.json("POST", "/api/show", {"model": "lies"})["model_info"] == {}
    overwrite_weights(daemon, "lies", data[: layout.size_bytes - 1])
    body = {"model": "lies", "prompt": "hi", "stream": False}
    error = daemon.json("POST", "/api/generate", body, status=400)["error"]
    assert error == (
        f"invalid GGUF: file is incomplete: has {layout.size_bytes - 1} bytes, "
        f"needs {layout.size_bytes}"
    )
    assert daemon.chat("good", "hi")["message"]["content"] == "hi"


# ---- templates that reach for more than text

_CLASSES = "''.__class__.__mro__[1].__subclasses__()"
_RUN = "__import__('os').system('touch {marker}')"
TEMPLATES = {
    "attributes": "{{{{ " + _CLASSES + " }}}}",
    "globals": "{{{{ raise_exception.__globals__['os'].system('touch {marker}') }}}}",
    "builtins": "{{{{ cycler.__init__.__globals__.os.popen('touch {marker}').read() }}}}",
    "format": "{{{{ '{{0.__class__.__init__}}'.format(messages) }}}}{{{{ " + _RUN + " }}}}",
    "map": "{{{{ [messages]|map(attribute='__class__.__base__')|list }}}}{{{{ none() }}}}",
    "include": "{{% include '{marker}' %}}",
    "import": "{{% import '/etc/passwd' as x %}}{{{{ x }}}}",
    "extends": "{{% extends '/etc/passwd' %}}",
    "loop": "{{% for i in range(10**9) %}}x{{% endfor %}}",
    "string": "{{{{ 'a' * 10**10 }}}}",
    "width": "{{{{ '%10000000000d' % 1 }}}}",
    "doubling": (
        "{{% set ns = namespace(s='a' * 1000000) %}}{{% for i in range(14) %}}"
        "{{% set ns.s = ns.s ~ ns.s %}}{{% endfor %}}{{{{ ns.s }}}}"
    ),
    "join": "{{{{ range(90000)|join('a' * 1000000) }}}}",
    "ljust": "{{{{ 'a'.ljust(10**10) }}}}",
    "mutation": "{{{{ messages.clear() }}}}",
}

# What a runner with a tiny model has, and what a template may take on top.
RUNNER_LIMIT_BYTES = 3 << 30


def write_with_template(folder: Path, template: str) -> Path:
    """A tiny real model, since a script has no template in its file."""
    write_tiny_llama(folder)
    write_tokenizer(folder, byte_level())
    config = {"chat_template": template, "bos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    target = folder / "tiny.gguf"
    convert(str(folder), str(target), Silent())
    return target


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_hostile_template_is_an_error_and_no_more(
    daemon: Daemon, tmp_path: Path, name: str
) -> None:
    marker = tmp_path / "marker"
    template = TEMPLATES[name].format(marker=marker)
    daemon.create("evil", write_with_template(tmp_path, template))
    before_bytes = daemon_bytes(daemon)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("/api/chat", chat_body("evil", "hi", stream=False)),
        ("/v1/chat/completions", chat_body("evil", "hi", stream=False) | {"options": None}),
        ("/api/generate", {"model": "evil", "prompt": "hi", "stream": False}),
    ]
    for path, body in calls:
        status, data = daemon.request("POST", path, body)
        assert 400 <= status <= 500, (path, data[:200])
        assert b"error" in data
        assert len(data) < 10_000
    shown = daemon.json("POST", "/api/show", {"model": "evil"})
    assert shown["template"] == template
    assert daemon.chat("good", "hi")["message"]["content"] == "hi"
    assert not marker.exists()
    assert daemon_bytes(daemon) - before_bytes < 50_000_000
    for runner in daemon.runners():
        assert peak_bytes(runner) < RUNNER_LIMIT_BYTES
    daemon.json("POST", "/api/generate", {"model": "evil", "keep_alive": 0})
    wait_until(lambda: "evil:latest" not in {one["name"] for one in daemon.ps()}, "it to go")


def daemon_bytes(daemon: Daemon) -> int:
    return int(psutil.Process(daemon.process.pid).memory_info().rss)


def peak_bytes(process: psutil.Process) -> int:
    """The most that a process has ever had in memory."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return 0
    line = next((line for line in status.splitlines() if line.startswith("VmHWM")), "VmHWM: 0 kB")
    return int(line.split()[1]) << 10
