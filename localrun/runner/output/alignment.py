"""Which tokens a sent text consists of: log-probabilities wait until their text has left. No I/O.

Knows bytes and counts of characters; the text itself, and what of it is held back, is the
detokenizer's business.
"""

import codecs
from collections import deque
from dataclasses import dataclass

from msgspec.structs import replace

from localrun.core import TokenLogprob


@dataclass(frozen=True, slots=True)
class _Pending:
    """A token, and for each of its bytes the number of the character that it is part of."""

    entry: TokenLogprob
    places: tuple[int, ...]


class Alignment:
    """Tokens in, characters sent in, tokens out, for one sequence.

    A token leaves when the characters have been sent that its last byte belongs to. An invalid byte
    counts as a character of its own, as in the text.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._n_decoded = 0
        self._n_sent = 0
        self._pending: deque[_Pending] = deque()

    def add(self, entry: TokenLogprob) -> None:
        """The next token. One that adds nothing to the text is passed over."""
        if entry.data:
            self._pending.append(_Pending(entry, tuple(map(self._place, entry.data))))

    def _place(self, byte: int) -> int:
        self._n_decoded += len(self._decoder.decode(bytes((byte,))))
        is_in_next = bool(self._decoder.getstate()[0])
        return self._n_decoded if is_in_next else self._n_decoded - 1

    def sent(self, n_chars: int) -> tuple[TokenLogprob, ...]:
        """The tokens that `n_chars` more characters complete."""
        self._n_sent += n_chars
        whole = []
        while self._pending and self._pending[0].places[-1] < self._n_sent:
            whole.append(self._pending.popleft().entry)
        return tuple(whole)

    def finish(self) -> tuple[TokenLogprob, ...]:
        """The part of the next token that was sent; a stop string cut the rest. Nothing follows."""
        if not self._pending:
            return ()
        entry, places = self._pending[0].entry, self._pending[0].places
        n_bytes = sum(place < self._n_sent for place in places)
        self._pending.clear()
        return (replace(entry, data=entry.data[:n_bytes]),) if n_bytes else ()
