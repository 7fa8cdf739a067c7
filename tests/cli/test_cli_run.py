"""`run` against a scripted daemon: what it sends and prints, and how it ends."""

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cli_stub import Reply, Shell, Stub, generated, thought

from cli.client import Client
from cli.context import INPUT_LIMIT_BYTES
from cli.errors import ApiError
from cli.replies import GenerateLine
from localrun.http.errors import TABLE
from localrun.http.guard import Limits

NOT_FOUND = Reply(404, {"error": "model 'm' not found"})


def cli_process(*argv: str, environ: dict[str, str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "cli", *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ,
    )


def test_run_prints_the_answer_and_nothing_else(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/generate", Reply(lines=generated("Hé", "llo\x1b[31m\r\n", " 🙂")))
    result = shell("run", "m", "why", "is it", "--keepalive", "5m")
    assert (result.code, result.out, result.err) == (0, "Héllo\x1b[31m\r\n 🙂\n", "")
    (request,) = stub.asked("/api/generate")
    assert request.json == {
        "model": "m",
        "prompt": "why is it",
        "stream": True,
        "keep_alive": 300,
    }


def test_run_keeps_control_characters_from_a_terminal(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/generate", Reply(lines=generated("a\x1b[31mb\x07c\n")))
    result = shell("run", "m", "x", is_terminal=True)
    assert result.out == "a[31mbc\n"


def test_run_reads_a_pipe_before_the_words(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/generate", Reply(lines=generated("ok\n")))
    assert shell("run", "m", "sum", "up", stdin="a text\n").out == "ok\n"
    assert shell("run", "m", stdin="only pipe").out == "ok\n"
    prompts = [request.json["prompt"] for request in stub.asked("/api/generate")]
    assert prompts == ["a text\n sum up", "only pipe"]


def test_run_without_prompt_and_terminal_only_loads(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/generate", Reply(body={"done": True, "done_reason": "load"}))
    assert shell("run", "m", stdin="").out == ""
    assert stub.asked("/api/generate")[0].json == {"model": "m", "prompt": "", "stream": False}


def test_run_verbose_and_format(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/generate", Reply(lines=generated("{}", eval_count=3)))
    result = shell("run", "m", "x", "--verbose", "--format", "json")
    assert (result.out, result.err) == ("{}\n", "eval count:           3 token(s)\n")
    assert stub.asked("/api/generate")[0].json["format"] == "json"


def test_run_sends_how_much_to_think(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/generate", Reply(lines=generated("ok\n")))
    for words in (["--think"], ["--think=false"], ["--think=max"], []):
        assert shell("run", "m", *words, "why").code == 0
    bodies = [request.json for request in stub.asked("/api/generate")]
    assert [body.get("think") for body in bodies] == [True, False, "max", None]
    assert {body["prompt"] for body in bodies} == {"why"}


def test_a_level_without_its_sign_is_noted(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/generate", Reply(lines=generated("ok\n")))
    result = shell("run", "m", "why", "--think", "low")
    assert (result.code, result.out) == (0, "ok\n")
    assert result.err == "note: `low` is no level here; write --think=low for that\n"
    (request,) = stub.asked("/api/generate")
    assert (request.json["prompt"], request.json["think"]) == ("why low", True)
    assert shell("run", "m", "--think", "why", "low").err == ""


@pytest.mark.parametrize("text", ["", " "])
def test_an_empty_format_is_an_error_that_says_what_it_takes(shell: Shell, text: str) -> None:
    result = shell("run", "m", "x", "--format", text)
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        "Error: --format has an empty value; leave it out, or say: The answer is JSON: `json`, or "
        "a JSON schema, as text or the name of a file.\n"
    )


def test_thinking_is_shown_beside_the_answer_not_in_it(stub: Stub, shell: Shell) -> None:
    lines = [*thought("I ", "see"), *generated("42")]
    stub.on("POST", "/api/generate", Reply(lines=lines))
    result = shell("run", "m", "x")
    assert result.out == "42\n"
    assert result.err == "Thinking...\nI see\n...done thinking.\n\n"
    assert shell("run", "m", "x", "--hidethinking").err == ""


def test_thinking_is_grey_on_a_terminal_and_has_no_control_characters(
    stub: Stub, shell: Shell
) -> None:
    stub.on("POST", "/api/generate", Reply(lines=[*thought("a\x1b[2Jb\n"), *generated("42\n")]))
    result = shell("run", "m", "x", is_terminal=True)
    assert "\x1b[90ma[2Jb\n\x1b[0m\x1b[90m...done thinking.\n\n\x1b[0m" in result.err
    assert result.out == "42\n"


def test_thinking_that_is_cut_short_is_closed(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/generate", Reply(lines=[*thought("I "), {"error": "out of luck"}]))
    result = shell("run", "m", "x")
    assert (result.code, result.out) == (1, "")
    assert result.err == "Thinking...\nI \n...done thinking.\n\nError: out of luck\n"


def test_run_takes_a_schema_from_a_file(stub: Stub, shell: Shell, tmp_path: Path) -> None:
    stub.on("POST", "/api/generate", Reply(lines=generated("{}")))
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "properties": {"b": {}, "a": {}}}')
    assert shell("run", "m", "x", "--format", str(schema)).code == 0
    (request,) = stub.asked("/api/generate")
    assert list(request.json["format"]["properties"]) == ["b", "a"]
    for content, part in (("[1]", "is an object"), ("{", "JSON schema in")):
        schema.write_text(content)
        result = shell("run", "m", "x", "--format", str(schema))
        assert (result.code, result.out) == (2, "")
        assert part in result.err
    result = shell("run", "m", "x", "--format", str(tmp_path / "nope.json"))
    assert result.code == 2
    assert "there is no file" in result.err
    assert len(stub.asked("/api/generate")) == 1


VECTORS = Reply(body={"capabilities": ["embedding"]})
TEXT = Reply(body={"capabilities": ["completion"]})


def test_options_without_effect_on_a_model_for_text_are_noted(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/show", TEXT)
    stub.on("POST", "/api/generate", Reply(lines=generated("ok\n")))
    result = shell("run", "m", "x", "--dimensions", "3", "--no-truncate")
    assert (result.code, result.out) == (0, "ok\n")
    assert result.err == (
        "note: --no-truncate, --dimensions have no effect: `m` makes text, not vectors\n"
    )


def test_options_without_effect_on_a_model_for_vectors_are_noted(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/show", VECTORS)
    stub.on("POST", "/api/generate", Reply(400, {"error": "it makes vectors"}))
    stub.on("POST", "/api/embed", Reply(body={"embeddings": [[1.0]]}))
    result = shell("run", "m", "x", "--format", "json", "--think", "--dimensions", "1")
    assert (result.code, result.out) == (0, "[1.0]\n")
    assert result.err == ("note: --format, --think have no effect: `m` makes vectors, not text\n")
    assert shell("run", "m", "x", "--dimensions", "1").err == ""


@pytest.mark.parametrize("stdin", [None, ""])
def test_an_empty_prompt_is_wrong_usage(stub: Stub, shell: Shell, stdin: str | None) -> None:
    result = shell("run", "m", "", stdin=stdin, is_terminal=stdin is None)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("Error: the prompt is empty; without one, ")
    assert stub.requests == []


def test_input_without_end_is_not_read_for_ever(stub: Stub, shell: Shell) -> None:
    with open("/dev/zero", "rb") as zeros:
        result = subprocess.run(
            [sys.executable, "-m", "cli", "run", "m"],
            stdin=zeros,
            env=shell.environ,
            capture_output=True,
            timeout=60,
            check=False,
        )
    assert (result.returncode, result.stdout) == (2, b"")
    assert b"standard input is larger than 64 MiB" in result.stderr
    assert stub.requests == []


def test_the_limit_of_input_is_the_daemons_limit_of_a_body() -> None:
    assert Limits().json_bytes == INPUT_LIMIT_BYTES


def test_a_file_in_the_place_of_a_model_is_not_pulled(
    stub: Stub, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.gguf").touch()
    stub.on("POST", "/api/generate", NOT_FOUND)
    result = shell("run", "x.gguf", "hi")
    assert result.code == 2
    assert "`localrun create NAME --from-file x.gguf`" in result.err
    assert stub.asked("/api/pull") == []


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (Reply(400, {"error": "no such type"}), 2),
        (Reply(413, {"error": "too large"}), 2),
        (Reply(500, {"error": "broken"}), 1),
        (Reply(lines=[{"error": "template error", "code": "invalid_template"}]), 2),
        (Reply(lines=[{"error": "runner died", "code": "runner_lost"}]), 1),
    ],
)
def test_a_refusal_of_the_input_has_the_exit_code_of_wrong_usage(
    stub: Stub, shell: Shell, reply: Reply, code: int
) -> None:
    stub.on("POST", "/api/show", TEXT)
    stub.on("POST", "/api/generate", reply)
    assert shell("run", "m", "x", "--format", '{"type": "wat"}').code == code


def test_the_codes_of_refused_input_are_the_daemons() -> None:
    refused = {row.code for row in TABLE.values() if row.status == 400}
    assert {code for code in refused if code and ApiError(0, "", code).is_about_input} > {
        "invalid_template",
        "invalid_gguf",
    }
    others = {row.code for row in TABLE.values()} - refused
    assert not any(ApiError(0, "", code).is_about_input for code in others if code)


def test_run_warns_when_the_model_has_not_seen_all(stub: Stub, shell: Shell) -> None:
    lines = generated("yes", truncated=True, prompt_dropped_count=77)
    stub.on("POST", "/api/generate", Reply(lines=lines))
    result = shell("run", "m", "x")
    assert (result.code, result.out) == (0, "yes\n")
    assert result.err.startswith("warning: ")
    assert "77 tokens" in result.err


def test_run_of_a_missing_model_says_what_to_do(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/generate", NOT_FOUND)
    result = shell("run", "m", "x")
    assert result.code == 4
    said = "Error: model 'm' not found, and it cannot be pulled: no script for POST /api/pull\n"
    assert result.err.startswith(said + "`localrun list` shows")


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (
            Reply(lines=[*generated("half")[:1], {"error": "runner died"}]),
            "Error: runner died\n",
        ),
        (
            Reply(lines=generated("half")[:1]),
            "Error: the answer ended before it was complete\n",
        ),
        (
            Reply(lines=generated("half")[:1], is_cut=True),
            "Error: the daemon closed the connection before it had answered; its log says why\n",
        ),
    ],
)
def test_run_that_breaks_off(stub: Stub, shell: Shell, reply: Reply, message: str) -> None:
    stub.on("POST", "/api/generate", reply)
    result = shell("run", "m", "x")
    assert (result.code, result.out, result.err) == (1, "half", message)


def test_an_answer_about_errors_is_no_error(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/generate", Reply(lines=generated('{"error": "x"}')))
    assert shell("run", "m", "x").out == '{"error": "x"}\n'


def test_interrupt_closes_the_connection(stub: Stub, shell: Shell) -> None:
    gate = threading.Event()
    stub.on("POST", "/api/generate", Reply(lines=generated("one", "two"), gate=gate))
    child = cli_process("run", "m", "x", environ=shell.environ)
    assert child.stdout is not None
    assert child.stdout.read(3) == b"one"
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    gate.set()
    assert (child.returncode, out, err) == (130, b"", b"")
    assert stub.gone.wait(30)


def test_broken_pipe_is_quiet(stub: Stub, shell: Shell) -> None:
    gate = threading.Event()
    stub.on("POST", "/api/generate", Reply(lines=generated("one", "two"), gate=gate))
    child = cli_process("run", "m", "x", environ=shell.environ)
    assert child.stdout is not None
    assert child.stdout.read(3) == b"one"
    child.stdout.close()
    gate.set()
    assert child.stderr is not None
    assert child.stderr.read() == b""
    assert child.wait(30) == 141
    child.stderr.close()


def test_closed_streams_are_no_special_case(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/generate", Reply(lines=generated("ok")))
    line = f"{sys.executable} -m cli run m x <&- 2>&-"
    result = subprocess.run(
        ["sh", "-c", line], env=shell.environ, capture_output=True, timeout=60, check=False
    )
    assert (result.returncode, result.stdout) == (0, b"ok\n")


@pytest.mark.parametrize(
    ("target", "problem"),
    [(">&-", "Bad file descriptor"), (">/dev/full", "No space left on device")],
)
@pytest.mark.parametrize("argv", ["run m x", "list", "--help", "--version"])
def test_output_that_cannot_be_written(
    stub: Stub, shell: Shell, argv: str, target: str, problem: str
) -> None:
    if "full" in target and not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    stub.on("POST", "/api/generate", Reply(lines=generated("ok")))
    stub.on("GET", "/api/tags", Reply(body={"models": []}))
    result = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m cli {argv} {target}"],
        env=shell.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.stderr == f"Error: cannot write to standard output: {problem}\n"
    assert (result.returncode, result.stdout) == (1, "")


def test_arguments_that_are_no_text(shell: Shell) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "cli", "run", "m", b"\xff\xfe"],
        env=shell.environ,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 2
    assert result.stderr == (
        b"Error: argument 3, `\\xff\\xfe`, is not valid UTF-8; give it as UTF-8 text\n"
    )


def test_a_refusal_before_the_whole_body_was_sent_is_shown(shell: Shell) -> None:
    def refuse() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1000)
            text = b'{"error": "the body is too large"}'
            head = b"HTTP/1.1 413 X\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
            connection.sendall(head % len(text) + text)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=refuse)
        thread.start()
        client = Client(f"http://127.0.0.1:{server.getsockname()[1]}", timeout_s=30)
        with pytest.raises(ApiError, match="the body is too large") as caught:
            client.post("/api/generate", {"prompt": "x" * 50_000_000}, GenerateLine)
        thread.join()
    client.close()
    assert caught.value.status == 413


@pytest.mark.parametrize("argv", [["run", "m"], ["create", "n", "-f", "-"]])
def test_input_that_is_no_text_is_wrong_usage(stub: Stub, shell: Shell, argv: list[str]) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "cli", *argv],
        input=b"FROM \xff\n",
        env=shell.environ,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stdout) == (2, b"")
    assert result.stderr == b"Error: the text on standard input is not UTF-8\n"
