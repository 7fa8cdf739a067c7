"""Many texts for one runner: in parts, so that others get their turn and no frame is too large."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator

from msgspec.structs import replace

from localrun.core import EmbedTexts, Question, Reply, Vectors

# Texts of a part: several forwards of short ones. A vector has 16 kB at most, so a reply 4 MB.
_N_TEXTS = 256

# Parts that a runner has at once: while it answers one, it prepares the next.
_N_AHEAD = 2


async def embedded(ask: Callable[[Question], Awaitable[Reply]], wanted: EmbedTexts) -> Vectors:
    """What `ask` answers to all parts of `wanted`, in their order. Raises what it raises.

    Whatever ends this early ends the parts as well.
    """
    if len(wanted.texts) <= _N_TEXTS:
        return await _answer(ask, wanted)
    found: list[Vectors] = []
    asked: deque[asyncio.Task[Vectors]] = deque()
    try:
        for part in _parts(wanted):
            asked.append(asyncio.create_task(_answer(ask, part)))
            if len(asked) == _N_AHEAD:
                found.append(await asked[0])
                asked.popleft()
        while asked:
            found.append(await asked[0])
            asked.popleft()
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    return _joined(found)


async def _answer(ask: Callable[[Question], Awaitable[Reply]], part: EmbedTexts) -> Vectors:
    reply = await ask(part)
    assert isinstance(reply, Vectors)
    return reply


def _parts(wanted: EmbedTexts) -> Iterator[EmbedTexts]:
    for first in range(0, len(wanted.texts), _N_TEXTS):
        yield replace(wanted, texts=wanted.texts[first : first + _N_TEXTS], first=first)


def _joined(parts: list[Vectors]) -> Vectors:
    return Vectors(
        b"".join(part.data for part in parts),
        max((part.n_dims for part in parts), default=0),
        sum(part.n_tokens for part in parts),
        sum(part.n_dropped for part in parts),
    )
