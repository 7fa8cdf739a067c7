"""`bench` when a server fails, and when it is ended before its time."""

import json
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from bench_stub import CHAT, rows, with_model
from cli_stub import Reply, Shell, Stub, completed
from live import wait_until
from test_cli_run import cli_process


@pytest.fixture
def server(stub: Stub) -> Stub:
    return with_model(stub)


# ---- failures


def test_a_missing_model(server: Stub, shell: Shell) -> None:
    server.on("POST", "/api/generate", Reply(404, {"error": "model 'm:latest' not found"}))
    run = shell("bench", "m")
    assert run.code == 4
    assert run.err.startswith("Error: model 'm' not found\n`localrun list`")


def test_no_daemon(shell: Shell, free_port: int) -> None:
    run = shell("bench", "m", LOCALRUN_HOST=f"127.0.0.1:{free_port}")
    assert run.code == 3


BROKEN = [
    (Reply(500, {"error": {"message": "boom"}}), "status 500: boom"),
    (
        Reply(lines=[{"choices": [{"delta": {"content": "a"}}]}], is_sse=True, is_cut=True),
        "the stream broke off after 1 pieces",
    ),
    (Reply(lines=[{"error": {"message": "gone"}}], is_sse=True), "the server said: gone"),
    (Reply(lines=["{"], is_sse=True), "the answer is not understood"),
    (Reply(lines=["[DONE]"], is_sse=True), "the server sent no usage"),
    (Reply(lines=[], is_sse=True), "the connection ended without an answer"),
    (completed(), "the answer has no text"),
]


@pytest.mark.parametrize(("reply", "reason"), BROKEN)
def test_a_request_that_fails_is_counted_and_its_reason_shown(
    server: Stub, shell: Shell, reply: Reply, reason: str
) -> None:
    good = completed("a", "b")
    server.on("POST", CHAT, good, good, good, reply, good)
    run = shell("bench", "m", "--concurrency", "1", "--requests", "3")
    assert run.code == 0
    assert rows(run)[0][2:4] == ["2", "1"]
    assert f"m, 1: 1 failed: {reason}" in run.out


def test_a_level_that_fails_altogether_ends_the_sweep(server: Stub, shell: Shell) -> None:
    good = completed("a", "b")
    server.on("POST", CHAT, *[good] * 6, Reply(503, {"error": "full"}))
    run = shell("bench", "m", "--concurrency", "1,2,4", "--requests", "4")
    assert run.code == 1
    assert [row[1:4] for row in rows(run)] == [["1", "4", "0"], ["2", "0", "4"]]
    assert run.err == "Error: m, 2 users: every request failed: status 503: full\n"


def test_a_server_that_answers_nothing_is_not_measured(server: Stub, shell: Shell) -> None:
    server.on("POST", CHAT, Reply(500, {"error": "boom"}))
    run = shell("bench", "m")
    assert (run.code, run.out) == (1, "")
    assert run.err == "Error: m does not answer: status 500: boom\n"


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("--prompt-tokens 100000", "--prompt-tokens"),
        ("--prompt-tokens 512", "--prompt-tokens"),
        ("--scenario long-prompt --long-tokens 99999", "--long-tokens"),
        ("--scenario shared-prefix --shared-tokens 400", "--shared-tokens"),
        ("--scenario shared-prefix --shared-tokens 600 --lengths chat", "--shared-tokens"),
        ("--prompt-tokens 512 --policy static", "--prompt-tokens"),
    ],
)
def test_a_prompt_beyond_the_window_is_refused_before_the_start(
    server: Stub, shell: Shell, line: str, option: str
) -> None:
    run = shell("bench", "m", *line.split())
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith("Error: a prompt of ")
    assert " does not fit the window of m, 512 tokens with an answer; shorten it " in run.err
    assert option in run.err
    assert server.asked(CHAT) == []


@pytest.mark.parametrize(
    "refusal",
    [
        Reply(400, {"error": {"message": "exceeds the context size"}}),
        Reply(lines=[{"object": "error", "message": "exceeds the context size"}], is_sse=True),
        Reply(lines=[{"type": "error", "error": "exceeds the context size"}], is_sse=True),
    ],
)
def test_a_long_prompt_that_fails_is_a_failure_in_the_servers_words(
    server: Stub, shell: Shell, refusal: Reply
) -> None:
    good = completed("a", "b")
    # Two that calibrate, then one stream, which asks again until the long prompt has its answer.
    server.on("POST", CHAT, good, good, good, refusal)
    url = f"http://127.0.0.1:{server.port}"
    line = ("--scenario", "long-prompt", "--concurrency", "1", "--requests", "1")
    run = shell("bench", "--url", url, *line, "--long-tokens", "99999")
    assert run.code == 1
    assert "the long prompt failed: " in run.err
    assert "exceeds the context size" in run.err


def test_an_answer_without_text_says_how_it_ended(server: Stub, shell: Shell) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 1}
    events = [{"choices": [{"delta": {}, "finish_reason": "length"}]}, {"usage": usage}]
    server.on("POST", CHAT, Reply(lines=events, is_sse=True))
    run = shell("bench", "m")
    assert run.err == (
        "Error: m does not answer: the answer has no text; the server ended it with `length`\n"
    )


def test_a_level_without_any_request_is_a_failure(server: Stub, shell: Shell) -> None:
    run = shell("bench", "m", "--rate", "0.001", "--duration", "10ms")
    assert run.code == 1
    assert run.err == "Error: m, 0.001/s arrivals: no request came within --duration\n"


def test_a_model_for_vectors_is_wrong_usage(server: Stub, shell: Shell) -> None:
    server.on("POST", "/api/generate", Reply(400, {"error": "it makes vectors"}))
    assert shell("bench", "m").code == 2


# ---- results as they come


def second_level(server: Stub) -> threading.Event:
    """Lets the first level of one request pass, and holds the second one until it is set."""
    gate = threading.Event()
    good = completed("a", "b")
    held = completed("a", "b")
    held.gate = gate
    server.on("POST", CHAT, good, good, good, held)
    return gate


def begin(shell: Shell, *words: str) -> "subprocess.Popen[bytes]":
    line = ["bench", "m", "--concurrency", "1,1", "--requests", "1", *words]
    return cli_process(*line, environ=shell.environ)


def read_first_level(child: "subprocess.Popen[bytes]") -> str:
    assert child.stdout is not None
    # Two lines of what is measured, an empty one, the head of the table, a level.
    return b"".join(child.stdout.readline() for _ in range(5)).decode()


def test_each_level_is_written_when_it_is_done(server: Stub, shell: Shell) -> None:
    gate = second_level(server)
    child = begin(shell)
    found = read_first_level(child)
    assert found.splitlines()[-1].split()[:4] == ["m", "1", "1", "0"]
    gate.set()
    out, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (0, b"")
    assert [line.split()[:4] for line in out.splitlines()] == [[b"m", b"1", b"1", b"0"]]


@pytest.mark.parametrize("is_in_background", [False, True])
def test_sigterm_prints_what_there_is_and_unloads(
    server: Stub, shell: Shell, tmp_path: Path, is_in_background: bool
) -> None:
    gate = second_level(server)
    file = tmp_path / "out.json"
    before = signal.getsignal(signal.SIGINT)
    # As a shell without job control does to what it starts with `&`; a child keeps it.
    if is_in_background:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child = begin(shell, "--policy", "static", "--json", str(file))
    finally:
        signal.signal(signal.SIGINT, before)
    read_first_level(child)
    wait_until(lambda: len(server.asked(CHAT)) == 4, "the second level")
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate(timeout=30)
    gate.set()
    assert (child.returncode, err) == (130, b"")
    assert out.splitlines()[0].split()[:2] == [b"static", b"1*"]
    assert out.endswith(b"* not finished\n")
    assert json.loads(file.read_text())["is_interrupted"] is True
    assert server.asked("/api/generate")[-1].json["keep_alive"] == 0


def test_a_reader_that_went_away_ends_it(server: Stub, shell: Shell, tmp_path: Path) -> None:
    gate = second_level(server)
    file = tmp_path / "out.json"
    child = begin(shell, "--json", str(file))
    assert child.stdout is not None
    assert child.stderr is not None
    assert child.stdout.readline().startswith(b"m (localrun")
    child.stdout.close()
    gate.set()
    assert (child.stderr.read(), child.wait(30)) == (b"", 141)
    child.stderr.close()
    assert len(json.loads(file.read_text())["levels"]) == 2
