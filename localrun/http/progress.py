"""The steps of a long operation of the store as an HTTP response.

Owns the rule when a failure still has a status of its own: while nothing has been sent. Later it
is the last line of the stream. A client that leaves ends the operation.
"""

import contextlib
import logging
from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from localrun.http.errors import error_response, fault_of
from localrun.http.streaming import READER_STALL_S, ReaderStalled, Sender, outcome
from localrun.http.threads import StepsInThread
from localrun.wire.native_models import encode_progress, encode_struct
from localrun.wire.native_writer import CONTENT_TYPE
from localrun.wire.streams import JSON_TYPE, ndjson
from modelstore.create import Progress

# A step, or a reply of its own kind that ends the steps.
Step = Progress | msgspec.Struct

_log = logging.getLogger(__name__)


class ProgressResponse:
    """Sends each step as a line, or only the last one as an object when `stream` is unset.

    `on_end` is called when the operation has ended, whatever came of it.
    """

    def __init__(
        self,
        steps: StepsInThread[Step],
        *,
        stream: bool,
        on_end: Callable[[], Awaitable[None]],
        stall_s: float = READER_STALL_S,
    ) -> None:
        self._steps = steps
        self._stream = stream
        self._on_end = on_end
        self._stall_s = stall_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with contextlib.suppress(ClientDisconnect):
                await outcome(receive, self._serve(scope, receive, send))
        finally:
            try:
                await self._on_end()
            except Exception:  # noqa: BLE001 - whatever it is, the answer is out
                # Its client must not lose the connection over what comes after.
                _log.exception("what follows an operation of the store has failed")

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.aclosing(self._steps):
            try:
                last = await anext(self._steps)
                if not self._stream:
                    async for step in self._steps:
                        last = step
            except Exception as error:  # noqa: BLE001 - the table decides what the client is told
                await error_response(error, "native")(scope, receive, send)
                return
            if self._stream:
                with contextlib.closing(Sender(send, self._stall_s)) as sender:
                    await self._forward(last, sender)
            else:
                reply = Response(_document(last), media_type=JSON_TYPE)
                await reply(scope, receive, send)

    async def _forward(self, first: Step, sender: Sender) -> None:
        try:
            await sender.start(CONTENT_TYPE, {})
            await sender.body(ndjson(_document(first)), is_last=False)
            await sender.body(await self._rest(sender), is_last=True)
        except ReaderStalled:
            _log.warning("a client stopped reading for %g s; its request is ended", self._stall_s)

    async def _rest(self, sender: Sender) -> bytes:
        """Sends the steps as they come; returns the line of an error, or nothing."""
        try:
            async for step in self._steps:
                await sender.body(ndjson(_document(step)), is_last=False)
        except ReaderStalled:
            raise
        except Exception as error:  # noqa: BLE001 - it becomes the last line of the stream
            return ndjson(fault_of(error)[1].last_line())
        return b""


def _document(step: Step) -> bytes:
    if isinstance(step, msgspec.Struct):
        return encode_struct(step)
    return encode_progress(step.status, step.digest, step.total, step.completed)
