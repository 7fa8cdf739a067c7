"""What a runner says about one request, as an asynchronous iterator for the one who asked."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from localrun.core import Delta, Done, Event, ToolCallDelta
from localrun.errors import LocalrunError, Phase

# What waits for a slow reader before its sequence is paused, as bytes on the wire: below it a
# hiccup of the network costs nothing, above it tokens are computed that perhaps nobody reads.
AHEAD_BYTES = 256 << 10

# JSON around a piece of text, in the longest dialect, and a token with its log-probability.
_PIECE_BYTES, _LOGPROB_BYTES = 160, 80


class RequestStream:
    """The events of one request. One reader; `close` cancels what still runs.

    `n_prompt` is how many tokens its prompt has, once it is accepted, and `loosened` what its
    answer is not held to.

    What the reader has not fetched waits here. When that is more than `AHEAD_BYTES`, `pace` is
    called with (id, True), and with (id, False) when most of it has been fetched.
    """

    def __init__(
        self,
        request_id: int,
        forget: Callable[[int], None],
        pace: Callable[[int, bool], None] = lambda _id, _is_paused: None,
    ) -> None:
        self.id = request_id
        self.phase: Phase = "waiting"
        self.n_prompt = 0
        self.loosened: tuple[str, ...] = ()
        self.is_paused = False
        self._n_bytes = 0
        self._forget = forget
        self._pace = pace
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
        if isinstance(event, Done):
            self._is_over = True
            return event
        self._n_bytes -= _size_bytes(event)
        if self.is_paused and self._n_bytes <= AHEAD_BYTES // 4:
            self._set_paused(False)
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
        if not isinstance(event, Done | LocalrunError):
            self._n_bytes += _size_bytes(event)
            if self._n_bytes > AHEAD_BYTES and not self.is_paused:
                self._set_paused(True)
        if self._on_event is not None:
            self._on_event()
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _set_paused(self, is_paused: bool) -> None:
        self.is_paused = is_paused
        self._pace(self.id, is_paused)

    def accept(self, n_prompt: int, loosened: tuple[str, ...] = ()) -> None:
        """The prompt of so many tokens is in the queue of the engine; see `Waiting`."""
        self.phase = "waiting"
        self.n_prompt, self.loosened = n_prompt, loosened
        if not self._accepted.done():
            self._accepted.set_result(None)

    def fail(self, error: LocalrunError) -> None:
        """Ends the stream with `error`, before or after it was accepted."""
        if not self._accepted.done():
            self._accepted.set_exception(error)
            # Whoever waits gets it; if the reader has left, nobody has to.
            self._accepted.exception()
        self.put(error)


def _size_bytes(piece: Delta) -> int:
    """About what it is on the wire."""
    if isinstance(piece, ToolCallDelta):
        return len(repr(piece.call.arguments)) + _PIECE_BYTES
    n_tokens = sum(1 + len(token.top) for token in piece.logprobs)
    return len(piece.text) + _PIECE_BYTES + n_tokens * _LOGPROB_BYTES
