"""Command lines → options, without running anything."""

import re
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from cli.commands.cp import CpOptions
from cli.commands.create import CreateOptions
from cli.commands.list import ListOptions
from cli.commands.ps import PsOptions
from cli.commands.rm import RmOptions
from cli.commands.run import RunOptions
from cli.commands.serve import ServeOptions
from cli.commands.show import ShowOptions
from cli.commands.stop import StopOptions, run_stop_daemon
from cli.errors import Usage
from cli.main import COMMANDS, parse
from modelstore.errors import InvalidName


def options(*argv: str) -> Any:
    job = parse(list(argv))
    assert isinstance(job, partial)
    return job.args[0]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ps", PsOptions("")),
        ("ps smol", PsOptions("smol")),
        ("ps -v", PsOptions("", verbose=True)),
        ("list", ListOptions("")),
        ("ls Smol", ListOptions("Smol")),
        ("stop m", StopOptions("m")),
        ("rm a b:c", RmOptions(("a", "b:c"))),
        ("cp a b:c", CpOptions("a", "b:c")),
        ("show m", ShowOptions("m")),
        ("show m -v", ShowOptions("m", verbose=True)),
        ("show --system m", ShowOptions("m", "system")),
        ("show m --license", ShowOptions("m", "license")),
        ("create n", CreateOptions("n")),
        ("create n -f Other", CreateOptions("n", "Other")),
        (
            "create n --from-file a.gguf --in-place",
            CreateOptions("n", from_file="a.gguf", in_place=True),
        ),
        ("run m", RunOptions("m")),
        ("run m why is it", RunOptions("m", ("why", "is", "it"))),
        ("run m --verbose hi", RunOptions("m", ("hi",), verbose=True)),
        ("run m -- --verbose", RunOptions("m", ("--verbose",))),
        ("run --keepalive 5m m hi", RunOptions("m", ("hi",), keep_alive=300)),
        ("run m --keepalive -1", RunOptions("m", keep_alive=-1)),
        ("run m --keepalive 1.5s", RunOptions("m", keep_alive=1.5)),
        ("run m --format json x", RunOptions("m", ("x",), format="json")),
        ("run m --format schema.json x", RunOptions("m", ("x",), format=Path("schema.json"))),
        ("run m --nowordwrap x", RunOptions("m", ("x",))),
        ("run m --think why", RunOptions("m", ("why",), think=True)),
        ("run --think m why", RunOptions("m", ("why",), think=True)),
        ("run m --think high", RunOptions("m", ("high",), think=True, think_word="high")),
        ("run --think False m x", RunOptions("False", ("m", "x"), think=True, think_word="False")),
        ("run m -- --think low", RunOptions("m", ("--think", "low"))),
        ("run m --think -- low", RunOptions("m", ("low",), think=True)),
        ("run m --think=high x", RunOptions("m", ("x",), think="high")),
        ("run m --think=False x", RunOptions("m", ("x",), think=False)),
        ("run m -- --think", RunOptions("m", ("--think",))),
        ("run m --hidethinking x", RunOptions("m", ("x",), hides_thinking=True)),
    ],
)
def test_command_line(line: str, expected: object) -> None:
    assert options(*line.split()) == expected


def test_format_takes_a_schema() -> None:
    assert options("run", "m", "--format", '{"type": "object"}').format == {"type": "object"}


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("frob", "No such command"),
        ("ps --frob", "No such option"),
        ("ps a b", "unexpected extra argument"),
        ("rm", "Missing argument"),
        ("cp a", "Missing argument"),
        ("run m --keepalive soon", "--keepalive: `soon` is not a duration"),
        ("run m --format {", "JSON schema"),
        ("run m --format [3]", "JSON schema"),
        ("run m --think=hard x", "--think: `hard` is none of true, false, low, medium, high, max"),
        ("show m --system --license", "only one of --license, --system"),
        ("create n -f a --from-file b", "not both"),
        ("stop", "a MODEL, or --daemon"),
        ("stop m --daemon", "not both"),
        ("run ./x.gguf hi", "`localrun create NAME --from-file ./x.gguf`"),
        ("run ~/x.gguf hi", "`~/x.gguf` names a file, not a model"),
        ("run /a/x.gguf", "names a file"),
        ("show ../x", "names a file"),
        ("bench ./x.gguf", "names a file"),
        (
            "run https://x.y/z.gguf hi",
            "fetch it with `localrun pull https://x.y/z.gguf`, then its name is `z:latest`",
        ),
        ("run m hi \udcff\udcfe", "argument 4, `\\xff\\xfe`, is not valid UTF-8"),
    ],
)
def test_wrong_usage(line: str, part: str) -> None:
    with pytest.raises(Usage, match=re.escape(part)):
        parse(line.split())


@pytest.mark.parametrize(
    "argv",
    [
        ["create", "a//b"],
        ["cp", "a//b", "c"],
        ["cp", "a", "c:"],
        ["run", "a//b"],
        ["show", "Bad Name"],
        ["stop", "../x"],
        ["rm", "a", "../x"],
    ],
)
def test_names_are_checked_before_anything_is_sent(argv: list[str]) -> None:
    with pytest.raises(InvalidName):
        parse(argv)


def options_with_texts() -> list[tuple[str, str]]:
    """Every option of every command that takes a text: command and option."""
    found = []
    for name, (module, function) in COMMANDS.items():
        app = typer.Typer()
        app.command(name)(getattr(import_module(f"cli.commands.{module}"), function))
        found += [
            (name, option)
            for parameter in typer.main.get_command(app).params
            if parameter.param_type_name == "option" and not getattr(parameter, "is_flag", False)
            for option in parameter.opts
            if not getattr(parameter, "hidden", False)
        ]
    return found


@pytest.mark.parametrize("text", ["", " "])
@pytest.mark.parametrize(("command", "option"), options_with_texts())
def test_an_option_without_a_value_is_wrong_usage(command: str, option: str, text: str) -> None:
    words = [f"{option}={text}"] if option == "--think" else [option, text]
    with pytest.raises(Usage, match=r"has an empty value; leave it out|is not"):
        parse([command, "m", *words] if command != "serve" else [command, *words])


def test_the_options_with_texts_are_found() -> None:
    assert {("create", "-f"), ("create", "-q"), ("bench", "--plot"), ("serve", "--log-file")} <= {
        *options_with_texts()
    }


@pytest.mark.parametrize("name", ["serve", "start"])
def test_serve(name: str) -> None:
    assert options(name) == ServeOptions()
    assert options(name, "--log-file", "a.log") == ServeOptions(Path("a.log"))


def test_stop_of_the_daemon() -> None:
    assert parse(["stop", "--daemon"]) is run_stop_daemon


@pytest.mark.parametrize("name", [*COMMANDS, "ls", "start"])
def test_help_of_every_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert parse([name, "--help"]) == 0
    assert parse(["help", name]) == 0
    assert parse([name, "-h"]) == 0
    assert capsys.readouterr().out.count(f"Usage: localrun {name}") >= 2


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_the_commands(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(argv) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in COMMANDS)


def test_help_of_serve_lists_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    parse(["serve", "--help"])
    assert "LOCALRUN_KEEP_ALIVE" in capsys.readouterr().out
