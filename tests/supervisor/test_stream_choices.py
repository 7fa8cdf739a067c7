"""Many requests to one runner as one stream: order, waves, errors, and the end of all of them."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from localrun.core import Done, Event, SamplingParams, TextDelta, Usage
from localrun.errors import EngineFailed, RunnerLost
from localrun.supervisor.choices import Choices, sampling_of
from localrun.supervisor.stream import RequestStream

DONE = Done("stop", Usage())


class Desk:
    """The runner: what was submitted, and who was cancelled."""

    def __init__(self, n_choices: int, n_at_once: int = 8) -> None:
        self.streams: list[RequestStream] = []
        self.cancelled: list[int] = []
        self.choices = Choices(self.submit, n_choices, n_at_once)

    def submit(self, index: int) -> RequestStream:
        assert index == len(self.streams), "in order, each once"
        stream = RequestStream(index, self.cancelled.append)
        stream.accept(3)
        self.streams.append(stream)
        return stream


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 30))


async def take(choices: Choices, n: int) -> list[Event]:
    return [await anext(choices) for _ in range(n)]


def test_events_come_in_order_of_arrival_with_their_numbers() -> None:
    async def main() -> None:
        desk = Desk(2)
        await desk.choices.begin()
        first, second = desk.streams
        for stream, event in [(second, TextDelta("b")), (first, TextDelta("a")), (second, DONE)]:
            stream.put(event)
        first.put(DONE)
        events = [event async for event in desk.choices]
        assert events == [
            TextDelta("b", 1),
            TextDelta("a", 0),
            Done("stop", Usage(), index=1),
            Done("stop", Usage(), index=0),
        ]

    run(main)


def test_no_more_than_the_slots_are_under_way_and_the_next_follows_an_end() -> None:
    async def main() -> None:
        desk = Desk(5, n_at_once=2)
        await desk.choices.begin()
        ended = []
        while len(ended) < 5:
            assert len(desk.streams) == min(5, len(ended) + 2)
            desk.streams[len(ended)].put(DONE)
            ended += [event.index for event in await take(desk.choices, 1)]
        assert ended == [0, 1, 2, 3, 4]
        assert [event async for event in desk.choices] == []

    run(main)


def test_a_reader_that_waits_is_woken_by_any_choice() -> None:
    async def main() -> None:
        desk = Desk(3)
        await desk.choices.begin()
        waits = asyncio.ensure_future(anext(desk.choices))
        await asyncio.sleep(0)
        desk.streams[2].put(TextDelta("x"))
        assert await waits == TextDelta("x", 2)

    run(main)


def test_a_refusal_of_one_prompt_is_raised_before_anything_is_read() -> None:
    async def main() -> None:
        desk = Desk(2)
        submit = desk.choices._submit

        def refuse_second(index: int) -> RequestStream:
            if index == 0:
                return submit(index)
            stream = RequestStream(index, desk.cancelled.append)
            stream.fail(EngineFailed(1))
            return stream

        choices = Choices(refuse_second, 2, 8)
        with pytest.raises(EngineFailed):
            await choices.begin()
        choices.close()
        assert desk.cancelled == [0, 1]

    run(main)


def test_an_error_comes_after_what_has_arrived_and_close_cancels_the_others() -> None:
    async def main() -> None:
        desk = Desk(3)
        await desk.choices.begin()
        desk.streams[0].put(TextDelta("a"))
        desk.streams[1].fail(RunnerLost("decode", "gone"))
        assert await take(desk.choices, 1) == [TextDelta("a")]
        with pytest.raises(RunnerLost):
            await anext(desk.choices)
        desk.choices.close()
        assert desk.cancelled == [0, 1, 2]
        assert [event async for event in desk.choices] == []

    run(main)


def test_the_phases_are_those_of_all_that_have_not_ended() -> None:
    async def main() -> None:
        desk = Desk(3, n_at_once=2)
        await desk.choices.begin()
        assert desk.choices.phases == {"waiting"}
        desk.streams[0].phase = "prefill"
        desk.streams[1].phase = "decode"
        assert desk.choices.phases == {"waiting", "prefill", "decode"}
        for number in (0, 1):
            desk.streams[number].put(DONE)
        await take(desk.choices, 2)
        desk.streams[2].phase = "decode"
        assert desk.choices.phases == {"decode"}

    run(main)


@pytest.mark.parametrize(
    ("seed", "number", "expected"),
    [(7, 0, 7), (7, 3, 10), (-1, 3, -1), (2**32 - 1, 1, 0), (2**64 - 1, 0, 2**64 - 1)],
)
def test_a_seed_is_counted_on_for_each_choice(seed: int, number: int, expected: int) -> None:
    assert sampling_of(SamplingParams(seed=seed), number).seed == expected
