"""How long numbers may become: schemas do not say, and small models write digits for ever.

Knows JSON as far as to tell numbers from strings.
"""

from collections.abc import Callable, Sequence

# Digits in a row, before the point, behind it, and of an exponent: those of 64 bits. A token may
# hold a few more.
MAX_DIGITS = 20

_QUOTE, _ESCAPE, _ZERO, _NINE = b'"\\09'


class DigitTokens:
    """The tokens of a vocabulary that begin with a digit."""

    def __init__(self, names: Sequence[bytes], bytes_of: Callable[[int], bytes]) -> None:
        """`names` begin otherwise where a token is not its text; `bytes_of` has nothing there."""
        self.bytes_of = bytes_of
        bits = bytearray(len(names) // 8 + 1)
        for token, name in enumerate(names):
            if name[:1].isdigit():
                bits[token // 8] |= 1 << token % 8
        self._bits = int.from_bytes(bits, "little")

    def is_one(self, token: int) -> bool:
        """Whether the token begins with a digit."""
        return bool(self._bits >> token & 1)

    def left_out(self, mask: bytes) -> bytes:
        """The mask without them, where others may come; else nothing is too long."""
        less = int.from_bytes(mask, "little") & ~self._bits
        return less.to_bytes(len(mask), "little") if less else mask


class DigitRun:
    """How many digits an answer ends with, outside of strings."""

    def __init__(self) -> None:
        self._n = 0
        self._is_text = False
        self._is_escaped = False

    @property
    def is_long(self) -> bool:
        """True when the number should end, or go on with something else."""
        return self._n >= MAX_DIGITS

    def follow(self, data: bytes) -> None:
        """Goes on by what has been written; a control token, without bytes, begins another text."""
        if not data:
            self._n, self._is_text, self._is_escaped = 0, False, False
        for byte in data:
            if self._is_escaped:
                self._is_escaped = False
            elif byte == _QUOTE:
                self._is_text = not self._is_text
            elif self._is_text:
                self._is_escaped = byte == _ESCAPE
            is_counted = not self._is_text and _ZERO <= byte <= _NINE
            self._n = self._n + 1 if is_counted else 0
