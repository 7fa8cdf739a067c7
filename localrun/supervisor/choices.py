"""The choices of one call: several requests to one runner, read as one stream.

Owns how many of them are under way and the number that each event carries. Knows neither leases
nor dialects; what a runner does with requests that have the same prompt is its own business.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec

from localrun.core import Done, Event, SamplingParams
from localrun.errors import LocalrunError, Phase
from localrun.supervisor.stream import RequestStream

# llama.cpp's seeds are 32-bit.
_N_SEEDS = 2**32


def sampling_of(sampling: SamplingParams, number: int) -> SamplingParams:
    """How choice `number` of a prompt is sampled: with the seed that follows the one before."""
    if number == 0 or sampling.seed < 0:  # a negative seed is drawn anew for each choice
        return sampling
    return msgspec.structs.replace(sampling, seed=(sampling.seed + number) % _N_SEEDS)


class Choices:
    """`n_choices` streams in order of arrival: pieces, and one `Done` for each choice.

    At most `n_at_once` are under way, the others follow as these end. So a call with many choices
    stands in its runner's line like one request after the other, and not ahead of everybody who
    comes after it. One reader; `close` cancels what still runs. The first error ends them all.
    `n_prompt` is how many tokens the first one's prompt has, once they have begun, and `loosened`
    what its answer is not held to.
    """

    def __init__(
        self, submit: Callable[[int], RequestStream], n_choices: int, n_at_once: int
    ) -> None:
        self._submit = submit
        self._n_choices = n_choices
        self._n_at_once = n_at_once
        self._n_submitted = 0
        self.n_prompt = 0
        self.loosened: tuple[str, ...] = ()
        self._open: dict[int, RequestStream] = {}
        # A number for each event that is ready. A frame of the runner holds a piece of every
        # running choice, so none of them can crowd out the others.
        self._arrived: asyncio.Queue[int] = asyncio.Queue()

    async def begin(self) -> None:
        """Submits the first ones; returns when the runner has accepted all of these.

        Raises what the runner refused one of them with, BadRequest for what cannot be sent.
        """
        self._fill()
        first, *others = self._open.values()
        for stream in (first, *others):
            await stream.accepted()
        self.n_prompt, self.loosened = first.n_prompt, first.loosened

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        if not self._open:
            raise StopAsyncIteration
        index = await self._arrived.get()
        event = await anext(self._open[index])
        if isinstance(event, Done):
            del self._open[index]
            self._fill()
        return msgspec.structs.replace(event, index=index) if index else event

    @property
    def phases(self) -> set[Phase]:
        """Where those that have not ended stand; who has not been submitted waits."""
        phases: set[Phase] = {stream.phase for stream in self._open.values()}
        return phases | {"waiting"} if self._n_submitted < self._n_choices else phases

    def fail(self, error: LocalrunError) -> None:
        """Ends them with `error`, after what has arrived so far."""
        for stream in self._open.values():
            stream.fail(error)

    def close(self) -> None:
        """Nobody reads on: cancels the requests that still run. Idempotent."""
        for stream in self._open.values():
            stream.close()
        self._open.clear()

    def _fill(self) -> None:
        while self._n_submitted < self._n_choices and len(self._open) < self._n_at_once:
            index = self._n_submitted
            stream = self._submit(index)
            self._n_submitted += 1
            self._open[index] = stream
            stream.watch(lambda index=index: self._arrived.put_nowait(index))  # type: ignore[misc]
