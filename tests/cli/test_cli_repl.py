"""The prompt on a real pseudo-terminal, against a scripted daemon."""

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
from cli_stub import Reply, Shell, Stream, Stub, chatted, thought

from cli.client import Client
from cli.context import Context
from cli.repl import Repl

LOADED = Reply(body={"done": True, "done_reason": "load"})


@pytest.fixture
def prompt(stub: Stub, shell: Shell, tmp_path: Path) -> Iterator["pexpect.spawn[str]"]:
    """`localrun run m`, waiting at its first prompt."""
    stub.on("POST", "/api/generate", LOADED)
    environ = os.environ | shell.environ | {"XDG_STATE_HOME": str(tmp_path), "TERM": "xterm"}
    child = pexpect.spawn(
        sys.executable, ["-m", "cli", "run", "m"], env=environ, encoding="utf-8", timeout=30
    )
    child.expect_exact("/? for help.")
    child.expect_exact(">>> ")
    yield child
    child.close(force=True)


def ask(prompt: "pexpect.spawn[str]", line: str) -> None:
    prompt.sendline(line)
    prompt.expect_exact(line)  # the terminal's own echo


def test_a_conversation_that_has_become_too_long(prompt: "pexpect.spawn[str]", stub: Stub) -> None:
    lines = chatted("Yes", truncated=True, prompt_dropped_count=77)
    stub.on("POST", "/api/chat", Reply(lines=lines))
    ask(prompt, "one")
    prompt.expect_exact("Yes")
    prompt.expect_exact("about 77 tokens")
    prompt.expect_exact(">>> ")


def test_a_conversation(prompt: "pexpect.spawn[str]", stub: Stub) -> None:
    stub.on("POST", "/api/chat", Reply(lines=chatted("Hel", "lo")), Reply(lines=chatted("Bye")))
    ask(prompt, "/set system be brief")
    prompt.expect_exact("system message set")
    ask(prompt, "one")
    prompt.expect_exact("Hello")
    prompt.expect_exact(">>> ")
    ask(prompt, "two")
    prompt.expect_exact("Bye")
    prompt.expect_exact(">>> ")
    prompt.sendeof()
    prompt.expect(pexpect.EOF)
    prompt.wait()
    assert prompt.exitstatus == 0
    first, second = (request.json for request in stub.asked("/api/chat"))
    assert first["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one"},
    ]
    assert second["messages"][2:] == [
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "two"},
    ]


def test_a_pasted_text_is_one_question(prompt: "pexpect.spawn[str]", stub: Stub) -> None:
    stub.on("POST", "/api/chat", Reply(lines=chatted("ok")))
    prompt.send("\x1b[200~first 漢\nsecond\x1b[201~")
    prompt.expect_exact("second")
    prompt.sendline("")
    prompt.expect_exact("ok")
    (request,) = stub.asked("/api/chat")
    assert request.json["messages"] == [{"role": "user", "content": "first 漢\nsecond"}]


def test_interrupt_stops_the_answer_and_keeps_the_prompt(
    prompt: "pexpect.spawn[str]", stub: Stub
) -> None:
    gate = threading.Event()
    endless = Reply(lines=chatted("start", "never seen"), gate=gate)
    stub.on("POST", "/api/chat", endless, Reply(lines=chatted("again")))
    ask(prompt, "one")
    prompt.expect_exact("start")
    prompt.sendintr()
    prompt.expect_exact(">>> ")
    gate.set()
    assert stub.gone.wait(30)
    ask(prompt, "two")
    prompt.expect_exact("again")
    prompt.expect_exact(">>> ")
    ask(prompt, "/bye")
    prompt.expect(pexpect.EOF)
    # What was said before the interrupt stays part of the conversation.
    assert stub.asked("/api/chat")[1].json["messages"][1]["content"] == "start"


def test_interrupt_at_the_prompt_drops_the_line(prompt: "pexpect.spawn[str]", stub: Stub) -> None:
    prompt.send("half a li")
    prompt.expect_exact("half a li")
    prompt.sendintr()
    prompt.expect_exact("Ctrl-D or /bye leaves.")
    prompt.expect_exact(">>> ")
    assert not stub.asked("/api/chat")


def test_an_error_leaves_the_prompt_open(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/chat", Reply(503, {"error": "busy"}), Reply(lines=chatted("ok")))
    context = Context(shell.environ | {"LOCALRUN_NOHISTORY": "1"}, Stream(), Stream(), Stream())
    lines = iter(["one", "two", "/bye"])
    client = Client(context.settings.url)
    repl = Repl(context, client, "m", {"keep_alive": 5}, read_line=lambda _: next(lines))
    assert repl.loop() == 0
    client.close()
    assert isinstance(context.stderr, Stream)
    assert context.stderr.getvalue() == "Error: busy\n"
    bodies = [request.json for request in stub.asked("/api/chat")]
    assert [body["messages"][0]["content"] for body in bodies] == ["one", "two"]
    assert all(len(body["messages"]) == 1 and body["keep_alive"] == 5 for body in bodies)


@pytest.mark.parametrize("is_hidden", [False, True])
def test_thinking_is_shown_and_remembered(stub: Stub, shell: Shell, is_hidden: bool) -> None:
    lines = [*thought("I ", "see", as_chat=True), *chatted("42")]
    stub.on("POST", "/api/chat", Reply(lines=lines), Reply(lines=chatted("ok")))
    stub.on("POST", "/api/show", Reply(body={"capabilities": ["completion", "thinking"]}))
    context = Context(shell.environ | {"LOCALRUN_NOHISTORY": "1"}, Stream(), Stream(), Stream())
    typed = iter(["/set think", "one", "two", "/bye"])
    client = Client(context.settings.url)
    repl = Repl(context, client, "m", {}, read_line=lambda _: next(typed))
    repl.hides_thinking = is_hidden
    assert repl.loop() == 0
    client.close()
    assert isinstance(context.stdout, Stream)
    assert isinstance(context.stderr, Stream)
    shown = "" if is_hidden else "Thinking...\nI see\n...done thinking.\n\n"
    assert context.stderr.getvalue() == shown
    assert context.stdout.getvalue().endswith("\n42\n\nok\n\n")
    first, second = (request.json for request in stub.asked("/api/chat"))
    assert first["think"] is second["think"] is True
    said = {"role": "assistant", "content": "42", "thinking": "I see"}
    assert second["messages"][1] == said


def talk(shell: Shell, *lines: str) -> tuple[list[str], str]:
    """What the prompt says to these lines, on both streams."""
    context = Context(shell.environ | {"LOCALRUN_NOHISTORY": "1"}, Stream(), Stream(), Stream())
    typed = iter([*lines, "/bye"])
    client = Client(context.settings.url)
    assert Repl(context, client, "m", {}, read_line=lambda _: next(typed)).loop() == 0
    client.close()
    assert isinstance(context.stdout, Stream)
    assert isinstance(context.stderr, Stream)
    return context.stdout.getvalue().splitlines()[1:], context.stderr.getvalue()


def test_a_model_that_cannot_think_is_not_asked_to(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/show", Reply(body={"capabilities": ["completion", "tools"]}))
    stub.on("POST", "/api/chat", Reply(lines=chatted("ok")))
    said, errors = talk(shell, "/set think", "/set think low", "one", "/set nothink", "two")
    refusal = '"m" does not support thinking; nothing is changed'
    assert said == [refusal, refusal, "ok", "", "the model answers at once", "ok", ""]
    assert errors == ""
    first, second = (request.json for request in stub.asked("/api/chat"))
    assert "think" not in first
    assert second["think"] is False


def test_a_schema_is_set_as_text_or_from_a_file(stub: Stub, shell: Shell, tmp_path: Path) -> None:
    stub.on("POST", "/api/chat", Reply(lines=chatted("{}")))
    file = tmp_path / "schema.json"
    file.write_text('{"properties": {"b": {}, "a": {}}}')
    said, errors = talk(
        shell,
        *(f"/set format {file}", "one"),
        *('/set format {"type": "object"}', "two"),
        *("/set format yaml", "/set format [1]", "/set format {", "three"),
    )
    assert said == ["answers are JSON that matches the schema", "{}", ""] * 2 + ["{}", ""]
    problems = errors.splitlines()
    assert len(problems) == 3
    assert problems[0] == (
        "Error: /set format takes `json`, a JSON schema or the name of a file with one: there is "
        "no file `yaml`"
    )
    formats = [request.json["format"] for request in stub.asked("/api/chat")]
    assert list(formats[0]["properties"]) == ["b", "a"]
    assert formats[1:] == [{"type": "object"}] * 2


def test_options_are_shown_as_they_are_written(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/show", Reply(body={"parameters": "top_k    5"}))
    context = Context(shell.environ | {"LOCALRUN_NOHISTORY": "1"}, Stream(), Stream(), Stream())
    typed = ["/set parameter stop a b", "/set parameter use_mmap off", "/show parameters", "/bye"]
    lines = iter(typed)
    client = Client(context.settings.url)
    repl = Repl(context, client, "m", {}, read_line=lambda _: next(lines))
    assert repl.loop() == 0
    client.close()
    assert isinstance(context.stdout, Stream)
    shown = 'top_k    5\nset here:\nstop ["a","b"]\nuse_mmap false\n'
    assert context.stdout.getvalue().endswith(shown)


def test_the_system_message_of_the_session_is_shown(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/show", Reply(body={"system": "of the model"}))
    context = Context(shell.environ | {"LOCALRUN_NOHISTORY": "1"}, Stream(), Stream(), Stream())
    lines = iter(["/show system", "/set system mine", "/show system", "/show", "/bye"])
    client = Client(context.settings.url)
    assert Repl(context, client, "m", {}, read_line=lambda _: next(lines)).loop() == 0
    client.close()
    assert isinstance(context.stdout, Stream)
    assert context.stdout.getvalue() == (
        "Send a message, or /? for help.\n"
        "of the model\nsystem message set\nmine\n  System\n    mine\n"
    )


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept connection", "new connection"])
def test_a_daemon_that_died_is_started_again(
    stub: Stub, shell: Shell, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    stub.on("POST", "/api/chat", Reply(lines=chatted("Hello")))
    environ = shell.environ | {"LOCALRUN_NOHISTORY": "1", "LOCALRUN_NO_AUTOSTART": "0"}
    context = Context(environ, Stream(), Stream(), Stream())
    with socket.create_server(("127.0.0.1", 0)) as dead:
        client = Client(f"http://127.0.0.1:{dead.getsockname()[1]}")
        if is_kept:
            client._connect()
            client._used_at = time.monotonic()
    lines = iter(["one", "/bye"])
    assert Repl(context, client, "m", {}, read_line=lambda _: next(lines)).loop() == 0
    context.close()
    assert isinstance(context.stdout, Stream)
    assert isinstance(context.stderr, Stream)
    assert (context.stdout.getvalue().splitlines()[1], context.stderr.getvalue()) == ("Hello", "")
    (request,) = stub.asked("/api/chat")
    assert request.json["messages"] == [{"role": "user", "content": "one"}]
