"""The border between parsing and doing: a parsed command line is a job, run with a context."""

from collections.abc import Callable

from cli.context import Context

# Returns the exit code; failures are exceptions that `cli.errors` has a row for.
Job = Callable[[Context], int]
