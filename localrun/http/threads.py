"""Bridges between the loop and worker threads, for a store that is synchronous.

Owns two directions: an iterator that runs in a thread and is awaited here, and chunks that arrive
here and are iterated in a thread. Both are bounded, and both end when the other side is gone.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncIterator, Generator, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Generic, TypeVar

from localrun.processors import use_all

T = TypeVar("T")

_STEPS_AHEAD = 16
_CHUNKS_AHEAD = 16  # uvicorn hands out at most 64 KiB at a time, so about 1 MiB


def workers(n: int | None, name: str) -> ThreadPoolExecutor:
    """At most `n` threads of that name, which run on all processors, wherever the loop does.

    None is Python's own number, a few more than there are processors.
    """
    return ThreadPoolExecutor(n, thread_name_prefix=name, initializer=use_all)


class _End(Exception):
    """The iterator has nothing more."""


class StepsInThread(Generic[T]):
    """Iterates `steps` in one worker thread; awaited on the loop, a few steps behind.

    `aclose` makes the thread close the iterator after the step it is in, and does not wait for it.
    """

    def __init__(self, executor: Executor, steps: Iterator[T]) -> None:
        self._executor = executor
        self._steps = steps
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Queue[T | Exception] = asyncio.Queue()
        self._room = threading.Semaphore(_STEPS_AHEAD)
        self._is_closed = threading.Event()
        self._is_started = False

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        if not self._is_started:
            self._is_started = True
            self._executor.submit(self._run)
        step = await self._ready.get()
        if isinstance(step, _End):
            raise StopAsyncIteration
        if isinstance(step, Exception):
            raise step
        self._room.release()
        return step

    async def aclose(self) -> None:
        """Ends the iteration. Idempotent."""
        self._is_closed.set()
        self._room.release()

    def _run(self) -> None:
        try:
            for step in self._steps:
                self._room.acquire()
                if self._is_closed.is_set():
                    break
                self._post(step)
        except Exception as error:  # noqa: BLE001 - raised again where the step is awaited
            self._post(error)
        finally:
            if isinstance(self._steps, Generator):
                self._steps.close()
            self._post(_End())

    def _post(self, step: T | Exception) -> None:
        # The loop may be gone when the daemon stops; then nobody waits either.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._ready.put_nowait, step)


class UploadEnded(Exception):
    """The sender went away before the last chunk."""


class ChunksToThread:
    """Chunks put on the loop, iterated in a thread; the loop waits while the thread is behind."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._chunks: queue.SimpleQueue[bytes | UploadEnded | None] = queue.SimpleQueue()
        self._room = asyncio.Semaphore(_CHUNKS_AHEAD)
        self._is_abandoned = False

    async def put(self, chunk: bytes) -> bool:
        """False when the thread has ended and wants no more."""
        await self._room.acquire()
        if not self._is_abandoned:
            self._chunks.put(chunk)
        return not self._is_abandoned

    def finish(self) -> None:
        """Nothing follows."""
        self._chunks.put(None)

    def abort(self) -> None:
        """The iterating thread gets `UploadEnded`."""
        self._chunks.put(UploadEnded())

    def abandon(self) -> None:
        """The thread has ended: wakes whoever waits in `put`."""
        self._is_abandoned = True
        self._room.release()

    def __iter__(self) -> Iterator[bytes]:
        while (chunk := self._chunks.get()) is not None:
            if isinstance(chunk, UploadEnded):
                raise chunk
            self._loop.call_soon_threadsafe(self._room.release)
            yield chunk
