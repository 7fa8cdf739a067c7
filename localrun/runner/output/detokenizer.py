"""Token bytes → text that may be sent: whole characters, never part of a stop string. No I/O."""

import codecs


class Detokenizer:
    """Bytes in, text out, for one sequence; the same text in whatever slices the bytes come.

    An invalid byte becomes one U+FFFD. A tail that may still become a stop string is held back
    and released on a miss. Of two stop strings the one that is complete first ends the text.
    """

    def __init__(self, stop: tuple[str, ...] = ()) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._stop = stop
        self._held = ""
        self.is_stopped = False

    def feed(self, data: bytes) -> str:
        """Text that `data` makes certain; empty after the stop."""
        if self.is_stopped:
            return ""
        text = self._decode(data)
        if not self._stop:
            return text
        return self._search(self._held + text)

    def finish(self) -> str:
        """The held-back text, once no more bytes come. Half a character at the end is dropped."""
        held, self._held = self._held, ""
        return "" if self.is_stopped else held

    def _search(self, text: str) -> str:
        matches = [
            (start + len(stop), start) for stop in self._stop if (start := text.find(stop)) >= 0
        ]
        if matches:
            self.is_stopped = True
            self._held = ""
            return text[: min(matches)[1]]
        n_held = max(_n_overlap(text, stop) for stop in self._stop)
        cut = len(text) - n_held
        self._held = text[cut:]
        return text[:cut]


def _n_overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning, but not all, of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
