"""A bounded window over the front of a file, for reading binary headers.

Owns the position and the rule that no byte beyond the end of the file is ever promised. Memory is
the window plus the one item that was asked for; callers bound the item. Knows the byte order
(little-endian) and nothing else of GGUF.
"""

import os
import struct
from typing import Any, BinaryIO

from modelstore.errors import IncompleteGGUF

# One window holds the whole header of most models, and the vocabulary of any in a few.
_WINDOW_BYTES = 2 << 20
_UINT32 = struct.Struct("<I")
_UINT64 = struct.Struct("<Q")


class HeaderCursor:
    """A reading position in a file that stays open with the caller. For one thread.

    Every method that moves forward raises IncompleteGGUF instead of passing the end of the file.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size_bytes = os.fstat(file.fileno()).st_size
        self._window = b""
        self._base = 0  # file offset of the window's first byte
        self._at = 0  # within the window; may lie beyond it after a skip

    @property
    def position(self) -> int:
        """Offset of the next byte from the start of the file."""
        return self._base + self._at

    def expect(self, n_bytes: int) -> None:
        """Checks that the file has `n_bytes` more bytes, without reading them."""
        if self.position + n_bytes > self.size_bytes:
            raise IncompleteGGUF(self.size_bytes, self.position + n_bytes)

    def up_to(self, n_bytes: int) -> bytes:
        """The next bytes, or fewer at the end of the file; does not move."""
        self._fill(min(n_bytes, self.size_bytes - self.position))
        return self._window[self._at : self._at + n_bytes]

    def take(self, n_bytes: int) -> bytes:
        """The next `n_bytes`, all of them, held in memory; moves past them."""
        self._fill(n_bytes)
        data = self._window[self._at : self._at + n_bytes]
        self._at += n_bytes
        return data

    def skip(self, n_bytes: int) -> None:
        """Moves past `n_bytes` without reading them."""
        self.expect(n_bytes)
        self._at += n_bytes

    def uint32(self) -> int:
        """The next 4 bytes as a number."""
        return int(self.unpack(_UINT32))

    def uint64(self) -> int:
        """The next 8 bytes as a number."""
        return int(self.unpack(_UINT64))

    def unpack(self, layout: struct.Struct) -> Any:
        """One value of a fixed layout."""
        self._fill(layout.size)
        (value,) = layout.unpack_from(self._window, self._at)
        self._at += layout.size
        return value

    def unpack_many(self, layout: struct.Struct, count: int) -> tuple[Any, ...]:
        """`count` values without padding."""
        self.expect(layout.size * count)
        data = self.take(layout.size * count)
        return struct.unpack(f"<{count}{layout.format[1:]}", data)

    def skip_strings(self, count: int) -> None:
        """Passes `count` strings, each a uint64 length and its bytes: 0.1 µs a string."""
        unpack = _UINT64.unpack_from
        while count:
            self._fill(8)
            window, at = self._window, self._at
            n_passed = 0
            # The tight loop has no bounds check of its own: it stops when a length can no longer be
            # read from the window, which a length that is too large also brings about.
            try:
                for n_passed in range(count):  # noqa: B007
                    at += 8 + unpack(window, at)[0]
                n_passed = count
            except (struct.error, OverflowError):
                pass
            count -= n_passed
            self._at = at
            self.expect(0)

    def _fill(self, n_bytes: int) -> None:
        """Makes the next `n_bytes` available in the window."""
        if self._at + n_bytes <= len(self._window):
            return
        self.expect(n_bytes)
        start = self.position
        self._file.seek(start)
        self._window = self._file.read(max(n_bytes, _WINDOW_BYTES))
        self._base, self._at = start, 0
        if len(self._window) < n_bytes:  # the file shrank while it was being read
            raise IncompleteGGUF(start + len(self._window), start + n_bytes)
