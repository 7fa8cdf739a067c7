"""`localrun`: from the command line to an exit code.

Owns the list of commands and the one place where an exception becomes a message and a code.
Only the module of the command that was typed is imported, and only what it needs, because `ps` in a
shell prompt or a script has to be instant: help alone imports them all. Parsing yields a job and
touches neither disk nor network; running the job does.
"""

import gc
import os
import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, TextIO

if TYPE_CHECKING:
    from cli.context import Context
    from cli.job import Job

# name → (module of cli.commands, function); the order is that of `localrun --help`.
COMMANDS = {
    "run": ("run", "run"),
    "list": ("list", "list_"),
    "ps": ("ps", "ps"),
    "show": ("show", "show"),
    "stop": ("stop", "stop"),
    "pull": ("pull", "pull"),
    "create": ("create", "create"),
    "cp": ("cp", "cp"),
    "rm": ("rm", "rm"),
    "push": ("push", "push"),
    "df": ("df", "df"),
    "prune": ("prune", "prune"),
    "verify": ("verify", "verify"),
    "bench": ("bench", "bench"),
    "doctor": ("doctor", "doctor"),
    "serve": ("serve", "serve"),
}
ALIASES = {"ls": "list", "start": "serve"}
_HELP = {"help_option_names": ["-h", "--help"]}


def main() -> None:
    """Entry point of the installed program."""
    gc.disable()  # until the command is parsed: what imports make is no garbage
    try:
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # while the first modules were still being imported
        code = 130
    # Python flushes both once more at its end and would then replace the exit code.
    _forget_unwritable(sys.stdout)
    _forget_unwritable(sys.stderr)
    # Or Python's end looks through all that was imported for cycles: 10 ms.
    gc.freeze()
    sys.exit(code)


def run(argv: list[str]) -> int:
    """Parses and runs one command line on the process's own streams; the exit code."""
    from cli.context import Context

    # A caller may have closed them; None would be a special case everywhere else.
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115  open for the whole life
    # Read-only, so that a command which has something to say fails.
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        # Files and pipes get UTF-8 whatever the locale says; a terminal keeps its own encoding.
        if not stream.isatty():
            stream.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    sys.stderr.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    return run_with(argv, Context(os.environ, sys.stdin, sys.stdout, sys.stderr))


def run_with(argv: list[str], context: "Context") -> int:
    """Parses and runs one command line; every failure that has an exit code ends here."""
    from cli.errors import exit_code

    try:
        job = parse(argv)
        gc.enable()
        return job if isinstance(job, int) else job(context)
    except (Exception, KeyboardInterrupt) as error:
        code = exit_code(error)
        if code is None:
            raise
        if isinstance(error, Exception) and not isinstance(error, BrokenPipeError):
            context.note(f"Error: {error}")
        return code
    finally:
        context.close()


def parse(argv: list[str]) -> "Job | int":
    """The job that `argv` asks for, or an exit code when help or a version was all it wanted.

    Raises: Usage, and what a command's own checks raise.
    """
    _check_text(argv)
    words = argv or ["--help"]
    if words[0] in ("--version", "-v"):
        from cli.commands.version import run_version

        return run_version
    if words[0] == "help":
        words = [*words[1:2], "--help"]
    name = ALIASES.get(words[0], words[0])
    if name in COMMANDS:
        return _parse_with([name], f"localrun {words[0]}", words[1:])
    return _parse_with(list(COMMANDS), "localrun", words)


def _parse_with(names: list[str], program: str, words: list[str]) -> "Job | int":
    import typer

    from cli.errors import OutputLost, Usage

    def _program(
        version: Annotated[
            bool, typer.Option("--version", "-v", help="Show the version and exit.")
        ] = False,
    ) -> None:
        """Run GGUF models on this machine."""
        # `parse` has dealt with the option already; here it only has to be in the help.

    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings=_HELP,
    )
    for name in names:
        module_name, function_name = COMMANDS[name]
        module = import_module(f"cli.commands.{module_name}")
        epilog = module.settings_help() if hasattr(module, "settings_help") else None
        if len(names) == 1 and hasattr(module, "completed"):
            words = module.completed(words)
        app.command(name, epilog=epilog, context_settings=_HELP)(getattr(module, function_name))
    if len(names) > 1:
        app.callback()(_program)
    command = typer.main.get_command(app)
    _refuse_empty_values(command)
    try:
        parsed: Job | int = command.main(args=words, prog_name=program, standalone_mode=False)
        return parsed
    except typer.TyperException as error:
        problem = error.format_message()
        raise Usage(f"{problem}\n`{program} --help` shows how it is used") from error
    except OSError as error:  # parsing does nothing but write the help
        raise OutputLost(error) from error


def _refuse_empty_values(command: Any) -> None:
    """Makes an option without a value in it wrong usage: mostly a variable that was not set."""
    for inner in [command, *getattr(command, "commands", {}).values()]:
        for option in inner.params:
            if option.param_type_name == "option":
                option.callback = _filled


def _filled(_context: Any, option: Any, value: Any) -> Any:
    for one in value if isinstance(value, list | tuple) else (value,):
        if isinstance(one, str) and not one.strip():
            from cli.errors import Usage

            name = max(option.opts, key=len)
            raise Usage(f"{name} has an empty value; leave it out, or say: {option.help}")
    return value


def _check_text(argv: list[str]) -> None:
    from cli.context import is_text
    from cli.errors import Usage

    for number, word in enumerate(argv, 1):
        if not is_text(word):
            shown = os.fsencode(word).decode("utf-8", "backslashreplace")
            raise Usage(f"argument {number}, `{shown}`, is not valid UTF-8; give it as UTF-8 text")


def _forget_unwritable(stream: TextIO) -> None:
    try:
        stream.flush()
    except OSError:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
