"""What the readers of an answer's text hand on: pieces that say what they are. Values only."""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from localrun.core import ToolCall


class Said(NamedTuple):
    """`n_chars` characters of the answer that `text` is shown for; the rest of them is markup."""

    text: str
    n_chars: int


class Thought(NamedTuple):
    """As `Said`, of what the model thinks."""

    text: str
    n_chars: int


class Called(NamedTuple):
    """Characters of the answer that are a call."""

    call: ToolCall
    n_chars: int


Part = Said | Thought | Called


class Reader(Protocol):
    """Text in, in whatever slices, parts out: the same parts but for where they are cut.

    The parts follow the order of the text, and their counts of characters sum up to its length.
    """

    def feed(self, text: str) -> Iterable[Part]:
        """The parts that `text` makes certain."""
        ...

    def finish(self, *, is_cut: bool) -> Iterable[Part]:
        """The rest, once no more text comes; `is_cut` when the model would have said more."""
        ...


class Plain:
    """The reader of text in which nothing has a meaning of its own."""

    def feed(self, text: str) -> Iterable[Part]:
        """See `Reader.feed`."""
        return (Said(text, len(text)),) if text else ()

    def finish(self, *, is_cut: bool) -> Iterable[Part]:
        """See `Reader.finish`."""
        return ()
