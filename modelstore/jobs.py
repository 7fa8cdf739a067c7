"""One-shot jobs in a process of their own: what takes long, or might not survive a stranger's file.

Owns the life of that process: it starts, reports, and is ended when whoever waits for it goes away.
Which program runs is the caller's (`Command`); this side knows only what it says. Protocol: one
JSON object a line on standard output, `{"status", "completed", "total"}` for progress and
`{"refused": text}` when the input is none that the job takes; exit code 0 when it is done. The job
ends by itself when its standard input does.
"""

import math
import os
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from typing import IO, Any

import msgspec

from modelstore.errors import JobFailed, UnsupportedFormat
from modelstore.sources import Progress

# How a job is started: a program and its first arguments.
Command = tuple[str, ...]

# Without news the last report is repeated after this time, so that a client that has left is seen.
_REPEAT_S = 1.0
# Lines of its log that an error may quote, and how much of the log is looked at.
_TAIL_LINES, _TAIL_BYTES = 4, 8 << 10


class _Line(msgspec.Struct):
    status: str = ""
    completed: int | None = None
    total: int | None = None
    refused: str | None = None


_DECODE = msgspec.json.Decoder(_Line).decode


def run_job(
    command: Command,
    task: str,
    arguments: Sequence[str],
    *,
    digest: str | None = None,
    limit_s: float = math.inf,
) -> Generator[Progress, None, None]:
    """Runs a job to its end; `task` says in errors what it was for. Closing it ends the process.

    One that takes longer than `limit_s` is ended.
    Raises: UnsupportedFormat in the job's own words, JobFailed.
    """
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        except OSError as error:
            raise JobFailed(task, f"no process could be started: {error.strerror}") from error
        with process:
            try:
                yield from _follow(process, task, digest, time.monotonic() + limit_s)
            except TimeoutError:
                raise JobFailed(task, f"no result within {limit_s:g} s") from None
            finally:
                process.kill()
        if process.returncode != 0:
            raise JobFailed(task, _how(process.returncode, log))


def _follow(
    process: "subprocess.Popen[bytes]", task: str, digest: str | None, deadline_s: float
) -> Generator[Progress, None, None]:
    lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
    reader.start()
    last = Progress(task, digest)
    while True:
        if time.monotonic() > deadline_s:
            raise TimeoutError
        try:
            data = lines.get(timeout=_REPEAT_S)
        except queue.Empty:
            yield last
            continue
        if data is None:
            process.wait()
            return
        line = _decoded(data)
        if line.refused is not None:
            raise UnsupportedFormat(line.refused)
        if line.status:
            last = Progress(line.status, digest, line.total, line.completed)
            yield last


def _read(stdout: IO[bytes], lines: "queue.SimpleQueue[bytes | None]") -> None:
    try:
        for line in stdout:
            lines.put(line)
    except (OSError, ValueError):  # closed while it was read
        pass
    lines.put(None)


def _decoded(data: bytes) -> _Line:
    try:
        return _DECODE(data)
    except msgspec.MsgspecError:  # something else wrote to the job's output
        return _Line()


def _how(code: int, log: Any) -> str:
    log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
    text = log.read().decode("utf-8", "replace").strip()
    tail = "; ".join(line.strip() for line in text.splitlines()[-_TAIL_LINES:] if line.strip())
    how = f"its process was ended by signal {-code}" if code < 0 else f"exit code {code}"
    return f"{how} ({tail})" if tail else how
