"""One-shot jobs of the runner's program: `python -m localrun.runner JOB ARGUMENTS`.

Owns how a job starts, reports and ends. A job reads and writes files, and says on standard output
what it is at, one JSON object a line (see `Report`). It has the libraries of a runner, none of its
threads, and a low priority, so that answers come first. It ends when its standard input does: then
whoever wanted it is gone. Exit codes: 0 done, 3 refused in words, anything else a bug or a crash.
"""

import os
import sys
import threading
from collections.abc import Callable, Sequence

import msgspec

EXIT_REFUSED = 3
EXIT_ABANDONED = 4

_NICENESS = 10
_encode = msgspec.json.Encoder().encode


class Refused(Exception):
    """The input is none that the job can take; the text goes to whoever asked."""


class Report:
    """What a job says of itself, and where."""

    def __init__(self) -> None:
        self._out = os.dup(sys.stdout.fileno())
        # Libraries print too; what they say belongs in the log.
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def progress(self, status: str, completed: int, total: int) -> None:
        """How far it is."""
        self._say({"status": status, "completed": completed, "total": total})

    def refused(self, problem: str) -> None:
        """Why there will be no result."""
        self._say({"refused": problem})

    def _say(self, line: dict[str, object]) -> None:
        os.write(self._out, _encode(line) + b"\n")


Job = Callable[[Sequence[str], Report], None]


def _quantize(arguments: Sequence[str], report: Report) -> None:
    from localrun.runner.quantize import quantize

    source, target, name = arguments
    quantize(source, target, name, report)


def _convert(arguments: Sequence[str], report: Report) -> None:
    from localrun.runner.convert.convert import convert

    folder, target = arguments
    convert(folder, target, report)


def _check_template(arguments: Sequence[str], report: Report) -> None:
    from localrun.errors import TemplateFailed
    from localrun.runner.prompt.go_template import GoTemplate

    (path,) = arguments
    with open(path, encoding="utf-8") as file:
        source = file.read()
    try:
        GoTemplate(source)
    except TemplateFailed as error:
        raise Refused(error.problem.removeprefix("it does not compile: ")) from None


JOBS: dict[str, Job] = {
    "quantize": _quantize,
    "convert": _convert,
    "check-template": _check_template,
}


def run(name: str, arguments: Sequence[str]) -> int:
    """Runs the job of this name to its end; returns its exit code."""
    threading.Thread(target=_end_with_caller, daemon=True).start()
    report = Report()
    os.nice(_NICENESS)
    try:
        JOBS[name](arguments, report)
    except Refused as error:
        report.refused(str(error))
        return EXIT_REFUSED
    return 0


def _end_with_caller() -> None:
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(EXIT_ABANDONED)
