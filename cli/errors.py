"""What a command can fail with, and the exit code of each failure.

Owns the table that scripts rely on:

    0 ok · 1 failed · 2 wrong usage, input or setting · 3 no daemon · 4 model not found
    5 a localrun daemon already runs · 6 another program holds the port
    7 `doctor` found something broken
    130 interrupted (Ctrl-C) · 141 whoever read our output went away

`cli.main` is the one place that turns an exception into a message and a code.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

FAILED = 1
USAGE = 2
UNREACHABLE = 3
NOT_FOUND = 4
ALREADY_RUNNING = 5
PORT_TAKEN = 6
UNWELL = 7
INTERRUPTED = 130
BROKEN_PIPE = 141


class CliError(Exception):
    """Root of the command line's own failures."""


class Usage(CliError):
    """The command line contradicts itself or names something that is not there."""


class Failed(CliError):
    """The command could not do its work; the text says why."""


class ConnectionLost(Failed):
    """The server hung up before the first byte of its answer."""


class NotUnderstood(Failed):
    """The server answered, but not in the way of the API."""


class OutputLost(CliError):
    """Standard output does not take what a command has to say."""

    def __init__(self, problem: OSError) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"cannot write to standard output: {self.problem.strerror or self.problem}"


@dataclass(eq=False)
class DaemonUnreachable(CliError):
    """Nothing usable answers at `url`; `reason` is empty when the connection was refused."""

    url: str
    reason: str = ""

    def __str__(self) -> str:
        if self.reason:
            return f"no localrun daemon at {self.url}: {self.reason}"
        return f"no localrun daemon at {self.url}; start one with `localrun serve`"


# What a stream that has begun calls the refusals that are a 400 before it has.
_INPUT_CODES = frozenset(
    [
        "unsupported",
        "context_length_exceeded",
        "window_too_large",
        "template_failed",
        "format_failed",
        "invalid_name",
        "invalid_digest",
        "invalid_gguf",
        "modelfile_syntax",
        "invalid_template",
        "unsupported_format",
    ]
)


@dataclass(eq=False)
class ApiError(CliError):
    """The daemon refused; `message` is its own wording.

    `status` is 0 in the middle of a stream, where `code` may still say what kind of refusal it is.
    """

    status: int
    message: str
    code: str = ""

    @property
    def is_about_missing_model(self) -> bool:
        """True when no such model exists, here or at its registry."""
        return self.status == 404 or self.code == "model_not_found"

    @property
    def is_about_input(self) -> bool:
        """True when the same command line or input would be refused each time."""
        return self.status in (400, 413) or self.code in _INPUT_CODES

    def __str__(self) -> str:
        return self.message or f"the daemon answered with HTTP status {self.status}"


@dataclass(eq=False)
class AlreadyRunning(CliError):
    """`serve` found a daemon of ours on its address; `pid` is None when it is not known."""

    version: str
    url: str
    pid: int | None

    def __str__(self) -> str:
        process = f" (pid {self.pid})" if self.pid is not None else ""
        return f"localrun {self.version} is already running on {self.url}{process}"


@dataclass(eq=False)
class PortTaken(CliError):
    """`serve` found something else on its address; `owner` says what, as far as it is known."""

    url: str
    owner: str

    def __str__(self) -> str:
        return (
            f"{self.url} is taken by {self.owner}; stop it, or choose another address with "
            "LOCALRUN_HOST=host:port"
        )


_MISSING = (
    "`localrun list` shows the models that are here; `localrun pull NAME` fetches one, "
    "`localrun create NAME --from-file FILE.gguf` adds a file"
)


@contextmanager
def explaining_missing(typed: str) -> Iterator[None]:
    """Adds to the refusal of an unknown model what to do, and names it as it was `typed`."""
    try:
        yield
    except ApiError as error:
        if error.status != 404:
            raise
        from modelstore.names import ModelName

        # The daemon may complete a name that was given without its tag.
        said = str(error).replace(f"'{ModelName.parse(typed).display()}'", f"'{typed}'")
        raise ApiError(404, f"{said}\n{_MISSING}") from error


@cache
def exit_codes() -> Mapping[type[BaseException], int]:
    """The table; a class without a row takes the code of its nearest ancestor that has one."""
    # Imported here: only a failure needs the trees of the others.
    from localrun.errors import BadRequest, LocalrunError
    from localrun.settings import BadSetting
    from modelstore import errors as store

    return {
        KeyboardInterrupt: INTERRUPTED,
        BrokenPipeError: BROKEN_PIPE,
        BadSetting: USAGE,
        CliError: FAILED,
        Usage: USAGE,
        DaemonUnreachable: UNREACHABLE,
        AlreadyRunning: ALREADY_RUNNING,
        PortTaken: PORT_TAKEN,
        LocalrunError: FAILED,
        BadRequest: USAGE,
        store.StoreError: FAILED,
        store.InvalidName: USAGE,
        store.ModelfileSyntax: USAGE,
        # Here these are about files that a Modelfile or the command line names.
        store.InvalidCreate: USAGE,
        store.InvalidGGUF: USAGE,
        store.SourceNotAllowed: USAGE,
    }


def exit_code(error: BaseException) -> int | None:
    """The code for `error`, or None for a mistake in the program, which deserves its traceback."""
    if isinstance(error, ApiError) and error.is_about_missing_model:
        return NOT_FOUND
    if isinstance(error, ApiError) and error.is_about_input:
        return USAGE
    table = exit_codes()
    return next((table[kind] for kind in type(error).__mro__ if kind in table), None)
