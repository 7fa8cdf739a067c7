"""Text for one call: resolve → merge options → lease → stream of events."""

from collections.abc import AsyncIterator
from typing import Protocol

from localrun.core import Call, Event, Resident


class Answer(Protocol):
    """The events of one call: `TextDelta`s, then exactly one `Done`.

    Raises an error of `localrun.errors` instead of the `Done` when the answer cannot be finished.
    """

    def __aiter__(self) -> AsyncIterator[Event]: ...

    async def __anext__(self) -> Event: ...

    async def aclose(self) -> None:
        """Ends the request, which is cancelled if it still runs. Idempotent."""
        ...


class TextService(Protocol):
    """What the HTTP layer needs to answer a request for text."""

    async def open(self, call: Call) -> Answer:
        """The answer, once the request is rendered, fits and waits for its slot or has it.

        So every error that deserves a status of its own is raised here, before a byte is sent.
        Raises errors of `localrun.errors` and `modelstore.errors`.
        """
        ...

    def resident(self) -> tuple[Resident, ...]:
        """The models in memory."""
        ...
