"""df, prune and verify at the command line, against a scripted daemon."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.cli_stub import Reply, Shell, Stub


@pytest.fixture
def stub() -> Iterator[Stub]:
    made = Stub()
    yield made
    made.close()


@pytest.fixture
def shell(stub: Stub) -> Shell:
    return Shell({"LOCALRUN_HOST": f"127.0.0.1:{stub.port}", "LOCALRUN_NO_AUTOSTART": "1"})


PIECE = {"kind": "partial", "name": "sha256-" + "ab" * 32 + "-partial", "size": 2000}
USE: dict[str, Any] = {
    "models": [
        {"name": "a:1", "size": 3000, "own": 1000, "shared": 2000},
        {"name": "b:1", "size": 5000, "in_place": 5000, "missing": 2},
    ],
    "unreadable": ["c:1"],
    "blobs": {"count": 2, "size": 3000},
    "unreferenced": {"count": 1, "size": 1000},
    "partials": [{**PIECE, "model": "big:1", "total": 8000}, PIECE],
    "in_place": {"count": 1, "size": 5000},
    "disk_free": 7000000,
}


def test_df_shows_models_and_the_whole(stub: Stub, shell: Shell) -> None:
    stub.on("GET", "/api/df", Reply(body=USE))
    result = shell("df")
    assert result.code == 0
    assert "`c:1` is unreadable" in result.err
    assert result.out == (
        "NAME    SIZE    OWN     SHARED    IN PLACE\n"
        "a:1     3 KB    1 KB    2 KB      -\n"
        "b:1     5 KB    0 B     0 B       5 KB        2 blobs missing\n"
        "\n"
        "blobs                      3 KB in 2 files\n"
        "  of these unreferenced    1 KB in 1 file\n"
        "partial downloads          4 KB in 2 files\n"
        "  big:1                    2 KB of 8 KB\n"
        "  abababababab             2 KB\n"
        "in place, not counted      5 KB in 1 file\n"
        "free on the disk           7 MB\n"
    )


def test_one_missing_blob_is_one(stub: Stub, shell: Shell) -> None:
    models = [{"name": "a:1", "size": 1000, "missing": 1}]
    stub.on("GET", "/api/df", Reply(body={**USE, "models": models}))
    assert "1 blob missing\n" in shell("df").out


def test_df_of_an_empty_store_is_short(stub: Stub, shell: Shell) -> None:
    stub.on("GET", "/api/df", Reply(body={"disk_free": 1000}))
    assert shell("df").out == (
        "NAME    SIZE    OWN    SHARED    IN PLACE\n\nblobs\nfree on the disk    1 KB\n"
    )


@pytest.mark.parametrize("flags", [(), ("--dry-run",), ("--partials",), ("--foreign",)])
def test_prune_sends_its_flags_and_shows_what_went(
    stub: Stub, shell: Shell, flags: tuple[str, ...]
) -> None:
    stayed = {"spared": 3, "young": 2, "min_age_s": 300}
    gone = [{**PIECE, "model": "big:1", "total": 8000}, {**PIECE, "kind": "new kind"}]
    stub.on("POST", "/api/prune", Reply(body={"gone": gone, "freed": 4000, **stayed}))
    result = shell("prune", *flags)
    assert result.code == 0
    verb = "would free" if "--dry-run" in flags else "freed"
    assert result.out == (
        "WHAT                ID              SIZE            MODEL\n"
        "partial download    abababababab    2 KB of 8 KB    big:1\n"
        "new kind            abababababab    2 KB\n"
        f"\n{verb} 4 KB\n"
    )
    assert result.err == (
        "2 files stayed: younger than 5 min, so a model may yet be made of it; prune again later\n"
        "1 file stayed: in use, or too young to be given up\n"
    )
    assert stub.asked("/api/prune")[0].json == {
        name: f"--{name.replace('_', '-')}" in flags for name in ("dry_run", "partials", "foreign")
    }


def test_prune_that_may_not_says_why_and_fails(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/prune", Reply(body={"refused": True}))
    result = shell("prune")
    assert (result.code, result.out) == (1, "")
    assert "`--foreign`" in result.err
    stub.on("POST", "/api/prune", Reply(body={"unreadable": ["a:1", "b:1"]}))
    result = shell("prune")
    assert (result.code, result.out) == (1, "")
    assert "`a:1`, `b:1`" in result.err


def verdicts(*models: dict[str, Any]) -> Reply:
    steps = [{"status": "verifying", "total": 10, "completed": done} for done in (0, 5, 10)]
    return Reply(lines=[*steps, {"status": "success", "models": list(models)}])


def test_verify_prints_a_line_for_each_model_and_what_is_wrong(stub: Stub, shell: Shell) -> None:
    bad = {"model": "b:1", "ok": False, "problems": [{"text": "is broken"}, {"text": "is gone"}]}
    well: list[dict[str, Any]] = [{"model": "a:1"}, {"model": "c:1", "repaired": True}]
    stub.on("POST", "/api/verify", verdicts(*well))
    result = shell("verify", "a", "c", "--repair")
    assert (result.code, result.out) == (0, "a:1: ok\nc:1: repaired\n")
    assert result.err == "verifying\n"
    assert stub.asked("/api/verify")[0].json == {
        "models": ["a", "c"],
        "repair": True,
        "stream": True,
    }
    stub.on("POST", "/api/verify", verdicts(well[0], bad))
    result = shell("verify")
    assert (result.code, result.out) == (1, "a:1: ok\nb:1: damaged\n  is broken\n  is gone\n")
    assert "--repair" not in result.err
    bad["problems"] = [{"text": "is gone", "kind": "missing"}]
    stub.on("POST", "/api/verify", verdicts({**well[0], "notes": ["was touched"]}, bad))
    result = shell("verify")
    assert result.out == "a:1: ok\n  was touched\nb:1: damaged\n  is gone\n"
    assert "`localrun verify --repair`" in result.err
    assert " 50%" in shell("verify", is_terminal=True).err


def test_verify_of_a_missing_model_and_of_a_broken_stream(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/verify", Reply(404, {"error": "model 'm' not found"}))
    result = shell("verify", "m")
    assert result.code == 4
    assert "`localrun list`" in result.err
    stub.on("POST", "/api/verify", Reply(lines=[{"status": "verifying"}]))
    result = shell("verify")
    assert (result.code, result.out) == (1, "")
    assert "before everything was verified" in result.err
    stub.on("POST", "/api/verify", Reply(lines=[{"error": "the disk is gone"}]))
    assert "Error: the disk is gone" in shell("verify").err


@pytest.mark.parametrize(
    "argv", [("verify", "a/b/c/d"), ("push", "x:"), ("prune", "m"), ("df", "m"), ("push",)]
)
def test_what_is_wrong_in_the_command_line_reaches_no_daemon(
    stub: Stub, shell: Shell, argv: tuple[str, ...]
) -> None:
    assert shell(*argv).code == 2
    assert stub.requests == []
