"""An answer's events as an HTTP response, and the end of the work when its client is gone.

Owns the order on the wire (headers when the answer is open, then a write per piece, then one final
object or one error) and the two ways in which a client is lost: it hangs up, or it
stops reading. Knows the dialects only as `AnswerWriter`; called by the handlers of text.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from localrun.core import Choice, Delta, Done, Event, TextDelta, ThinkingDelta, ToolCallDelta
from localrun.http.errors import Dialect, error_response, fault_of
from localrun.http.notes import loosened_headers
from localrun.service import Answer
from localrun.wire.faults import Fault
from localrun.wire.streams import JSON_TYPE

T = TypeVar("T")

_log = logging.getLogger(__name__)

# A reader that takes nothing for this long is gone as far as its slot is concerned. Proxies cut
# idle upstreams after 60 s as well (nginx `send_timeout`), and nobody pauses a chat for longer.
READER_STALL_S = 60.0


class AnswerWriter(Protocol):
    """One dialect: how the pieces of an answer are written."""

    @property
    def content_type(self) -> str:
        """Content type of a stream."""
        ...

    @property
    def has_thinking(self) -> bool:
        """Whether there is a place for what a model thinks; else it is left out."""
        ...

    def begin(self, n_prompt: int) -> bytes:
        """What a stream begins with, if anything; its first prompt has `n_prompt` tokens."""
        ...

    def delta(self, piece: Delta) -> bytes:
        """A piece of a choice."""
        ...

    def final(self, done: Done, *, is_last: bool) -> bytes:
        """What ends a choice, and the stream when no other choice is still to end."""
        ...

    def whole(self, choices: Sequence[Choice]) -> bytes:
        """A whole answer, in order of its choices, as one document."""
        ...

    def failure(self, fault: Fault) -> bytes:
        """What ends a stream that has gone wrong."""
        ...


class ReaderStalled(Exception):
    """The client has taken nothing for `READER_STALL_S`."""


class AnswerBroken(Exception):
    """An answer ended without all its `Done`s: a fault of ours, never the client's."""


async def outcome(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns; it is cancelled as soon as the client hangs up.

    The request's body must have been read. Raises what `work` raises, and ClientDisconnect.
    """
    task = asyncio.current_task()
    assert task is not None
    has_left = False

    async def watch() -> None:
        nonlocal has_left
        with contextlib.suppress(Exception):  # whatever it is, nobody can be answered
            while (await receive())["type"] != "http.disconnect":
                pass
        has_left = True
        # `work` stands at some `await` of its own now, so that is where this arrives.
        task.cancel()

    watching = asyncio.create_task(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if has_left and task.cancelling() == 1:
            raise ClientDisconnect from None
        raise
    finally:
        watching.cancel()
        if has_left:
            task.uncancel()


class Sender:
    """`send` with a limit on how long the client may leave it unread.

    One timer serves all sends: it is armed anew only when it rings, not for every token. Belongs
    to the task that makes it; `close` it at the end.
    """

    def __init__(self, send: Send, stall_s: float) -> None:
        self._send = send
        self._stall_s = stall_s
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._is_sending = False
        self._since_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_stalled = False

    def close(self) -> None:
        """Disarms the timer. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()

    async def start(self, content_type: str, headers: Mapping[str, str]) -> None:
        """Sends status 200 and the headers of a stream."""
        # The last two keep proxies from collecting the stream before they pass it on.
        fields = {
            "Content-Type": content_type,
            **headers,
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",
        }
        await self._bounded(_start_message(fields))

    async def body(self, data: bytes, *, is_last: bool) -> None:
        """Sends a piece of the body. Raises ReaderStalled."""
        await self._bounded({"type": "http.response.body", "body": data, "more_body": not is_last})

    async def _bounded(self, message: Message) -> None:
        self._since_s = self._loop.time()
        self._is_sending = True
        if self._timer is None:
            self._timer = self._loop.call_later(self._stall_s, self._ring)
        try:
            await self._send(message)
        except asyncio.CancelledError:
            if not self._is_stalled or self._task is None:
                raise
            self._task.uncancel()
            raise ReaderStalled from None
        finally:
            self._is_sending = False

    def _ring(self) -> None:
        self._timer = None
        if not self._is_sending or self._task is None:
            return
        left_s = self._since_s + self._stall_s - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._ring)
        else:
            self._is_stalled = True
            self._task.cancel()


def _start_message(headers: Mapping[str, str]) -> Message:
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http.response.start", "status": 200, "headers": pairs}


class AnswerResponse:
    """The reply to one request for text, as an ASGI application.

    `opening` starts the request; whatever it returned is closed here, however this ends.
    It ends with the last of `n_choices`. With `stream` unset they become one JSON object.
    """

    def __init__(
        self,
        opening: Callable[[], Awaitable[Answer]],
        writer: AnswerWriter,
        dialect: Dialect,
        *,
        stream: bool,
        n_choices: int = 1,
        headers: Mapping[str, str] | None = None,
        stall_s: float = READER_STALL_S,
    ) -> None:
        self._opening = opening
        self._writer = writer
        self._dialect = dialect
        self._stream = stream
        self._n_choices = n_choices
        self._headers = headers or {}
        self._stall_s = stall_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(ClientDisconnect):
            await outcome(receive, self._serve(scope, receive, send))

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.closing(Sender(send, self._stall_s)) as sender:
            try:
                reply = await self._reply(sender)
            except ReaderStalled:
                _log.warning("a client has not read for %g s; its request is ended", self._stall_s)
                return
        if reply is not None:
            await reply(scope, receive, send)

    async def _reply(self, sender: Sender) -> Response | None:
        """What to send as a whole; None when the answer has been streamed."""
        try:
            answer = await self._opening()
        except Exception as error:  # noqa: BLE001 - the table decides what the client is told
            return error_response(error, self._dialect)
        headers = {**self._headers, **loosened_headers(answer.loosened)}
        async with contextlib.aclosing(answer):
            if self._stream:
                await self._forward(answer, sender, headers)
                return None
            try:
                document = await self._collect(answer)
            except Exception as error:  # noqa: BLE001 - as above
                return error_response(error, self._dialect)
        return Response(document, headers=headers, media_type=JSON_TYPE)

    async def _collect(self, answer: Answer) -> bytes:
        pieces: list[list[Delta]] = [[] for _ in range(self._n_choices)]
        dones: dict[int, Done] = {}
        while len(dones) < self._n_choices:
            event = await self._event(answer)
            if isinstance(event, Done):
                dones[event.index] = event
            else:
                pieces[event.index].append(event)
        return self._writer.whole([_joined(pieces[i], dones[i]) for i in sorted(dones)])

    async def _forward(self, answer: Answer, sender: Sender, headers: Mapping[str, str]) -> None:
        """Streams the answer; what ends it is the final object or an error, never both."""
        await sender.start(self._writer.content_type, headers)
        if opening := self._writer.begin(answer.n_prompt):
            await sender.body(opening, is_last=False)
        n_open = self._n_choices
        while n_open:
            data, n_open = await self._next(answer, n_open)
            await sender.body(data, is_last=n_open == 0)

    async def _next(self, answer: Answer, n_open: int) -> tuple[bytes, int]:
        """(the next piece in this dialect, how many of `n_open` choices are still to end)."""
        try:
            event = await self._event(answer)
            if isinstance(event, Done):
                n_open -= 1
                return self._writer.final(event, is_last=n_open == 0), n_open
            return self._writer.delta(event), n_open
        except Exception as error:  # noqa: BLE001 - it becomes the last frame of the stream
            return self._writer.failure(fault_of(error, self._dialect)[1]), 0

    async def _event(self, answer: Answer) -> Event:
        """The next one that this dialect has a place for. Raises AnswerBroken."""
        while event := await anext(answer, None):
            if self._writer.has_thinking or not isinstance(event, ThinkingDelta):
                return event
        raise AnswerBroken


def _joined(pieces: Sequence[Delta], done: Done) -> Choice:
    texts = [piece for piece in pieces if not isinstance(piece, ToolCallDelta)]
    return Choice(
        "".join(piece.text for piece in texts if isinstance(piece, TextDelta)),
        done,
        tuple(entry for piece in texts for entry in piece.logprobs),
        "".join(piece.text for piece in texts if isinstance(piece, ThinkingDelta)),
        tuple(piece.call for piece in pieces if isinstance(piece, ToolCallDelta)),
        tuple(pieces),
    )
