"""One runner process: spawned with a socket pair, logged, reaped. Knows nothing of requests."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections import deque

from localrun.ipc.messages import LAST_WORDS, WARNING
from localrun.processors import ALLOWED
from localrun.supervisor.connection import Connection

_log = logging.getLogger(__name__)

# Lines of llama.cpp's log that a load error may quote.
_LOG_TAIL_LINES = 8

# A runner that is told to go closes within a step; a forward of a large model takes seconds.
_CLOSE_TIMEOUT_S = 5.0

# Saved KV is megabytes a piece. glibc would learn from the first one that is freed to keep such
# pieces on its heap, where their memory never goes back to the system. But told so, it no longer
# learns how much to keep for the next piece either: every draw would give the memory of its
# candidates back (3 MB with 262k tokens), at the cost of a millisecond of page faults.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(4 << 20), "MALLOC_TRIM_THRESHOLD_": str(16 << 20)}

# A failed assertion would start a debugger, which takes seconds and buries the assertion.
_NO_BACKTRACE = {"GGML_NO_BACKTRACE": "1"}


class RunnerProcess:
    """A child process and this side of its socket pair. The sole owner of both."""

    def __init__(self, process: asyncio.subprocess.Process, connection: Connection) -> None:
        self.connection = connection
        self._process = process
        self._tail: deque[str] = deque(maxlen=_LOG_TAIL_LINES)
        self._log_task = asyncio.create_task(self._read_log())

    @classmethod
    async def spawn(cls) -> "RunnerProcess":
        """Starts `python -m localrun.runner`.

        Raises OSError when no process can be made. A cancelled spawn leaves none.
        """
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "localrun.runner",
                f"--fd={theirs.fileno()}",
                f"--parent={os.getpid()}",
                f"--cpus={','.join(map(str, sorted(ALLOWED)))}",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                env={**_MALLOC, **_NO_BACKTRACE, **os.environ},
            )
            undo.callback(process.kill)
            theirs.close()
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(Connection, sock=ours)
            undo.pop_all()
        return cls(process, connection)

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def log_tail(self) -> tuple[str, ...]:
        """The last lines that the child wrote to stderr."""
        return tuple(self._tail)

    async def _read_log(self) -> None:
        stderr = self._process.stderr
        assert stderr is not None
        while line := await _read_line(stderr):
            text = line.decode("utf-8", "replace").rstrip()
            if text.startswith(WARNING):
                _log.warning("runner %d: %s", self.pid, text.removeprefix(WARNING))
                continue
            self._tail.append(text)
            _log.debug("runner %d: %s", self.pid, text)

    def kill(self) -> None:
        """Ends the child at once."""
        if self._process.returncode is None:
            self._process.kill()

    async def close(self) -> None:
        """Closes the socket, which ends the child, and reaps it. Idempotent."""
        self.connection.close()
        try:
            await asyncio.wait_for(self._process.wait(), _CLOSE_TIMEOUT_S)
        except TimeoutError:
            self.kill()
        await self.wait()

    async def wait(self) -> str:
        """How the child ended, in words, once it has; its own ones first."""
        code = await self._process.wait()
        await self._log_task
        self.connection.close()
        how = (
            f"it was ended by {_signal_name(-code)}" if code < 0 else f"it exited with code {code}"
        )
        said = [line.removeprefix(LAST_WORDS) for line in self._tail if LAST_WORDS in line]
        return "; ".join((*said, how))


async def _read_line(stream: asyncio.StreamReader) -> bytes:
    try:
        return await stream.readline()
    except ValueError:  # a line above the stream's limit: what was read of it is dropped
        return b"(a line too long to show)"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
