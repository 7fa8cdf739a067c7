"""An answer's text → what the model thinks, and the rest, which another reader gets. No I/O.

Thinking stands in front of the answer, between two tags; the prompt may have opened it already.
White space behind the opening tag and around the closing one is markup. Anywhere else a tag is
text: an answer may explain what tags are. Source: Ollama's generic parser.
"""

from collections.abc import Iterator

from localrun.runner.output.parts import Part, Reader, Said, Stepping, Thought
from localrun.runner.output.scan import n_begun
from localrun.runner.structured.constraint import ThinkTags

# White space is held back in case a tag follows. Nobody misses a trim of more than this, and
# what is held is looked at again with every piece.
MAX_HELD_BLANKS = 64


class ThinkingReader(Stepping):
    """Splits off the thinking in front; see `Reader`."""

    def __init__(self, tags: ThinkTags, rest: Reader, *, is_thinking: bool) -> None:
        """`rest` reads what follows; `is_thinking` when the prompt has opened the thinking."""
        super().__init__(self._inside if is_thinking else self._before)
        self._opening, self._closing = tags.opening, tags.closing
        self._rest = rest
        self._is_first = True  # nothing of the thinking has been said

    def finish(self, *, is_cut: bool) -> Iterator[Part]:
        """See `Reader.finish`."""
        held, self._held = self._held, ""
        if self._step == self._inside:
            yield Thought(held.rstrip(), len(held))
        else:
            yield from self._rest.feed(held)
        yield from self._rest.finish(is_cut=is_cut)

    # Each step takes what it is sure of from what is held.

    def _before(self) -> Iterator[Part]:
        text = self._held.lstrip()
        n_blank = len(self._held) - len(text)
        if text.startswith(self._opening):
            yield self._drop(n_blank + len(self._opening))
            self._step = self._inside
        elif not self._opening.startswith(text) or n_blank > MAX_HELD_BLANKS:
            self._step = self._after

    def _inside(self) -> Iterator[Part]:
        if self._is_first:
            text = self._held.lstrip()
            n_blank = len(self._held) - len(text)
            if n_blank:
                yield self._drop(n_blank)
            # The model may say once more what the prompt has said.
            if text.startswith(self._opening):
                yield self._drop(len(self._opening))
                return
            if self._opening.startswith(text):
                return
        place = self._held.find(self._closing)
        if place >= 0:
            yield self._think(place)
            yield self._drop(len(self._closing))
            self._step = self._behind
            return
        n_sure = len(self._held) - n_begun(self._held, (self._closing,))
        n_said = len(self._held[:n_sure].rstrip())
        if n_sure - n_said > MAX_HELD_BLANKS:
            n_said = n_sure
        if n_said:
            text, self._held = self._held[:n_said], self._held[n_said:]
            self._is_first = False
            yield Thought(text, n_said)

    def _behind(self) -> Iterator[Part]:
        text = self._held.lstrip()
        if n_blank := len(self._held) - len(text):
            yield self._drop(n_blank)
        if text:
            self._step = self._after

    def _after(self) -> Iterator[Part]:
        held, self._held = self._held, ""
        yield from self._rest.feed(held)

    def _think(self, n_chars: int) -> Part:
        text, self._held = self._held[:n_chars], self._held[n_chars:]
        return Thought(text.rstrip(), n_chars)

    def _drop(self, n_chars: int) -> Part:
        self._held = self._held[n_chars:]
        return Said("", n_chars)
