"""Split models: all parts are found from any of them, and run as the one model that they are."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from create_steps import greedy, make, refusal, row, upload
from live import Daemon, running


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("splits")
    with running(folder, CONTEXT_LENGTH=256, NUM_PARALLEL=1) as daemon:
        daemon.create("whole", smollm2_path)
        yield daemon


def test_a_split_model_answers_as_the_unsplit_file(
    daemon: Daemon, smollm2_parts: list[Path], smollm2_path: Path
) -> None:
    expected = greedy(daemon, "whole")
    make(daemon, "split", path=str(smollm2_parts[0]), in_place=True)
    assert greedy(daemon, "split") == expected
    shown = {row["name"]: row for row in daemon.ps()}
    split, whole = shown["split:latest"], shown["whole:latest"]
    assert split["size"] == pytest.approx(whole["size"], rel=0.01)
    listed = row(daemon, "split")
    total = sum(part.stat().st_size for part in smollm2_parts)
    assert total <= listed["size"] < total + 4096
    assert listed["details"] == row(daemon, "whole")["details"]
    described = daemon.json("POST", "/api/show", {"model": "split", "verbose": True})
    original = daemon.json("POST", "/api/show", {"model": "whole", "verbose": True})
    assert len(described["tensors"]) == len(original["tensors"]) == 272
    key = "general.parameter_count"
    assert described["model_info"][key] == original["model_info"][key]


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("which", [0, 1, 2, "folder"])
def test_any_part_and_their_folder_make_the_same_model(
    daemon: Daemon, smollm2_parts: list[Path], which: int | str, in_place: bool
) -> None:
    path = smollm2_parts[0].parent if isinstance(which, str) else smollm2_parts[which]
    make(daemon, "first", path=str(smollm2_parts[0]), in_place=True)
    make(daemon, "any", path=str(path), in_place=in_place)
    assert row(daemon, "any")["digest"] == row(daemon, "first")["digest"]


def test_uploaded_parts_are_put_in_order(daemon: Daemon, smollm2_parts: list[Path]) -> None:
    files = {part.name: upload(daemon, part) for part in reversed(smollm2_parts)}
    make(daemon, "uploaded", files=files)
    make(daemon, "local", path=str(smollm2_parts[0]))
    assert row(daemon, "uploaded")["digest"] == row(daemon, "local")["digest"]
    del files["smol-00002-of-00003.gguf"]
    assert "`smol-00002-of-00003.gguf` is missing" in refusal(daemon, files=files)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_part_is_named(
    daemon: Daemon, smollm2_parts: list[Path], tmp_path: Path, missing: int
) -> None:
    for number, part in enumerate(smollm2_parts):
        if number != missing:
            (tmp_path / part.name).symlink_to(part)
    name = smollm2_parts[missing].name
    given = smollm2_parts[(missing + 1) % 3].name
    assert f"`{name}` is missing" in refusal(daemon, path=str(tmp_path / given))
    assert f"`{name}` is missing" in refusal(daemon, path=str(tmp_path))


def test_parts_that_do_not_belong_together_are_refused(
    daemon: Daemon, smollm2_parts: list[Path], tmp_path: Path
) -> None:
    names = [part.name for part in smollm2_parts]
    shutil.copy(smollm2_parts[0], tmp_path / names[0])
    shutil.copy(smollm2_parts[2], tmp_path / names[1])
    shutil.copy(smollm2_parts[2], tmp_path / names[2])
    assert "are the same part" in refusal(daemon, path=str(tmp_path / names[0]))


def test_a_part_that_changes_later_is_reported_and_not_run(
    start_daemon: Callable[..., Daemon], smollm2_parts: list[Path], tmp_path: Path
) -> None:
    daemon = start_daemon(CONTEXT_LENGTH=256, NUM_PARALLEL=1)
    for part in smollm2_parts:
        shutil.copy(part, tmp_path / part.name)
    changed = tmp_path / smollm2_parts[1].name
    make(daemon, "fragile", path=str(changed), in_place=True)
    assert greedy(daemon, "fragile")
    with changed.open("ab") as file:
        file.write(b"more")
    body = {"model": "fragile", "prompt": "x", "stream": False}
    error = daemon.json("POST", "/api/generate", body, status=500)["error"]
    assert f"`{changed.name}`, used in place, has changed" in error
    changed.unlink()
    error = daemon.json("POST", "/api/generate", body, status=500)["error"]
    assert "is no longer there" in error


def test_a_stored_part_that_is_damaged_later_fails_with_the_words_of_create(
    start_daemon: Callable[..., Daemon], smollm2_parts: list[Path], tmp_path: Path
) -> None:
    daemon = start_daemon(CONTEXT_LENGTH=256, NUM_PARALLEL=1)
    make(daemon, "fragile", path=str(smollm2_parts[0]))
    assert greedy(daemon, "fragile")
    size_bytes = smollm2_parts[2].stat().st_size
    blobs = (tmp_path / "models" / "blobs").iterdir()
    blob = next(path for path in blobs if path.stat().st_size == size_bytes)
    os.truncate(blob, size_bytes - 1)
    body = {"model": "fragile", "prompt": "x", "stream": False}
    error = daemon.json("POST", "/api/generate", body, status=400)["error"]
    assert f"file is incomplete: has {size_bytes - 1} bytes, needs {size_bytes}" in error
