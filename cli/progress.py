"""Progress of long tasks on standard error: one changing line on a terminal, plain lines elsewhere.

Owns the only cursor movement of the program. Percentages are for a terminal alone; a log file gets
every step once.
"""

import shutil
from typing import TextIO

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
        """Reports a step; `completed` of `total` bytes, where zero means not known."""
        if self._is_terminal:
            share = f" {completed * 100 // total}%" if total else ""
            width = shutil.get_terminal_size().columns - 1
            self._write(_BACK_AND_CLEAR + (status + share)[:width])
        elif status != self._status:
            self._write(status + "\n")
        self._status = status

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
