"""Length-prefixed frames over a byte stream; no I/O.

A frame is a 4-byte big-endian length and that many bytes. Both ends of the socket pair use this.
"""

import struct

_LENGTH = struct.Struct(">I")

# A frame holds one request or one step. The largest is a chat whose text fills a 1M-token window
# several times over; anything above is a broken peer, and reading on would only eat memory.
MAX_FRAME_BYTES = 64 * 1024 * 1024


class FrameTooLarge(Exception):
    """The peer announces a frame above the limit: the stream cannot be followed any further."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"a frame of {size_bytes} bytes exceeds the limit of {MAX_FRAME_BYTES}")
        self.size_bytes = size_bytes


def encode_frame(payload: bytes) -> bytes:
    """`payload` behind its length. Raises FrameTooLarge."""
    if len(payload) > MAX_FRAME_BYTES:
        raise FrameTooLarge(len(payload))
    return _LENGTH.pack(len(payload)) + payload


class FrameDecoder:
    """Bytes in, whole payloads out, in any slicing."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Payloads that `data` completes, in order. Raises FrameTooLarge."""
        self._buffer += data
        payloads: list[bytes] = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._buffer, start)
            if size > MAX_FRAME_BYTES:
                raise FrameTooLarge(size)
            end = start + _LENGTH.size + size
            if len(self._buffer) < end:
                break
            payloads.append(bytes(self._buffer[start + _LENGTH.size : end]))
            start = end
        del self._buffer[:start]
        return payloads
