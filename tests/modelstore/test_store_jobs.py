"""Jobs as the store sees them: a scripted program stands in for the one that converts."""

import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from modelstore.create import CreateRequest, Progress, create
from modelstore.errors import (
    DiskFull,
    InvalidCreate,
    JobFailed,
    ManifestNotFound,
    ModelNotFound,
    UnsupportedFormat,
)
from modelstore.jobs import Command, run_job
from modelstore.names import ModelName
from modelstore.store import Store
from tests.modelstore.gguf_writer import tiny_metadata, tiny_tensors, write_gguf
from tests.modelstore.model_maker import checked, make

Script = Callable[[str], Command]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Makes a command of a few lines of Python; `say(**fields)` writes a line of the protocol."""

    def write(source: str) -> Command:
        path = tmp_path / "job.py"
        path.write_text(
            "import json, os, shutil, signal, sys, time\n"
            "def say(**fields): print(json.dumps(fields), flush=True)\n" + textwrap.dedent(source)
        )
        return (sys.executable, str(path))

    return write


@pytest.fixture
def f16_path(tmp_path: Path) -> Path:
    """A file that can be quantized."""
    path = tmp_path / "f16.gguf"
    write_gguf(path, tiny_metadata(), tiny_tensors()[:2])
    return path


COPY = "shutil.copy(sys.argv[2], sys.argv[3])\n"


def names_in(store: Store) -> set[str]:
    return set(os.listdir(store.blobs.folder)) if store.blobs.folder.is_dir() else set()


def run(command: Command, **more: float) -> Iterator[Progress]:
    return run_job(command, "do it", ["a", "b"], **more)


def test_lines_become_progress_and_noise_is_passed_over(script: Script) -> None:
    command = script(
        """
        say(status="one", completed=1, total=2)
        print("not JSON")
        print("[1]")
        say(status="two", completed=2, total=2, more="unknown")
        """
    )
    assert list(run_job(command, "do it", [], digest="d")) == [
        Progress("one", "d", 2, 1),
        Progress("two", "d", 2, 2),
    ]


def test_a_refusal_is_in_the_jobs_own_words(script: Script) -> None:
    command = script('say(refused="the file is blue")\nsys.exit(3)')
    with pytest.raises(UnsupportedFormat, match=r"^the file is blue$"):
        list(run(command))


@pytest.mark.parametrize(
    ("source", "how"),
    [
        ("sys.exit(70)", "exit code 70"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "its process was ended by signal 9"),
        ("raise ValueError('it is broken')", "ValueError: it is broken"),
        ("sys.stderr.write('x' * 100_000 + '\\nlast line\\n'); sys.exit(1)", "last line"),
    ],
)
def test_a_job_that_fails_says_how(script: Script, source: str, how: str) -> None:
    with pytest.raises(JobFailed) as caught:
        list(run(script(source)))
    assert str(caught.value).startswith("could not do it: ")
    assert how in str(caught.value)
    assert len(str(caught.value)) < 20_000


def test_a_program_that_is_not_there_is_an_error() -> None:
    with pytest.raises(JobFailed, match="no process could be started"):
        list(run(("/nowhere/program",)))


def test_a_job_that_takes_too_long_is_ended(script: Script) -> None:
    command = script("say(status=str(os.getpid()))\ntime.sleep(600)")
    steps = run(command, limit_s=0.1)
    pid = int(next(iter(steps)).status)
    with pytest.raises(JobFailed, match=r"no result within 0\.1 s"):
        list(steps)
    assert not is_alive(pid)


def test_closing_ends_the_process(script: Script) -> None:
    command = script("say(status=str(os.getpid()))\ntime.sleep(600)")
    steps = run_job(command, "do it", [])
    pid = int(next(steps).status)
    assert is_alive(pid)
    steps.close()
    assert not is_alive(pid)


def test_a_silent_job_repeats_itself_so_that_a_client_that_left_is_seen(script: Script) -> None:
    command = script("say(status='working')\nsys.stdin.read()")
    steps = run_job(command, "do it", [])
    assert [next(steps), next(steps)] == [Progress("working")] * 2
    steps.close()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# ---- what becomes of its file


def test_what_the_job_wrote_becomes_the_weights(
    store: Store, f16_path: Path, script: Script
) -> None:
    make(store, path=f16_path, quantize="Q8_0", job=script(COPY))
    record = store.resolve("m")
    assert record.model_path is not None
    assert record.model_path.read_bytes() == f16_path.read_bytes()
    assert all(name.startswith("sha256-") for name in names_in(store))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (COPY + "os.truncate(sys.argv[3], os.path.getsize(sys.argv[3]) - 1)", "file is incomplete"),
        (COPY + "sys.exit(1)", "exit code 1"),
        ("pass", "it left no file"),
        ("open(sys.argv[3], 'wb').write(b'something else')", "does not start with the GGUF magic"),
    ],
)
def test_what_is_not_right_never_becomes_visible(
    store: Store, f16_path: Path, script: Script, source: str, words: str
) -> None:
    with pytest.raises(JobFailed, match=words):
        make(store, path=f16_path, quantize="Q8_0", job=script(source))
    assert store.list() == []
    assert names_in(store) == set()


def test_room_is_checked_before_the_job_begins(
    store: Store, f16_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimpleNamespace(total=1 << 40, free=100)
    monkeypatch.setattr("modelstore.files.shutil.disk_usage", lambda folder: disk)
    with pytest.raises(DiskFull) as caught:
        make(store, path=f16_path, quantize="F16", job=script("sys.exit(70)"))
    assert caught.value.free_bytes == 100
    assert names_in(store) == set()


def test_without_a_job_nothing_is_quantized_or_converted(
    store: Store, f16_path: Path, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedFormat, match="cannot quantize"):
        make(store, path=f16_path, quantize="Q8_0")
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"x")
    with pytest.raises(UnsupportedFormat, match="cannot convert"):
        make(store, path=folder)


def test_a_conversion_sees_a_folder_with_the_names_of_the_files(
    store: Store, f16_path: Path, script: Script
) -> None:
    digest, _ = store.blobs.ingest([b"content"], None)
    names = ["model.safetensors", "config.json", "1_Pooling/config.json"]
    command = script(
        f"""
        assert sys.argv[1] == "convert"
        for name in {names!r}:
            assert open(os.path.join(sys.argv[2], name), "rb").read() == b"content"
        shutil.copy({str(f16_path)!r}, sys.argv[3])
        """
    )
    lines = make(store, files=dict.fromkeys(names, digest), job=command)
    assert [line.status for line in lines][:2] == ["converting model", "verifying conversion"]
    assert store.resolve("m").config.model_family == "llama"


def test_names_that_cannot_stand_in_one_folder_are_refused(store: Store, script: Script) -> None:
    digest, _ = store.blobs.ingest([b"content"], None)
    names = ["a", "a/b.safetensors"]
    with pytest.raises(Exception, match="cannot be a file's name"):
        make(store, files=dict.fromkeys(names, digest), job=script("pass"))
    with pytest.raises(InvalidCreate, match="used in place"):
        make(store, files={"a.safetensors": digest}, in_place=True, job=script("pass"))


# ---- models that have to be fetched


def test_a_model_that_is_missing_is_fetched(store: Store, f16_path: Path) -> None:
    fetched = []

    def fetch(name: ModelName) -> Iterator[Progress]:
        fetched.append(name.display())
        yield Progress("pulling manifest")
        make(store, name.display(), path=f16_path, system="from afar")

    request = CreateRequest("child", from_="far:v1", system="near")
    lines = list(create(store, request, check_parameters=checked, fetch=fetch))
    assert fetched == ["far:v1"]
    assert lines[0] == Progress("pulling manifest")
    assert store.resolve("child").parent_model == "far:v1"
    list(create(store, request, check_parameters=checked, fetch=fetch))
    assert fetched == ["far:v1"]


def test_a_model_that_cannot_be_fetched_is_the_fetchers_error(store: Store) -> None:
    def fetch(_name: ModelName) -> Iterator[Progress]:
        yield Progress("pulling manifest")

    request = CreateRequest("child", from_="far")
    with pytest.raises(ModelNotFound, match="far:latest"):
        list(create(store, request, check_parameters=checked, fetch=fetch))
    assert store.list() == []


def test_a_model_that_cannot_be_pulled_is_called_missing_with_the_reason(store: Store) -> None:
    def fetch(name: ModelName) -> Iterator[Progress]:
        raise ManifestNotFound(name.full())
        yield

    request = CreateRequest("child", from_="far")
    with pytest.raises(ModelNotFound) as caught:
        list(create(store, request, check_parameters=checked, fetch=fetch))
    assert str(caught.value).startswith(
        "model 'far:latest' not found, and it cannot be pulled: pull model manifest: file does not"
    )
