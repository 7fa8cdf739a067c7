"""What readers of an answer's text hand on, pieces that say what they are, and how they read."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
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


class Stepping(ABC):
    """A reader that goes from step to step, each of which takes what it is sure of from `_held`."""

    def __init__(self, step: Callable[[], Iterator[Part]]) -> None:
        self._step = step
        self._held = ""

    def feed(self, text: str) -> Iterator[Part]:
        """See `Reader.feed`."""
        self._held += text
        while self._held:
            before = self._step, len(self._held)
            yield from self._step()
            if before == (self._step, len(self._held)):
                break

    @abstractmethod
    def finish(self, *, is_cut: bool) -> Iterator[Part]:
        """See `Reader.finish`."""


class Plain:
    """The reader of text in which nothing has a meaning of its own."""

    def feed(self, text: str) -> Iterable[Part]:
        """See `Reader.feed`."""
        return (Said(text, len(text)),) if text else ()

    def finish(self, *, is_cut: bool) -> Iterable[Part]:
        """See `Reader.finish`."""
        return ()
