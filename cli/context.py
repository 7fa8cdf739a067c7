"""What a command works with: settings, streams, and the way to the daemon.

Owns the decision whether a command may start a daemon. Made once by `cli.main`, and by tests with
streams of their own. Everything costly happens in methods, so that parsing touches nothing.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TextIO

from cli.client import Client
from cli.errors import CliError, DaemonUnreachable, OutputLost, Usage
from localrun.settings import Settings, from_env

# What a terminal must never be told by a model: escape sequences and other control characters.
_UNSAFE = {code: None for code in [*range(0x20), *range(0x7F, 0xA0)] if chr(code) not in "\n\t"}

# The daemon takes no larger body (`localrun.http.guard`), so more of it need not be read.
INPUT_LIMIT_BYTES = 64 << 20

_GREY, _PLAIN = "\x1b[90m", "\x1b[0m"


def is_text(text: str) -> bool:
    """False when it holds escaped bytes that were not UTF-8: no request can carry them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass
class Context:
    """One run of the program. `stdout` carries data only, everything else goes to `stderr`."""

    environ: Mapping[str, str]
    stdin: TextIO
    stdout: TextIO
    stderr: TextIO
    _clients: list[Client] = field(default_factory=list)

    @cached_property
    def settings(self) -> Settings:
        """Raises: BadSetting."""
        return from_env(self.environ)

    def emit(self, text: str) -> None:
        """Writes to standard output at once, as it is; a terminal gets no control characters.

        Raises: OutputLost; BrokenPipeError when the reader has gone.
        """
        try:
            self.stdout.write(text.translate(_UNSAFE) if self.stdout.isatty() else text)
            self.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputLost(error) from error

    def say(self, line: str) -> None:
        """Writes one line of data."""
        self.emit(line + "\n")

    def note(self, line: str) -> None:
        """Writes one line for the person, never data. Where nobody can read it, it is lost."""
        with suppress(OSError):
            self.stderr.write(line.translate(_UNSAFE) + "\n")
            self.stderr.flush()

    def aside(self, text: str) -> None:
        """Writes a piece of text for the person, on a terminal in grey; otherwise as `note`."""
        clean = text.translate(_UNSAFE)
        with suppress(OSError):
            self.stderr.write(f"{_GREY}{clean}{_PLAIN}" if self.stderr.isatty() else clean)
            self.stderr.flush()

    def read_input(self, limit: int = -1) -> str:
        """Standard input, all of it or `limit` characters. Raises: Usage when it is not UTF-8."""
        try:
            return self.stdin.read(limit)
        except UnicodeDecodeError as error:
            raise Usage("the text on standard input is not UTF-8") from error

    def connect(self, *, start: bool = True) -> Client:
        """A client whose daemon has just answered; with `start`, a missing one is started.

        Notes on `stderr` when the server is not localrun. Raises: DaemonUnreachable, BadSetting.
        """
        client = Client(self.settings.url, api_key=self.settings.api_key)
        self._clients.append(client)
        try:
            self._greet(client)
        except DaemonUnreachable as error:
            if error.reason or not start:
                raise
            from cli.autostart import ensure_daemon

            ensure_daemon(self.settings, self.environ, self.note)
            self._greet(client)
        return client

    def close(self) -> None:
        """Ends every connection that `connect` made."""
        for client in self._clients:
            client.close()

    def _greet(self, client: Client) -> None:
        try:
            version = client.version()
        except DaemonUnreachable:
            raise
        except CliError:
            return  # the command's own request will say what is wrong
        if not version.localrun:
            self.note(f"note: {client.url} is not localrun but Ollama {version.version}")
