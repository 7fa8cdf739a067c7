"""Frames over the daemon's end of a runner's socket pair. No knowledge of what they mean.

A protocol, not a stream reader: what a runner says about a step is handed on in the very turn of
the event loop in which it arrives, and a turn less per token is CPU time that the model gets.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import cast

import msgspec

from localrun.ipc.framing import FrameDecoder, FrameTooLarge, encode_frame
from localrun.ipc.messages import Outbox, ToRunner, decode_for_daemon, encode

_log = logging.getLogger(__name__)


class Connection(asyncio.Protocol):
    """Calls `receive` with each frame until `closed` is done. `receive` may be replaced."""

    def __init__(self) -> None:
        self.receive: Callable[[Outbox], None] = lambda _outbox: None
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._frames: list[bytes] = []
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        # Not checked: uvloop's transports do not derive from asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        try:
            for payload in self._decoder.feed(data):
                self.receive(decode_for_daemon(payload))
        except (FrameTooLarge, msgspec.DecodeError) as error:
            _log.error("a runner broke the protocol: %s", error)
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self.closed.set_result(None)

    def send(self, message: ToRunner) -> None:
        """Queues a message; one to a runner that is gone is lost. Raises FrameTooLarge.

        What one turn of the loop sends leaves together: of requests that arrive together each would
        wake the runner, and take its threads' time from the forward.
        """
        frame = encode_frame(encode(message))
        if not self._frames:
            self._loop.call_soon(self._flush)
        self._frames.append(frame)

    def _flush(self) -> None:
        assert self._transport is not None
        self._transport.write(b"".join(self._frames))
        self._frames.clear()

    def close(self) -> None:
        """Hangs up, which ends the runner. Idempotent."""
        if self._transport is not None:
            self._transport.abort()
