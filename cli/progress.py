"""Progress of long tasks on standard error: one changing line on a terminal, plain lines elsewhere.

Owns the only cursor movement of the program. A log file gets every step once, and a line for every
tenth of a transfer.
"""

import shutil
import time
from collections.abc import Callable
from typing import TextIO

from cli.bars import Rate, bar_line

_BACK_AND_CLEAR = "\r\x1b[K"


class ProgressLine:
    """Shows the step that is under way. A context manager: leaving it clears the line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._status = ""

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_terminal:
            self._write(_BACK_AND_CLEAR)

    def show(self, status: str, completed: int = 0, total: int = 0) -> None:
        """Reports a step; `completed` of `total` bytes, where zero means not known.

        A warning stays on the terminal.
        """
        if self._is_terminal and status.startswith("warning: "):
            self._write(_BACK_AND_CLEAR + status + "\n")
        elif self._is_terminal:
            share = f" {completed * 100 // total}%" if total else ""
            width = shutil.get_terminal_size().columns - 1
            self._write(_BACK_AND_CLEAR + (status + share)[:width])
        elif status != self._status:
            self._write(status + "\n")
        self._status = status

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class TransferLines:
    """Steps one below the other, with a bar for each digest that is being transferred.

    For `pull`, `push` and their like, whose reports come for one digest after the other. A context
    manager: leaving it ends the last line.
    """

    def __init__(self, stream: TextIO, now_s: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._now_s = now_s
        self._is_terminal = stream.isatty()
        self._said: set[str] = set()
        self._line = ""  # what stands on the terminal's last line
        self._key = ""
        self._rate = Rate()
        self._tenth = -1

    def __enter__(self) -> "TransferLines":
        return self

    def __exit__(self, *_: object) -> None:
        if self._line:
            self._write("\n")

    def show(self, status: str, digest: str = "", completed: int = 0, total: int = 0) -> None:
        """Reports a step; with a digest, `completed` of `total` bytes of it are there."""
        key = digest or status
        if key != self._key:
            if self._line:
                self._write("\n")
            self._key, self._line, self._tenth, self._rate = key, "", -1, Rate()
        if self._is_terminal:
            self._redraw(status, digest, completed, total)
        else:
            self._log(status, digest, completed, total)

    def _redraw(self, status: str, digest: str, completed: int, total: int) -> None:
        width = shutil.get_terminal_size().columns - 1
        line = status
        if digest and total:
            now_s = self._now_s()
            self._rate.add(now_s, completed)
            line = bar_line(
                status, completed, total, self._rate.bytes_per_s(now_s, completed), width=width
            )
        line = line[:width]
        if line != self._line:
            self._write(_BACK_AND_CLEAR + line)
            self._line = line

    def _log(self, status: str, digest: str, completed: int, total: int) -> None:
        tenth = completed * 10 // total if digest and total else -1
        if status in self._said and tenth <= self._tenth:
            return
        self._said.add(status)
        self._tenth = max(tenth, self._tenth)
        self._write(f"{status}: {tenth * 10}%\n" if tenth >= 0 else f"{status}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
