"""Who waits for a model, in order of arrival, and how many may wait. No I/O, no clock."""

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from localrun.errors import LocalrunError, QueueFull
from localrun.spec import LoadSpec

T = TypeVar("T")

# Bounds of `Retry-After`: a client should neither hammer nor give up for minutes.
_RETRY_MIN_S, _RETRY_MAX_S = 1, 60

# Weight of the newest request in the running mean of durations.
_EMA_WEIGHT = 0.2


@dataclass(eq=False)
class Waiter(Generic[T]):
    """A request without a lease; `granted` receives it, or the error that ends the wait."""

    spec: LoadSpec
    model: str
    keep_alive_s: float | None
    granted: "asyncio.Future[T]"

    def grant(self, lease: T) -> None:
        """Ends the wait. The reader must still be there."""
        self.granted.set_result(lease)

    def refuse(self, error: LocalrunError) -> None:
        """Ends the wait with `error`; a reader that has left is ignored."""
        if not self.granted.done():
            self.granted.set_exception(error)

    @property
    def has_left(self) -> bool:
        """True when the client is gone: it must never cause a load."""
        return self.granted.done()


class WaitingLine(Generic[T]):
    """Requests that wait for a load, first come, first served."""

    def __init__(self) -> None:
        self._waiters: list[Waiter[T]] = []

    def __len__(self) -> int:
        return len(self._waiters)

    def __iter__(self) -> Iterator[Waiter[T]]:
        return iter(list(self._waiters))

    def join(self, waiter: Waiter[T]) -> None:
        """Goes to the end of the line."""
        self._waiters.append(waiter)

    def leave(self, waiter: Waiter[T]) -> None:
        """Steps out of the line, wherever it stands."""
        self._waiters.remove(waiter)

    def drop_left(self) -> None:
        """Removes those whose client is gone."""
        self._waiters = [waiter for waiter in self._waiters if not waiter.has_left]


class Limit:
    """The bound on requests without a slot, and a guess at when it is worth coming back."""

    def __init__(self, max_queue: int) -> None:
        self._max_queue = max_queue
        self._mean_s = 1.0

    def check(self, n_without_slot: int, n_slots: int) -> None:
        """Raises QueueFull when `n_without_slot` requests already wait for `n_slots` slots."""
        if n_without_slot >= self._max_queue:
            wait_s = self._mean_s * n_without_slot / max(1, n_slots)
            retry_s = min(_RETRY_MAX_S, max(_RETRY_MIN_S, math.ceil(wait_s)))
            raise QueueFull(self._max_queue, retry_s)

    def observe(self, duration_s: float) -> None:
        """Learns from a request that has ended."""
        self._mean_s += _EMA_WEIGHT * (duration_s - self._mean_s)
