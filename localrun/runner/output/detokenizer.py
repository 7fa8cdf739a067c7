"""Token bytes → text that may be sent: whole characters, never part of a stop string. No I/O."""

import codecs

from localrun.runner.output.scan import n_begun


class Detokenizer:
    """Bytes in, text out, for one sequence; the same text in whatever slices the bytes come.

    An invalid byte becomes one U+FFFD. A tail that may still become a stop string is held back
    and released on a miss. Of two stop strings the one that is complete first ends the text.
    """

    def __init__(self, stop: tuple[str, ...] = ()) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._stop = tuple(filter(None, stop))
        self._held = ""
        # The stop string that has ended the text.
        self.stop_text = ""

    @property
    def is_stopped(self) -> bool:
        """True when nothing more is part of the text."""
        return bool(self.stop_text)

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
            (start + len(stop), start, stop)
            for stop in self._stop
            if (start := text.find(stop)) >= 0
        ]
        if matches:
            _, start, self.stop_text = min(matches)
            self._held = ""
            return text[:start]
        cut = len(text) - n_begun(text, self._stop)
        self._held = text[cut:]
        return text[:cut]
