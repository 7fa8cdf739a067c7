"""How one task owns a state: what others want comes in as events, what takes time runs as effects.

An event is a function that the owner calls. Between two of them nothing else happens, and none of
them may wait. Knows nothing of models.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from localrun.errors import LocalrunError

T = TypeVar("T")


class Events:
    """What an owner is to do, in the order in which it was posted. Event loop only."""

    def __init__(self) -> None:
        self._posted: asyncio.Queue[Callable[[], None]] = asyncio.Queue()

    def post(self, event: Callable[[], None]) -> None:
        """The owner will call `event`, when all that was posted before is done."""
        self._posted.put_nowait(event)

    async def ask(self, question: Callable[[], T]) -> T:
        """What `question` returns or raises as an event."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def event() -> None:
            try:
                result = question()
            except LocalrunError as error:
                answer.set_exception(error)
            else:
                answer.set_result(result)

        self.post(lambda: None if answer.done() else event())
        return await answer

    async def apply(self, timeout_s: float | None) -> None:
        """For the owner: waits for an event, at most `timeout_s`, and applies all there are."""
        try:
            event = await asyncio.wait_for(self._posted.get(), timeout_s)
        except TimeoutError:
            pass
        else:
            event()
        self.apply_posted()

    def apply_posted(self) -> None:
        """For the owner: applies all that there are now, and what these post."""
        while not self._posted.empty():
            self._posted.get_nowait()()


class Effects:
    """The tasks that an owner has started and that still run."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, effect: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        """Runs `effect` as a task of its own, which nobody has to wait for."""
        task = asyncio.create_task(effect, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def cancel(self) -> None:
        """Ends all of them, and returns when they have ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
