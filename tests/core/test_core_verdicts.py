"""Verdicts of self-tests outlive the daemon, and a bad file costs nothing but a self-test."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from localrun.app import Daemon
from localrun.placement import verdicts as module
from localrun.placement.verdicts import Verdicts
from localrun.settings import Settings, cache_folder
from localrun.spec import LoadSpec, Verdict
from localrun.supervisor.empty import EmptyRunner

SPEC = LoadSpec("/w", "sha256:d", n_ctx=100, n_parallel=4, n_threads=2)
FAST = Verdict("split", flash_attention=False, merges_rows=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "verdicts.json"


def test_a_verdict_is_found_after_a_restart(path: Path) -> None:
    assert Verdicts(path).find(SPEC) is None
    Verdicts(path).keep(SPEC, FAST)
    assert Verdicts(path).find(SPEC) == FAST
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("changes", "is_found"),
    [
        ({}, True),
        ({"n_ctx": 7, "n_parallel": 1, "weights_path": "/elsewhere"}, True),
        ({"weights_digest": "sha256:e"}, False),
        ({"n_threads": 3}, False),
        ({"kv_cache_type": "q8_0"}, False),
    ],
)
def test_it_holds_for_the_same_model_threads_and_kv_type(
    path: Path, changes: dict[str, Any], is_found: bool
) -> None:
    verdicts = Verdicts(path)
    verdicts.keep(SPEC, FAST)
    assert (verdicts.find(replace(SPEC, **changes)) is not None) is is_found


def test_another_build_or_cpu_asks_for_another_test(path: Path) -> None:
    Verdicts(path, build="1", cpu="a").keep(SPEC, FAST)
    assert Verdicts(path, build="1", cpu="a").find(SPEC) == FAST
    assert Verdicts(path, build="2", cpu="a").find(SPEC) is None
    assert Verdicts(path, build="1", cpu="b").find(SPEC) is None


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"k": {"layout": "round"}}', b"\xff\xfe"])
def test_a_broken_file_is_ignored_and_rewritten(path: Path, data: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(data)
    verdicts = Verdicts(path)
    assert verdicts.find(SPEC) is None
    verdicts.keep(SPEC, FAST)
    assert Verdicts(path).find(SPEC) == FAST


def test_two_daemons_do_not_lose_what_the_other_has_found(path: Path) -> None:
    one, two = Verdicts(path), Verdicts(path)
    one.keep(SPEC, FAST)
    two.keep(replace(SPEC, weights_digest="sha256:e"), FAST)
    assert len(json.loads(path.read_bytes())) == 2


def test_a_folder_that_cannot_be_written_is_logged_and_the_verdict_holds_for_now(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.write_text("a file where the folder should be")
    verdicts = Verdicts(path)
    verdicts.keep(SPEC, FAST)
    assert verdicts.find(SPEC) == FAST
    assert "is not written" in caplog.text


def test_the_file_does_not_grow_without_bound(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_N_KEPT", 3)
    verdicts = Verdicts(path)
    specs = [replace(SPEC, weights_digest=f"sha256:{n}") for n in range(5)]
    for spec in specs:
        verdicts.keep(spec, FAST)
    assert [verdicts.find(spec) is not None for spec in specs] == [False, False, True, True, True]


def test_what_a_runner_finds_is_in_the_file_for_the_next_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def spawn(*, on_tested: Any, **_more: Any) -> None:
        await on_tested(SPEC, FAST)  # a future of the thread that writes

    monkeypatch.setattr(EmptyRunner, "spawn", spawn)
    daemon = Daemon(Settings(models=tmp_path / "models"))
    asyncio.run(daemon._spawn())
    assert Verdicts(cache_folder() / "verdicts.json").find(SPEC) == FAST
    assert cache_folder().is_relative_to(tmp_path)
