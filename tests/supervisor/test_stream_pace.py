"""How far a reader may be behind before the runner is told."""

import asyncio

from localrun.core import Done, TextDelta, Usage
from localrun.supervisor.stream import AHEAD_BYTES, RequestStream

PIECE = TextDelta("x" * 1000)
N_AHEAD = AHEAD_BYTES // 1000  # a few more than fit, since each piece has JSON around it


def test_a_reader_that_is_behind_pauses_and_one_that_catches_up_resumes() -> None:
    async def main() -> None:
        told: list[tuple[int, bool]] = []
        stream = RequestStream(3, lambda _id: None, lambda *what: told.append(what))
        for _ in range(N_AHEAD):
            stream.put(PIECE)
        assert told == [(3, True)]
        stream.put(PIECE)
        for _ in range(N_AHEAD // 2):
            await anext(stream)
        assert told == [(3, True)], "half is not most"
        for _ in range(N_AHEAD // 2):
            await anext(stream)
        assert told == [(3, True), (3, False)]
        stream.put(Done("stop", Usage()))
        rest = [event async for event in stream]
        assert isinstance(rest[-1], Done)

    asyncio.run(main())


def test_a_reader_that_keeps_up_is_never_paused() -> None:
    async def main() -> None:
        told: list[tuple[int, bool]] = []
        stream = RequestStream(3, lambda _id: None, lambda *what: told.append(what))
        for _ in range(5 * N_AHEAD):
            stream.put(PIECE)
            assert await anext(stream) is PIECE
        assert told == []

    asyncio.run(main())
