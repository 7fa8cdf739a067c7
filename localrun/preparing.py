"""A call → everything about it that can be known without a runner.

Reads files, so most of it is for threads; what was read once is looked at only, until it changes.
Owns the order in which options count (defaults < GGUF < Modelfile < request) and what of a model's
own texts comes along.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from localrun.core import Call, ChatPrompt, Message, Overflow, Prompt, SamplingParams
from localrun.errors import Unsupported
from localrun.memory import Device
from localrun.options import check_options, merge
from localrun.placement.fit import Defaults, place
from localrun.placement.verdicts import Verdicts
from localrun.spec import (
    FAKE_ARCHITECTURE,
    KvLayout,
    LoadOptions,
    LoadSpec,
    model_key,
)
from modelstore.cache import LruCache
from modelstore.gguf import Header, read_model_header
from modelstore.names import ModelName
from modelstore.records import Record
from modelstore.store import Store
from modelstore.templates import active_template


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
    embed_batch: int | None = None
    embed_delay_s: float = 0.0
    deterministic: bool = False
    cuts_prompts: bool = True


@dataclass(frozen=True, slots=True)
class Work:
    """A call after everything that can be known without a runner."""

    spec: LoadSpec
    model: str
    prompts: tuple[Prompt, ...]
    sampling: SamplingParams
    overflow: Overflow
    template: str | None


class Preparing:
    """Makes `Work` of calls. All methods but `at_once` read files: to be run in worker threads."""

    def __init__(self, store: Store, defaults: ServiceDefaults, verdicts: Verdicts) -> None:
        self._store = store
        self._defaults = defaults
        self._verdicts = verdicts

    def work(self, call: Call, devices: tuple[Device, ...], *, makes_text: bool) -> Work:
        """Raises errors of `localrun.errors` and `modelstore.errors`."""
        record = self._store.resolve(call.model)
        self._check(call, record)
        return self._work(call, record, _header(record), devices, makes_text=makes_text)

    def at_once(self, call: Call, devices: tuple[Device, ...], *, makes_text: bool) -> Work | None:
        """As `work` where nothing has changed since an earlier one of this model; None else.

        Takes a tenth of a millisecond of `stat` calls: less than the way to a thread and back.
        """
        record = self._store.at_hand(call.model)
        if record is None:
            return None
        self._check(call, record)
        header = _header_at_hand(record)
        if header is None:
            return None
        return self._work(call, record, header, devices, makes_text=makes_text)

    def _check(self, call: Call, record: Record) -> None:
        if record.model_path is None or record.model_digest is None:
            raise Unsupported(call.model, call.capability)
        self._store.check_files(record)

    def _work(
        self,
        call: Call,
        record: Record,
        header: Header,
        devices: tuple[Device, ...],
        *,
        makes_text: bool,
    ) -> Work:
        if header.is_embedding_model and makes_text:
            raise Unsupported(call.model, call.capability)
        own, _unknown = check_options(record.parameters, path="parameters")
        defaults = {"deterministic": self._defaults.deterministic}
        load_options, sampling = merge([defaults, own, call.options])
        sampling = msgspec.structs.replace(sampling, top_logprobs=call.top_logprobs)
        template = call.template or None
        if template is None and call.prompts:
            template = active_template(record, header).go
        return Work(
            self._load_spec(record, header, load_options, devices),
            record.name.display(),
            tuple(_with_model_messages(prompt, call.system, record) for prompt in call.prompts),
            sampling,
            Overflow(self._defaults.cuts_prompts if call.cuts is None else call.cuts, call.shifts),
            template,
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

    def key_of(self, name: str | ModelName) -> str:
        """What is in memory when this model is. Reads files, but not those of the weights."""
        record = self._store.resolve(name)
        digest = record.model_digest.text if record.model_digest else ""
        return model_key(digest, tuple(str(path) for path in record.adapter_paths))


# Headers are a few hundred kB at most; a machine serves a few models.
_headers: LruCache[Header] = LruCache(64)


def _header(record: Record) -> Header:
    """The model's header, after a look at all files that the engine will open.

    Raises InvalidGGUF for one that is damaged, also since it was looked at last.
    """
    *_, header = [_read(paths) for paths in _parts(record)]
    return header


def _parts(record: Record) -> list[tuple[Path, ...]]:
    """The files of each GGUF that the engine will open, the model's own last."""
    return [*((path,) for path in record.adapter_paths), record.model_paths]


def _read(paths: tuple[Path, ...]) -> Header:
    stamps = _stamps(paths)
    header = _headers.get(stamps)
    if header is None:
        header = read_model_header(paths)
        _headers.put(stamps, header)
    return header


def _header_at_hand(record: Record) -> Header | None:
    """What `_header` returns, if no file has to be opened for it."""
    *others, header = (_headers.get(_stamps(paths)) for paths in _parts(record))
    return None if None in others else header


def _stamps(paths: tuple[Path, ...]) -> tuple[tuple[Path, int, int], ...]:
    looks = [(path, path.stat()) for path in paths]
    return tuple((path, look.st_size, look.st_mtime_ns) for path, look in looks)


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
