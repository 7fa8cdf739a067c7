"""`quantize`: a job of its own makes the file; whatever happens to it, the store stays right."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from create_steps import greedy, make, refusal, row
from gguf_files import split
from live import Daemon, running, wait_until
from moe_model import write_moe_model

from modelstore.gguf import read_header
from modelstore.header import Header, TensorInfo
from modelstore.quantizing import TYPES, expected_bytes


@pytest.fixture(scope="module")
def daemon(
    tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path, smollm2_f16: Path
) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("quantized")
    with running(folder, CONTEXT_LENGTH=256, NUM_PARALLEL=1) as daemon:
        daemon.create("f16", smollm2_f16)
        daemon.create("q4_1", smollm2_path)
        yield daemon


def blobs_of(daemon: Daemon) -> Path:
    return daemon.log_path.parent / "models" / "blobs"


def jobs_of(daemon: Daemon) -> list[psutil.Process]:
    return [one for one in daemon.runners() if "quantize" in one.cmdline()]


def blob_of(daemon: Daemon, name: str) -> Path:
    modelfile = daemon.json("POST", "/api/show", {"model": name})["modelfile"]
    (line,) = [line for line in modelfile.splitlines() if line.startswith("FROM ")]
    return Path(line.removeprefix("FROM "))


def stored_header(daemon: Daemon, name: str) -> Header:
    return read_header(blob_of(daemon, name))


def stored_data(daemon: Daemon, name: str) -> tuple[tuple[TensorInfo, ...], bytes]:
    """The table of tensors and everything behind it."""
    header = stored_header(daemon, name)
    return header.tensors, blob_of(daemon, name).read_bytes()[header.data_offset :]


def test_a_model_is_quantized_with_progress(daemon: Daemon, smollm2_f16: Path) -> None:
    body = {"model": "q8", "path": str(smollm2_f16), "quantize": "q8_0"}
    lines = list(daemon.stream("/api/create", body))
    assert lines[0] == {"status": "parsing GGUF"}
    status = "quantizing F16 model to Q8_0"
    steps = [line for line in lines if line["status"] == status and "completed" in line]
    assert {line["digest"] for line in steps} == {"0" * 19}
    counts = [line["completed"] for line in steps]
    assert counts == sorted(counts)
    assert (counts[-1], steps[-1]["total"]) == (272, 272)
    assert lines[-1] == {"status": "success"}
    listed = row(daemon, "q8")
    assert listed["details"]["quantization_level"] == "Q8_0"
    assert listed["details"]["parameter_size"] == row(daemon, "f16")["details"]["parameter_size"]
    assert {tensor.type_name for tensor in stored_header(daemon, "q8").tensors} == {"F32", "Q8_0"}
    assert greedy(daemon, "q8").split()[:1] == greedy(daemon, "f16").split()[:1]


def test_a_model_of_the_store_is_quantized_and_stays(daemon: Daemon) -> None:
    before = row(daemon, "f16")
    make(daemon, "child", **{"from": "f16"}, quantization="Q4_0", system="Be brief.")
    child = daemon.json("POST", "/api/show", {"model": "child"})
    assert (child["details"]["quantization_level"], child["system"]) == ("Q4_0", "Be brief.")
    assert row(daemon, "f16") == before
    assert row(daemon, "child")["size"] < before["size"] / 2


def test_a_split_model_becomes_one_quantized_file(daemon: Daemon, tmp_path: Path) -> None:
    source = write_moe_model(tmp_path / "tiny.gguf")
    parts = split(source, tmp_path, "whole", n_tensors=30)
    assert len(parts) == 3
    make(daemon, "joined", path=str(parts[1]), quantize="Q8_0")
    make(daemon, "direct", path=str(source), quantize="Q8_0")
    joined, direct = stored_data(daemon, "joined"), stored_data(daemon, "direct")
    assert joined == direct


@pytest.mark.parametrize("name", TYPES)
def test_every_type_that_is_offered_is_made(daemon: Daemon, tmp_path: Path, name: str) -> None:
    source = write_moe_model(tmp_path / "tiny.gguf")
    make(daemon, "typed", path=str(source), quantize=name.lower())
    header = stored_header(daemon, "typed")
    # F32 has no label in Ollama's lists; the source is F16 without saying so, and stays as it is.
    assert header.quantization == ("unknown" if name in ("F32", "F16") else name)
    assert header.file_size_bytes <= expected_bytes(read_header(source), name)
    daemon.json("DELETE", "/api/delete", {"model": "typed"})


def test_what_cannot_be_quantized_is_refused(daemon: Daemon, smollm2_f16: Path) -> None:
    only = "quantization is only supported for F16, BF16 and F32 models"
    assert refusal(daemon, **{"from": "q4_1"}, quantize="Q8_0") == only
    unknown = refusal(daemon, **{"from": "f16"}, quantize="Q9_X")
    assert unknown.startswith("unsupported quantization type Q9_X - supported types are F32, F16")
    in_place = refusal(daemon, path=str(smollm2_f16), in_place=True, quantize="Q8_0")
    assert "in place" in in_place


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_client_that_leaves_ends_the_job(daemon: Daemon) -> None:
    before = names_in(blobs_of(daemon))
    body = {"model": "left", "from": "f16", "quantize": "Q4_K_M"}
    lines = daemon.stream("/api/create", body)
    for line in lines:
        if line.get("completed"):
            break
    (job,) = jobs_of(daemon)
    lines.close()
    wait_until(lambda: not job.is_running(), "the job to end")
    wait_until(lambda: names_in(blobs_of(daemon)) == before, "its file to go")
    assert "left:latest" not in {one["name"] for one in daemon.json("GET", "/api/tags")["models"]}


def test_a_job_that_dies_is_an_error_and_no_more(daemon: Daemon) -> None:
    before = names_in(blobs_of(daemon))
    body = {"model": "dead", "from": "f16", "quantize": "Q5_K_M"}
    lines = daemon.stream("/api/create", body)
    for line in lines:
        if line.get("completed"):
            break
    (job,) = jobs_of(daemon)
    job.kill()
    *_, last = lines
    assert last["error"].startswith("could not quantize the model: its process was ended by signal")
    wait_until(lambda: names_in(blobs_of(daemon)) == before, "its file to go")
    assert greedy(daemon, "f16")


def test_a_job_ends_with_its_daemon(smollm2_f16: Path, tmp_path: Path) -> None:
    daemon = Daemon({"MODELS": tmp_path / "models"}, tmp_path / "daemon.log").wait_ready()
    try:
        body = {"model": "m", "path": str(smollm2_f16), "quantize": "Q4_K_M"}
        lines = daemon.stream("/api/create", body)  # held: a client that leaves ends the job too
        for line in lines:
            if line.get("completed"):
                break
        (job,) = jobs_of(daemon)
    finally:
        daemon.kill()
    wait_until(lambda: not job.is_running(), "the job to end")
