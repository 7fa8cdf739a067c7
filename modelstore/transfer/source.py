"""Where a transfer gets its bytes from, as it sees it: a protocol, and one delivery of bytes."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self


@dataclass(frozen=True, slots=True)
class Delivery:
    """Bytes from `start` on, sent by `host`.

    `is_whole`: the range was ignored, and everything comes, from 0.
    """

    host: str
    start: int
    is_whole: bool
    chunks: Iterator[bytes]


class Source(Protocol):
    """One file somewhere. Safe to share between threads; a context manager that closes it."""

    def open(self, start: int, end: int) -> AbstractContextManager[Delivery]:
        """The bytes from `start` up to `end`, or the whole file where that is not possible.

        Raises errors of `modelstore.errors`, and `Stopped` when nobody wants the bytes any more;
        so does iterating the chunks.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
