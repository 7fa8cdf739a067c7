"""Text for one call: resolve → merge options → lease → a stream of events.

Joins rooms that do not know each other: the store says what a name means, residency leases a
runner that holds it, the runner speaks. Dialects and HTTP stay outside.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Protocol

import msgspec

from localrun.answering import CallAnswer, Ongoing, WithoutText, in_words_of
from localrun.core import (
    Call,
    ChatPrompt,
    Count,
    CountPrompt,
    Done,
    EmbedTexts,
    Event,
    Question,
    Reply,
    Usage,
    Vectors,
)
from localrun.errors import RunnerLost, ShuttingDown
from localrun.memory import Device
from localrun.placement.verdicts import Verdicts
from localrun.preparing import Preparing, ServiceDefaults, Work
from localrun.residency.owner import Residency
from localrun.spec import Resident
from localrun.supervisor.client import RunnerClient
from localrun.vectors import embedded
from modelstore.errors import StoreError
from modelstore.names import ModelName
from modelstore.store import Store

_log = logging.getLogger(__name__)


class Answer(Protocol):
    """The events of one call: pieces of its answers, and one `Done` for each of its choices.

    Raises an error of `localrun.errors`, once, when one of the choices cannot be finished.
    """

    @property
    def n_prompt(self) -> int:
        """Tokens of the first prompt, those included that are in the cache."""
        ...

    @property
    def loosened(self) -> tuple[str, ...]:
        """What of the tools' schemas calls are not held to, as "tool: place in its schema"."""
        ...

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
        Of a call with more choices than slots this holds for the first ones, one for each slot.
        Raises errors of `localrun.errors` and `modelstore.errors`.
        """
        ...

    async def ask(self, call: Call, question: Question) -> Reply:
        """What the vocabulary of the call's model says; loads the model as for a prompt.

        Raises errors of `localrun.errors` and `modelstore.errors`.
        """
        ...

    async def count(self, call: Call) -> int:
        """How many tokens the first prompt of `call`, a chat, comes to; loads the model for it.

        Raises errors of `localrun.errors` and `modelstore.errors`.
        """
        ...

    async def embed(self, call: Call, wanted: EmbedTexts) -> Vectors:
        """The vectors of all texts, made by the call's model; without a text it is loaded only.

        Raises errors of `localrun.errors` and `modelstore.errors`.
        """
        ...

    def resident(self) -> tuple[Resident, ...]:
        """The models in memory."""
        ...

    async def unload_unnamed(self) -> None:
        """Lets models go to which no name of the store leads any more; to be called after changes.

        Nobody could stop them, and their memory would stay taken.
        """
        ...


async def _no_devices() -> tuple[Device, ...]:
    return ()


class InferenceService:
    """The `TextService` of a daemon."""

    def __init__(
        self,
        store: Store,
        residency: Residency[RunnerClient],
        defaults: ServiceDefaults,
        verdicts: Verdicts,
        devices: Callable[[], Awaitable[tuple[Device, ...]]] = _no_devices,
    ) -> None:
        """`devices` tells those of the machine; the first call may wait for that."""
        self._store = store
        self._devices = devices
        self.residency = residency
        self._preparing = Preparing(store, defaults, verdicts)
        self._ongoing = Ongoing(residency)

    async def open(self, call: Call) -> Answer:
        """See `TextService.open`."""
        if not call.prompts and call.keep_alive_s == 0:
            self.residency.unload(await asyncio.to_thread(self._preparing.key_of, call.model))
            return WithoutText(Done("unload", Usage()))
        began_ns = time.perf_counter_ns()
        work = await self._work(call)
        if not work.prompts:
            lease = await self.residency.lease(work.spec, work.model, call.keep_alive_s)
            lease.close()
            return WithoutText(Done("load", Usage()))
        answer = CallAnswer(self._ongoing, call, work, began_ns)
        try:
            await answer.begin()
        except BaseException:
            await answer.aclose()
            raise
        return answer

    async def ask(self, call: Call, question: Question) -> Reply:
        """See `TextService.ask`."""
        work = await self._work(call, makes_text=False)
        lease = await self.residency.lease(work.spec, work.model, call.keep_alive_s)
        with contextlib.closing(lease):
            return await lease.runner.ask(question)

    async def count(self, call: Call) -> int:
        """See `TextService.count`."""
        work = await self._work(call)
        prompt = work.prompts[0]
        assert isinstance(prompt, ChatPrompt)
        lease = await self.residency.lease(work.spec, work.model, call.keep_alive_s)
        question = CountPrompt(prompt, work.template)
        with contextlib.closing(lease), in_words_of(call):
            reply = await lease.runner.ask(question)
        assert isinstance(reply, Count)
        return reply.n_tokens

    async def embed(self, call: Call, wanted: EmbedTexts) -> Vectors:
        """See `TextService.embed`. Tried once more when the runner dies: nothing was sent yet."""
        began_ns = time.perf_counter_ns()
        work = await self._work(call, makes_text=False)
        wanted = msgspec.structs.replace(wanted, n_ctx=work.spec.n_ctx)
        try:
            vectors = await self._embed(call, work, wanted)
        except RunnerLost:
            vectors = await self._embed(call, work, wanted)
        return msgspec.structs.replace(vectors, total_ns=time.perf_counter_ns() - began_ns)

    async def _embed(self, call: Call, work: Work, wanted: EmbedTexts) -> Vectors:
        began_ns = time.perf_counter_ns()
        lease = await self.residency.lease(work.spec, work.model, call.keep_alive_s)
        load_ns = time.perf_counter_ns() - began_ns
        with contextlib.closing(lease), in_words_of(call):
            vectors = await embedded(lease.runner.ask, wanted)
        return msgspec.structs.replace(vectors, load_ns=load_ns)

    def resident(self) -> tuple[Resident, ...]:
        """See `TextService.resident`."""
        return self.residency.resident()

    async def unload_unnamed(self) -> None:
        """See `TextService.unload_unnamed`."""
        for resident in self.resident():
            try:
                is_named = await asyncio.to_thread(self._is_named, resident)
            except (StoreError, OSError) as error:
                _log.warning("%s stays in memory: %s", resident.model, error)
            else:
                if not is_named:
                    self.residency.unload(resident.key)

    @property
    def n_open(self) -> int:
        """Calls that a runner works on."""
        return len(self._ongoing.answers)

    def abort(self) -> None:
        """Ends every call with ShuttingDown, after what it has got so far."""
        for choices in self._ongoing.answers:
            choices.fail(ShuttingDown())

    # ---- before a runner is needed

    async def _work(self, call: Call, *, makes_text: bool = True) -> Work:
        devices = await self._devices()
        work = self._preparing.at_once(call, devices, makes_text=makes_text)
        if work is None:
            work = await asyncio.to_thread(
                self._preparing.work, call, devices, makes_text=makes_text
            )
        return work

    def _is_named(self, resident: Resident) -> bool:
        """Reads files."""
        names: Iterator[str | ModelName] = itertools.chain(
            [resident.model], (listing.name for listing in self._store.list())
        )
        for name in names:
            with contextlib.suppress(StoreError):
                if self._preparing.key_of(name) == resident.key:
                    return True
        return False
