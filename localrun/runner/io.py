"""The runner's end of the socket pair: blocking reads on one thread, whole frames out.

Writing has no thread of its own: whoever has made a frame writes it. One thread fewer to wake per
step, and a daemon that is behind gets what has piled up as fewer, larger frames.
"""

import socket
from collections.abc import Iterator

from localrun.ipc.framing import FrameDecoder, encode_frame
from localrun.ipc.messages import Outbox, ToRunner, decode_for_runner, encode

_READ_BYTES = 64 * 1024


class Channel:
    """Messages over one connected socket. One thread may read while another one sends."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def messages(self) -> Iterator[ToRunner]:
        """The daemon's messages until it closes the socket or dies."""
        decoder = FrameDecoder()
        while data := self._read():
            for payload in decoder.feed(data):
                yield decode_for_runner(payload)

    def _read(self) -> bytes:
        try:
            return self._socket.recv(_READ_BYTES)
        except ConnectionError:
            return b""

    def send(self, outbox: Outbox) -> None:
        """Sends one frame; blocks while the daemon is behind. Raises OSError when it is gone."""
        self._socket.sendall(encode_frame(encode(outbox)))
