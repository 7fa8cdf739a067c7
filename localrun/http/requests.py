"""What handlers take from a request: its JSON body, who sent it, and that one's turn.

Owns how many large bodies are in memory at once and where they are decoded. A large one is decoded
in a thread: the loop that writes everybody's tokens goes on between two of its parts.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TypeVar

from starlette.requests import Request
from starlette.types import Receive, Scope

from localrun.http.keys import SCOPE_KEY, Caller
from localrun.http.refusals import BodyTooSlow
from localrun.http.turns import Turns

T = TypeVar("T")

# A body of this size takes about a millisecond to decode; most are some kB.
_LARGE_BYTES = 1 << 20
# With the limit of 64 MiB for a body they take 256 MiB at most; the next one is not read meanwhile.
_N_LARGE = 4
# From then on somebody may wait for its place. 64 MiB in this time are 2 Mbit/s.
_LARGE_LIMIT_S = 300.0


class Bodies:
    """Reads and decodes the JSON bodies of all requests."""

    def __init__(
        self,
        *,
        large_bytes: int = _LARGE_BYTES,
        n_large: int = _N_LARGE,
        large_limit_s: float = _LARGE_LIMIT_S,
    ) -> None:
        self._large_bytes = large_bytes
        self._large = asyncio.Semaphore(n_large)
        self._large_limit_s = large_limit_s

    async def decoded(self, request: Request, decode: Callable[[bytes], T]) -> T:
        """What `decode` makes of the body. Raises BodyTooSlow, and what it and reading raise."""
        announced = request.headers.get("content-length")
        if announced and announced.isdecimal() and int(announced) <= self._large_bytes:
            return decode(await request.body())
        async with AsyncExitStack() as held:
            body = await self._read(request, held)
            if len(body) > self._large_bytes:
                return await asyncio.to_thread(decode, body)
        return decode(body)

    async def _read(self, request: Request, held: AsyncExitStack) -> bytes:
        """The whole body; the place of a large one is in `held`."""
        pieces: list[bytes] = []
        n_bytes = 0
        try:
            async with asyncio.timeout(None) as limit:
                async for piece in request.stream():
                    was_large = n_bytes > self._large_bytes
                    n_bytes += len(piece)
                    pieces.append(piece)
                    if n_bytes > self._large_bytes and not was_large:
                        await held.enter_async_context(self._large)
                        now_s = asyncio.get_running_loop().time()
                        limit.reschedule(now_s + self._large_limit_s)
        except TimeoutError:
            raise BodyTooSlow(self._large_limit_s) from None
        return b"".join(pieces)


class ApiRequest(Request):
    """A request as handlers see it."""

    def __init__(self, scope: Scope, receive: Receive, bodies: Bodies, turns: Turns) -> None:
        super().__init__(scope, receive)
        self._bodies = bodies
        self._turns = turns

    async def decoded(self, decode: Callable[[bytes], T]) -> T:
        """What `decode` makes of the body, which is read once. Raises what it and reading raise."""
        return await self._bodies.decoded(self, decode)

    @property
    def caller(self) -> Caller:
        """Who asks: the key that the guard found, else the peer's address without its port."""
        return caller_of(self.scope)

    async def take_turn(self) -> Callable[[], None] | None:
        """See `Turns.take`."""
        return await self._turns.take(self.caller.key)


def caller_of(scope: Scope) -> Caller:
    """See `ApiRequest.caller`."""
    caller = scope.get(SCOPE_KEY)
    if isinstance(caller, Caller):
        return caller
    client = scope.get("client")
    return Caller(client[0] if client else "")
