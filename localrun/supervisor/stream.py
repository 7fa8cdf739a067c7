"""What a runner says about one request, as an asynchronous iterator for the one who asked."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from localrun.core import Done, Event
from localrun.errors import LocalrunError, Phase


class RequestStream:
    """The events of one request. One reader; `close` cancels what still runs.

    What the reader has not fetched waits here, bounded by the window of the sequence.
    """

    def __init__(self, request_id: int, forget: Callable[[int], None]) -> None:
        self.id = request_id
        self.phase: Phase = "waiting"
        self._forget = forget
        self._on_event: Callable[[], None] | None = None
        self._ready: deque[Event | LocalrunError] = deque()
        self._loop = asyncio.get_running_loop()
        self._accepted: asyncio.Future[None] = self._loop.create_future()
        self._arrival: asyncio.Future[None] | None = None
        self._is_over = False

    async def accepted(self) -> None:
        """Returns when the prompt is rendered and fits. Raises what the runner refused it with."""
        await asyncio.shield(self._accepted)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        if self._is_over:
            raise StopAsyncIteration
        if not self._ready:
            self._arrival = self._loop.create_future()
            await self._arrival
        event = self._ready.popleft()
        if isinstance(event, LocalrunError):
            self._is_over = True
            raise event
        self._is_over = isinstance(event, Done)
        return event

    def watch(self, on_event: Callable[[], None]) -> None:
        """Calls `on_event` once for each event, also for those that are there already.

        So one reader can follow several streams, and reads only where something is ready.
        """
        self._on_event = on_event
        for _ in self._ready:
            on_event()

    def close(self) -> None:
        """Nobody reads on: cancels the request if it still runs. Idempotent."""
        self._is_over = True
        self._forget(self.id)

    # ---- called by the client

    def put(self, event: Event | LocalrunError) -> None:
        """Hands on a piece of the answer or its end."""
        self._ready.append(event)
        if self._on_event is not None:
            self._on_event()
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def accept(self) -> None:
        """The prompt is in the queue of the engine."""
        self.phase = "waiting"
        if not self._accepted.done():
            self._accepted.set_result(None)

    def fail(self, error: LocalrunError) -> None:
        """Ends the stream with `error`, before or after it was accepted."""
        if not self._accepted.done():
            self._accepted.set_exception(error)
            # Whoever waits gets it; if the reader has left, nobody has to.
            self._accepted.exception()
        self.put(error)
