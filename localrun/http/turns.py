"""How much one API key may have at once: who runs, who waits at the door, who is sent away.

Owns the counts, on the event loop. It knows keys by name only, and no dialects; what happens to
a request behind the door, a slot in a runner, is decided by fairness among clients there.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from localrun.core import Event
from localrun.http.keys import Key
from localrun.http.refusals import KeyBusy
from localrun.service import Answer

# Nobody knows when an answer ends; a second is short for a person and long for a loop of retries.
_RETRY_AFTER_S = 1


@dataclass(slots=True)
class _Line:
    n_running: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class Turns:
    """At most `max_running` requests of a key at once and `max_waiting` that wait for these.

    None for `max_running` is no limit. First come, first served.
    """

    def __init__(self, max_running: int | None = None, max_waiting: int = 0) -> None:
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._lines: dict[str, _Line] = {}

    async def take(self, key: Key | None) -> Callable[[], None] | None:
        """Returns when the key has a turn; what it returns gives the turn back, and is idempotent.

        None where there is no limit, and so nothing to give back.

        Raises: KeyBusy, at once, when too many wait.
        """
        if key is None or self._max_running is None:
            return None
        line = self._lines.setdefault(key.name, _Line())
        if line.n_running < self._max_running:
            line.n_running += 1
        elif len(line.waiting) < self._max_waiting:
            await self._wait(key.name, line)
        else:
            raise KeyBusy(line.n_running, len(line.waiting), _RETRY_AFTER_S)
        is_held = True

        def give_back() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._give_back(key.name, line)

        return give_back

    async def _wait(self, name: str, line: _Line) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.waiting.append(turn)
        try:
            await turn  # whoever ends hands its turn on, so that `n_running` stays
        except asyncio.CancelledError:
            if turn.cancelled():
                with contextlib.suppress(ValueError):  # passed over by somebody who ended
                    line.waiting.remove(turn)
            else:  # both happened: the turn came, and nobody is left to take it
                self._give_back(name, line)
            raise

    def _give_back(self, name: str, line: _Line) -> None:
        while line.waiting:
            turn = line.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        line.n_running -= 1
        if not line.n_running:
            self._lines.pop(name, None)


class HeldAnswer:
    """An answer that gives a turn back when it is closed."""

    def __init__(self, answer: Answer, give_back: Callable[[], None]) -> None:
        self._answer = answer
        self._give_back = give_back

    @property
    def n_prompt(self) -> int:
        """See `Answer.n_prompt`."""
        return self._answer.n_prompt

    @property
    def loosened(self) -> tuple[str, ...]:
        """See `Answer.loosened`."""
        return self._answer.loosened

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        return await self._answer.__anext__()

    async def aclose(self) -> None:
        """Ends the request, then the turn. Idempotent."""
        try:
            await self._answer.aclose()
        finally:
            self._give_back()
