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
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import msgspec

from localrun.core import (
    Call,
    ChatPrompt,
    Count,
    CountPrompt,
    Done,
    EmbedTexts,
    Event,
    Message,
    Overflow,
    Prompt,
    Question,
    Reply,
    SamplingParams,
    Usage,
    Vectors,
)
from localrun.errors import BadRequest, RunnerLost, ShuttingDown, Unsupported
from localrun.ipc.messages import Submit
from localrun.memory import Device
from localrun.options import check_options, merge
from localrun.placement.fit import Defaults, place
from localrun.placement.verdicts import Verdicts
from localrun.residency.entry import Lease
from localrun.residency.owner import Residency
from localrun.spec import (
    DEFAULT_N_BATCH,
    FAKE_ARCHITECTURE,
    KvLayout,
    LoadOptions,
    LoadSpec,
    Resident,
    model_key,
)
from localrun.supervisor.choices import Choices, sampling_of
from localrun.supervisor.client import RunnerClient
from localrun.supervisor.stream import RequestStream
from localrun.vectors import embedded
from modelstore.errors import StoreError
from modelstore.gguf import Header, read_model_header
from modelstore.names import ModelName
from modelstore.records import Record
from modelstore.store import Store
from modelstore.templates import active_template

_log = logging.getLogger(__name__)


class Answer(Protocol):
    """The events of one call: pieces of its answers, and one `Done` for each of its choices.

    Raises an error of `localrun.errors`, once, when one of the choices cannot be finished.
    """

    @property
    def n_prompt(self) -> int:
        """Tokens of the first prompt, those included that are in the cache."""
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


@dataclass(frozen=True, slots=True)
class ServiceDefaults:
    """Settings that shape every load."""

    placement: Defaults
    n_parallel: int
    kv_cache_type: str = "f16"
    flash_attention: bool | None = None
    kv_pool: int | None = None
    kv_layout: KvLayout | None = None
    host_tier_bytes: int | None = None
    spreads: bool = False
    rpc_servers: tuple[str, ...] = ()
    tpot_target_ms: float | None = None
    embed_batch: int = DEFAULT_N_BATCH
    embed_delay_s: float = 0.0
    deterministic: bool = False
    cuts_prompts: bool = True


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
        self._defaults = defaults
        self._verdicts = verdicts
        self.answers: set[Choices] = set()
        # A request whose runner died in its prefill may be what killed it: such requests are
        # tried again one at a time, so that a second death names the culprit.
        self.suspects = asyncio.Lock()

    async def open(self, call: Call) -> Answer:
        """See `TextService.open`."""
        if not call.prompts and call.keep_alive_s == 0:
            self.residency.unload(await asyncio.to_thread(self._key_of, call.model))
            return _WithoutText(Done("unload", Usage()))
        began_ns = time.perf_counter_ns()
        work = await self._work(call)
        if not work.prompts:
            lease = await self.residency.lease(work.spec, work.model, call.keep_alive_s)
            lease.close()
            return _WithoutText(Done("load", Usage()))
        answer = _Answer(self, call, work, began_ns)
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
        question = CountPrompt(prompt, work.spec.n_ctx, work.template)
        with contextlib.closing(lease), _in_words_of(call):
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

    async def _embed(self, call: Call, work: "_Work", wanted: EmbedTexts) -> Vectors:
        began_ns = time.perf_counter_ns()
        lease = await self.residency.lease(work.spec, work.model, call.keep_alive_s)
        load_ns = time.perf_counter_ns() - began_ns
        with contextlib.closing(lease), _in_words_of(call):
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
        return len(self.answers)

    def abort(self) -> None:
        """Ends every call with ShuttingDown, after what it has got so far."""
        for choices in self.answers:
            choices.fail(ShuttingDown())

    # ---- before a runner is needed

    async def _work(self, call: Call, *, makes_text: bool = True) -> "_Work":
        devices = await self._devices()
        return await asyncio.to_thread(self._prepare, call, devices, makes_text=makes_text)

    def _prepare(self, call: Call, devices: tuple[Device, ...], *, makes_text: bool) -> "_Work":
        """Reads files: runs in a worker thread."""
        record = self._store.resolve(call.model)
        if record.model_path is None or record.model_digest is None:
            raise Unsupported(call.model, call.capability)
        self._store.check_files(record)
        header = _header(record)
        if header.is_embedding_model and makes_text:
            raise Unsupported(call.model, call.capability)
        own, _unknown = check_options(record.parameters, path="parameters")
        defaults = {"deterministic": self._defaults.deterministic}
        load_options, sampling = merge([defaults, own, call.options])
        sampling = msgspec.structs.replace(sampling, top_logprobs=call.top_logprobs)
        return _Work(
            self._load_spec(record, header, load_options, devices),
            record.name.display(),
            tuple(_with_model_messages(prompt, call.system, record) for prompt in call.prompts),
            sampling,
            Overflow(self._defaults.cuts_prompts if call.cuts is None else call.cuts, call.shifts),
            call.template or active_template(record, header).go,
        )

    def _load_spec(
        self, record: Record, header: Header, asked: LoadOptions, devices: tuple[Device, ...]
    ) -> LoadSpec:
        assert record.model_digest is not None
        defaults = self._defaults
        n_ctx_train = header.arch_int("context_length") or 0
        placement = place(asked, defaults.placement, n_ctx_train=n_ctx_train, devices=devices)
        spec = LoadSpec(
            weights_path=str(record.model_path),
            weights_digest=record.model_digest.text,
            more_weights_paths=tuple(str(path) for path in record.model_paths[1:]),
            n_ctx=placement.n_ctx,
            n_parallel=defaults.n_parallel,
            n_threads=placement.n_threads,
            engine="fake" if header.architecture == FAKE_ARCHITECTURE else "llama",
            adapter_paths=tuple(str(path) for path in record.adapter_paths),
            n_batch=placement.n_batch,
            n_gpu_layers=placement.n_gpu_layers,
            main_gpu=asked.main_gpu,
            tensor_split=asked.tensor_split,
            gpu_overhead_bytes=defaults.placement.gpu_overhead_bytes,
            spreads=defaults.spreads,
            rpc_servers=defaults.rpc_servers,
            use_mmap=asked.use_mmap,
            kv_cache_type=defaults.kv_cache_type,
            flash_attention=defaults.flash_attention,
            kv_pool=defaults.kv_pool,
            kv_layout=defaults.kv_layout,
            host_tier_bytes=defaults.host_tier_bytes,
            tpot_target_ms=defaults.tpot_target_ms,
            embeds=header.is_embedding_model,
            embed_batch=defaults.embed_batch,
            embed_delay_s=defaults.embed_delay_s,
            admission=asked.admission or "continuous",
            asked=asked,
        )
        return msgspec.structs.replace(spec, verdict=self._verdicts.find(spec))

    def _key_of(self, name: str | ModelName) -> str:
        """What is in memory when this model is. Reads files, but not those of the weights."""
        record = self._store.resolve(name)
        digest = record.model_digest.text if record.model_digest else ""
        return model_key(digest, tuple(str(path) for path in record.adapter_paths))

    def _is_named(self, resident: Resident) -> bool:
        """Reads files."""
        names: Iterator[str | ModelName] = itertools.chain(
            [resident.model], (listing.name for listing in self._store.list())
        )
        for name in names:
            with contextlib.suppress(StoreError):
                if self._key_of(name) == resident.key:
                    return True
        return False


class _Answer:
    """One call's way through residency and a runner; see `Answer`.

    All its choices share one lease, and what becomes of them when their runner dies: as long as
    nothing was sent they are tried once more, all together; at once if they only waited, alone if
    one of them was in prefill.
    """

    def __init__(self, service: InferenceService, call: Call, work: "_Work", began_ns: int) -> None:
        self._service = service
        self._call = call
        self._work = work
        self._began_ns = began_ns
        self._load_ns = 0
        self._lease: Lease[RunnerClient] | None = None
        self._choices: Choices | None = None
        self._is_second = self._is_alone = self._has_sent = False

    async def begin(self) -> None:
        """Returns when a runner has accepted the first choices, one for each of its slots."""
        try:
            with _in_words_of(self._call):
                await self._attempt()
        except RunnerLost as error:
            await self._try_again(error)

    @property
    def n_prompt(self) -> int:
        """See `Answer.n_prompt`."""
        return self._choices.n_prompt if self._choices is not None else 0

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        assert self._choices is not None
        try:
            event = await anext(self._choices)
        except RunnerLost as error:
            await self._try_again(error)
            return await self.__anext__()
        self._has_sent = True
        if self._is_alone and self._choices.phases <= {"decode"}:
            self._let_others_try()
        if isinstance(event, Done):
            return _timed(event, self._began_ns, self._load_ns)
        return event

    async def aclose(self) -> None:
        """Ends the request, which is cancelled if it still runs. Idempotent."""
        self._give_back()
        self._let_others_try()

    async def _attempt(self) -> None:
        work = self._work
        self._lease = await self._service.residency.lease(
            work.spec, work.model, self._call.keep_alive_s
        )
        self._load_ns = time.perf_counter_ns() - self._began_ns
        n_slots = self._lease.runner.info.n_slots
        self._choices = Choices(self._submit, self._call.n_choices, n_at_once=n_slots)
        self._service.answers.add(self._choices)
        await self._choices.begin()

    def _submit(self, index: int) -> RequestStream:
        assert self._lease is not None
        work, runner = self._work, self._lease.runner
        n_prompt, number = divmod(index, self._call.n_each)
        return runner.submit(
            Submit(
                0,
                work.prompts[n_prompt],
                sampling_of(work.sampling, number),
                work.spec.n_ctx,
                work.overflow,
                work.template,
                self._call.return_context,
                self._call.client,
                self._call.scope,
                self._call.schema,
            )
        )

    async def _try_again(self, error: RunnerLost) -> None:
        """Raises `error` when the request must not be tried again."""
        if self._is_second or self._has_sent or error.phase == "decode":
            raise error
        assert self._choices is not None
        have_all_waited = self._choices.phases == {"waiting"}
        self._is_second = True
        self._give_back()
        if not have_all_waited:
            await self._service.suspects.acquire()
            self._is_alone = True
        await self._attempt()

    def _give_back(self) -> None:
        if self._choices is not None:
            self._service.answers.discard(self._choices)
            self._choices.close()
        if self._lease is not None:
            self._lease.close()

    def _let_others_try(self) -> None:
        if self._is_alone:
            self._is_alone = False
            self._service.suspects.release()


class _WithoutText:
    """The `Answer` to a call that only loads a model, or lets one go."""

    n_prompt = 0

    def __init__(self, done: Done) -> None:
        self._events: Iterator[Event] = iter((done,))

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        for event in self._events:
            return event
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """There is nothing to end."""


@dataclass(frozen=True, slots=True)
class _Work:
    """A call after everything that can be known without a runner."""

    spec: LoadSpec
    model: str
    prompts: tuple[Prompt, ...]
    sampling: SamplingParams
    overflow: Overflow
    template: str | None


def _header(record: Record) -> Header:
    """The model's header, after a look at all files that the engine will open.

    Raises InvalidGGUF for one that is damaged, also since it was looked at last.
    """
    for path in record.adapter_paths:
        _checked_header((path,), _stamps((path,)))
    return _checked_header(record.model_paths, _stamps(record.model_paths))


def _stamps(paths: tuple[Path, ...]) -> tuple[tuple[int, int], ...]:
    found = (path.stat() for path in paths)
    return tuple((one.st_size, one.st_mtime_ns) for one in found)


@lru_cache(maxsize=64)  # headers are a few hundred kB at most; a machine serves a few models
def _checked_header(paths: tuple[Path, ...], _stamps: tuple[tuple[int, int], ...]) -> Header:
    return read_model_header(paths)


def _with_model_messages(prompt: Prompt, call_system: str | None, record: Record) -> Prompt:
    """The prompt with the model's own system text and messages in front.

    Source: Ollama: the model's SYSTEM steps back for the request's; its MESSAGEs are left out
    when token ids of an earlier answer come along.
    """
    if not isinstance(prompt, ChatPrompt):
        return prompt
    own: list[Message] = []
    system = record.system if call_system is None else call_system
    if system and prompt.messages[0].role != "system":
        own.append(Message("system", system))
    if not prompt.context:
        own += [Message(m["role"], m["content"]) for m in record.messages]
    return msgspec.structs.replace(prompt, messages=(*own, *prompt.messages))


def _client_path(path: str, call: Call) -> str:
    """A path in the words of the call's dialect: a runner calls all fields as Ollama does."""
    field, dot, rest = path.partition(".")
    return call.places.get(field, field) + dot + rest


def _timed(done: Done, began_ns: int, load_ns: int) -> Done:
    total_ns = time.perf_counter_ns() - began_ns
    usage = msgspec.structs.replace(done.usage, load_ns=load_ns, total_ns=total_ns)
    return msgspec.structs.replace(done, usage=usage)


@contextlib.contextmanager
def _in_words_of(call: Call) -> Iterator[None]:
    """A runner knows neither how its model is called nor how a dialect calls the fields."""
    try:
        yield
    except Unsupported as error:
        path = _client_path(error.path, call)
        raise Unsupported(call.model, error.capability, path) from None
    except BadRequest as error:
        raise BadRequest(_client_path(error.path, call), error.problem) from None
