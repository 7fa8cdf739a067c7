"""Text for one call: resolve → merge options → lease → a stream of events.

Joins rooms that do not know each other: the store says what a name means, residency leases a
runner that holds it, the runner speaks. Dialects and HTTP stay outside.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol, cast

import msgspec

from localrun.core import (
    FAKE_ARCHITECTURE,
    Call,
    ChatPrompt,
    Done,
    Event,
    LoadSpec,
    Message,
    Prompt,
    Resident,
    SamplingParams,
    Usage,
)
from localrun.errors import RunnerLost, ShuttingDown, Unsupported
from localrun.options import check_options, merge
from localrun.placement.fit import Defaults, place
from localrun.residency.owner import Residency
from localrun.supervisor.client import RequestStream, RunnerClient
from modelstore.gguf import Header, read_header
from modelstore.records import Record
from modelstore.store import Store


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


@dataclass(frozen=True, slots=True)
class ServiceDefaults:
    """Settings that shape every load."""

    placement: Defaults
    n_parallel: int
    kv_cache_type: str = "f16"
    flash_attention: bool | None = None


class InferenceService:
    """The `TextService` of a daemon."""

    def __init__(
        self, store: Store, residency: Residency[RunnerClient], defaults: ServiceDefaults
    ) -> None:
        self._store = store
        self._residency = residency
        self._defaults = defaults
        self._streams: set[RequestStream] = set()
        # A request whose runner died in its prefill may be what killed it: such requests are
        # tried again one at a time, so that a second death names the culprit.
        self._suspects = asyncio.Lock()

    async def open(self, call: Call) -> Answer:
        """See `TextService.open`."""
        began_ns = time.perf_counter_ns()
        work = await asyncio.to_thread(self._prepare, call)
        if work.prompt is None:
            return await self._load_or_unload(call, work)
        events = self._events(call, work, began_ns)
        try:
            await anext(events)
        except BaseException:
            await events.aclose()
            raise
        # Only the first item is None, and that one has been taken.
        return cast(Answer, events)

    def resident(self) -> tuple[Resident, ...]:
        """See `TextService.resident`."""
        return self._residency.resident()

    @property
    def n_open(self) -> int:
        """Requests that a runner works on."""
        return len(self._streams)

    def abort(self) -> None:
        """Ends every request with ShuttingDown, after what it has got so far."""
        for stream in self._streams:
            stream.fail(ShuttingDown())

    # ---- before a runner is needed

    def _prepare(self, call: Call) -> "_Work":
        """Reads files: runs in a worker thread."""
        record = self._store.resolve(call.model)
        if record.model_path is None or record.model_digest is None:
            raise Unsupported(call.model, call.capability)
        self._store.check_files(record)
        header = _header(record.model_path, record.model_digest.text)
        if header.is_embedding_model:
            raise Unsupported(call.model, call.capability)
        own, _unknown = check_options(record.parameters, path="parameters")
        load_options, sampling = merge([own, call.options])
        n_ctx_train = header.arch_int("context_length") or 0
        placement = place(load_options, self._defaults.placement, n_ctx_train=n_ctx_train)
        spec = LoadSpec(
            weights_path=str(record.model_path),
            weights_digest=record.model_digest.text,
            n_ctx=placement.n_ctx,
            n_parallel=self._defaults.n_parallel,
            n_threads=placement.n_threads,
            engine="fake" if header.architecture == FAKE_ARCHITECTURE else "llama",
            adapter_paths=tuple(str(path) for path in record.adapter_paths),
            n_batch=placement.n_batch,
            n_gpu_layers=placement.n_gpu_layers,
            main_gpu=load_options.main_gpu,
            use_mmap=load_options.use_mmap,
            kv_cache_type=self._defaults.kv_cache_type,
            flash_attention=self._defaults.flash_attention,
        )
        return _Work(
            spec,
            record.name.display(),
            _with_model_messages(call, record),
            sampling,
            call.template or record.template,
        )

    async def _load_or_unload(self, call: Call, work: "_Work") -> Answer:
        if call.keep_alive_s == 0:
            self._residency.unload(work.spec.key)
            return _single(Done("unload", Usage()))
        lease = await self._residency.lease(work.spec, work.model, call.keep_alive_s)
        lease.close()
        return _single(Done("load", Usage()))

    # ---- with a runner

    async def _events(
        self, call: Call, work: "_Work", began_ns: int
    ) -> AsyncGenerator[Event | None, None]:
        """None once a runner has accepted the request, then its events.

        A request whose runner died before anything was sent is tried once more: at once if it
        only waited, alone if it was in prefill.
        """
        is_second = is_suspect = is_accepted = has_sent = False
        while True:
            async with AsyncExitStack() as alone:
                if is_suspect:
                    await alone.enter_async_context(self._suspects)
                try:
                    async with aclosing(self._attempt(call, work, began_ns)) as events:
                        async for event in events:
                            if event is not None:
                                has_sent = True
                                await alone.aclose()
                            elif is_accepted:
                                continue
                            is_accepted = True
                            yield event
                    return
                except RunnerLost as error:
                    if is_second or has_sent or error.phase == "decode":
                        raise
                    is_second, is_suspect = True, error.phase != "waiting"

    async def _attempt(
        self, call: Call, work: "_Work", began_ns: int
    ) -> AsyncGenerator[Event | None, None]:
        assert work.prompt is not None
        lease = await self._residency.lease(work.spec, work.model, call.keep_alive_s)
        load_ns = time.perf_counter_ns() - began_ns
        with contextlib.closing(lease):
            stream = lease.runner.submit(
                work.prompt,
                work.sampling,
                n_ctx=min(work.spec.n_ctx, lease.runner.info.n_ctx),
                template=work.template,
                return_context=call.return_context,
            )
            self._streams.add(stream)
            try:
                await stream.accepted()
                yield None
                async for event in stream:
                    yield _timed(event, began_ns, load_ns) if isinstance(event, Done) else event
            finally:
                self._streams.discard(stream)
                stream.close()


@dataclass(frozen=True, slots=True)
class _Work:
    """A call after everything that can be known without a runner."""

    spec: LoadSpec
    model: str
    prompt: Prompt | None
    sampling: SamplingParams
    template: str | None


@lru_cache(maxsize=64)  # headers are a few hundred kB at most; a machine serves a few models
def _header(path: Path, _digest: str) -> Header:
    return read_header(path)


def _with_model_messages(call: Call, record: Record) -> Prompt | None:
    """The prompt with the model's own system text and messages in front.

    Source: Ollama: the model's SYSTEM steps back for the request's; its MESSAGEs are left out
    when token ids of an earlier answer come along.
    """
    prompt = call.prompt
    if not isinstance(prompt, ChatPrompt):
        return prompt
    own: list[Message] = []
    system = record.system if call.system is None else call.system
    if system and prompt.messages[0].role != "system":
        own.append(Message("system", system))
    if not prompt.context:
        own += [Message(m["role"], m["content"]) for m in record.messages]
    return msgspec.structs.replace(prompt, messages=(*own, *prompt.messages))


def _timed(done: Done, began_ns: int, load_ns: int) -> Done:
    total_ns = time.perf_counter_ns() - began_ns
    usage = msgspec.structs.replace(done.usage, load_ns=load_ns, total_ns=total_ns)
    return msgspec.structs.replace(done, usage=usage)


async def _single(event: Event) -> AsyncGenerator[Event, None]:
    yield event
