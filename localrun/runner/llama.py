"""llama.cpp through llama-cpp-python's low-level API: the only file that imports llama_cpp.

Several mistakes are no errors in llama.cpp but assertions that end the process (an oversized
batch, a sequence id out of range, more output rows than reserved), so every call that could make
one is checked here. Vocabulary calls are safe beside `llama_decode`; all others belong to the
engine thread. Arrays from `llama_get_logits` die at the next decode.
"""

import ctypes
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
from numpy.typing import NDArray

from localrun.core import LoadSpec, RunnerInfo, SamplingParams
from localrun.runner.engine.kv import n_slots_that_fit
from localrun.runner.measure import free_ram_bytes
from localrun.runner.model import LoadRefused, OnProgress

# Share of the free memory that the KV cache may take; the rest is for other models.
_KV_SHARE = 0.25

_GGML_TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}
_FLASH_ATTENTION_OFF, _FLASH_ATTENTION_ON, _FLASH_ATTENTION_AUTO = 0, 1, -1
_LOAD_MODE_NONE, _LOAD_MODE_MMAP = 0, 1
_LOG_WARN = 3
_LOG_CONTINUED = 5

# `load_tensors:   CPU_Mapped model buffer size =    93.27 MiB`
_BUFFER_LINE = re.compile(r"(\S+)\s+(?:\w+ )?buffer size\s*=\s*([\d.]+) MiB")
_MIB = 1024 * 1024


class _Log:
    """Receives llama.cpp's log: sums buffer sizes while loading, passes warnings on to stderr."""

    def __init__(self) -> None:
        self.buffer_bytes: dict[str, int] = {}
        self._level = 0
        self._callback = lib.llama_log_callback(self._receive)
        lib.llama_log_set(self._callback, ctypes.c_void_p(0))

    def _receive(self, level: int, text: bytes, _user_data: Any) -> None:
        # A continued line has the level of the line it continues.
        self._level = self._level if level == _LOG_CONTINUED else level
        line = text.decode("utf-8", "replace")
        for device, mib in _BUFFER_LINE.findall(line):
            size_bytes = int(float(mib) * _MIB)
            self.buffer_bytes[device] = self.buffer_bytes.get(device, 0) + size_bytes
        if self._level >= _LOG_WARN:
            sys.stderr.write(line)
            sys.stderr.flush()


class LlamaVocab:
    """A model's vocabulary. Thread-safe: llama.cpp only reads it."""

    def __init__(self, model: Any) -> None:
        self._vocab = lib.llama_model_get_vocab(model)
        self._bos = lib.llama_vocab_bos(self._vocab)
        self._eos = lib.llama_vocab_eos(self._vocab)
        self._adds_bos = bool(lib.llama_vocab_get_add_bos(self._vocab))
        self._adds_eos = bool(lib.llama_vocab_get_add_eos(self._vocab))
        self.n_tokens = int(lib.llama_vocab_n_tokens(self._vocab))
        self.bos_text = self._text_of(self._bos)
        self.eos_text = self._text_of(self._eos)
        template = lib.llama_model_chat_template(model, None)
        self.chat_template: str | None = template.decode("utf-8", "replace") if template else None
        # Filled as tokens come up; one dictionary entry is written at most twice.
        self._bytes: dict[int, bytes] = {}

    def _text_of(self, token: int) -> str:
        text = lib.llama_vocab_get_text(self._vocab, token) if token >= 0 else None
        return text.decode("utf-8", "replace") if text else ""

    def tokenize(self, text: str, *, is_start: bool = True) -> list[int]:
        """Ids of `text`; see `Vocab.tokenize`."""
        if self._adds_bos and self.bos_text:
            # The tokenizer adds one; a template that writes it too would make two.
            text = text.removeprefix(self.bos_text)
        data = text.encode("utf-8", "replace")
        room = len(data) + 8
        while True:
            buffer = (lib.llama_token * room)()
            n = lib.llama_tokenize(self._vocab, data, len(data), buffer, room, True, True)
            if n >= 0:
                break
            room = -n
        tokens = list(buffer[:n])
        if self._adds_bos and not is_start and tokens[:1] == [self._bos]:
            del tokens[0]
        if self._adds_eos and tokens and tokens[-1] == self._eos:
            del tokens[-1]
        return tokens

    def token_bytes(self, token: int) -> bytes:
        """What the token adds to the text; control tokens add nothing."""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._read_piece(token)
        return known

    def _read_piece(self, token: int) -> bytes:
        room = 64
        while True:
            buffer = ctypes.create_string_buffer(room)
            n = lib.llama_token_to_piece(self._vocab, token, buffer, room, 0, False)
            if n >= 0:
                return buffer.raw[:n]
            room = -n

    def is_end(self, token: int) -> bool:
        """True for every end-of-generation token."""
        return bool(lib.llama_vocab_is_eog(self._vocab, token))


class LlamaSampler:
    """One sequence's sampler chain, in llama.cpp's own order of filters."""

    def __init__(self, model: "LlamaModel", params: SamplingParams) -> None:
        self._model = model
        self._chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        if params.has_penalties:
            self._add(
                lib.llama_sampler_init_penalties(
                    model.vocab.n_tokens,
                    params.n_lookback(model.info.n_ctx),
                    params.repeat_penalty,
                    params.frequency_penalty,
                    params.presence_penalty,
                )
            )
        if params.temperature <= 0:
            self._add(lib.llama_sampler_init_greedy())
            return
        if params.top_k > 0:
            self._add(lib.llama_sampler_init_top_k(params.top_k))
        if params.typical_p < 1:
            self._add(lib.llama_sampler_init_typical(params.typical_p, 1))
        if params.top_p < 1:
            self._add(lib.llama_sampler_init_top_p(params.top_p, 1))
        if params.min_p > 0:
            self._add(lib.llama_sampler_init_min_p(params.min_p, 1))
        self._add(lib.llama_sampler_init_temp(params.temperature))
        self._add(lib.llama_sampler_init_dist(_seed(params.seed)))

    def _add(self, sampler: Any) -> None:
        lib.llama_sampler_chain_add(self._chain, sampler)

    def remember(self, tokens: Sequence[int]) -> None:
        """Tells the penalties what came before."""
        for token in tokens:
            lib.llama_sampler_accept(self._chain, token)

    def sample(self, row: int) -> int:
        """The token for output `row`; the chain remembers it."""
        return self._model.sample(self._chain, row)

    def close(self) -> None:
        """Frees the chain."""
        if self._chain is not None:
            lib.llama_sampler_free(self._chain)
            self._chain = None


def _seed(seed: int) -> int:
    """32 bits for llama.cpp; -1 (and every negative number, as in Ollama) draws them."""
    return int.from_bytes(os.urandom(4), "little") if seed < 0 else seed & 0xFFFFFFFF


class _Batch:
    """One `llama_batch` for the life of the model, written through numpy views.

    Filling it field by field costs 306 µs for 512 rows, through views 2 µs.
    """

    def __init__(self, n_rows: int) -> None:
        self.tokens = np.zeros(n_rows, np.int32)
        self.positions = np.zeros(n_rows, np.int32)
        self.seq_ids = np.zeros(n_rows, np.int32)
        self.outputs = np.zeros(n_rows, np.int8)
        self._n_seq_ids = np.ones(n_rows, np.int32)
        # Row i's list of sequence ids is the i-th entry of `seq_ids`, fixed once.
        step = self.seq_ids.itemsize
        base = self.seq_ids.ctypes.data
        self._seq_id_pointers = np.arange(base, base + n_rows * step, step, dtype=np.uint64)
        self.struct = lib.llama_batch(
            n_tokens=0,
            token=_pointer(self.tokens, lib.llama_token),
            embd=None,
            pos=_pointer(self.positions, lib.llama_pos),
            n_seq_id=_pointer(self._n_seq_ids, ctypes.c_int32),
            seq_id=_pointer(self._seq_id_pointers, ctypes.POINTER(lib.llama_seq_id)),
            logits=_pointer(self.outputs, ctypes.c_int8),
        )

    def fill(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        outputs: Sequence[bool],
    ) -> None:
        n_rows = len(tokens)
        self.tokens[:n_rows] = tokens
        self.positions[:n_rows] = positions
        self.seq_ids[:n_rows] = slots
        self.outputs[:n_rows] = outputs
        self.struct.n_tokens = n_rows


# The binding wraps the result in a pointer object; the bare address is all that is needed.
_get_logits = ctypes.cast(lib.llama_get_logits, ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p))


def _pointer(array: NDArray[Any], ctype: Any) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctype))


class LlamaModel:
    """Weights and one context in the `split` layout: a stream and a whole window for each slot."""

    def __init__(self, spec: LoadSpec, on_progress: OnProgress) -> None:
        if spec.adapter_paths:
            raise LoadRefused("adapters (LoRA) cannot be applied yet")
        self._log = _Log()
        lib.llama_backend_init()
        self._weights = self._load_weights(spec, on_progress)
        self.vocab = LlamaVocab(self._weights)
        self._ctx, n_slots, self.n_batch = self._make_context(spec)
        self._memory = lib.llama_get_memory(self._ctx)
        self._batch = _Batch(self.n_batch)
        self._n_slots = n_slots
        self._n_outputs = 0
        self._logits_address = 0
        self._logits_view: NDArray[np.float32] = np.empty((0, 0), np.float32)
        sizes = self._log.buffer_bytes
        self.info = RunnerInfo(
            n_ctx=min(int(lib.llama_n_ctx_seq(self._ctx)), max(spec.n_ctx, 1)),
            n_slots=n_slots,
            device_bytes=dict(sizes),
            size_bytes=sum(sizes.values()),
            size_vram_bytes=sum(n for device, n in sizes.items() if not _is_host(device)),
        )

    def _load_weights(self, spec: LoadSpec, on_progress: OnProgress) -> Any:
        params = lib.llama_model_default_params()
        params.n_gpu_layers = spec.n_gpu_layers
        if spec.main_gpu is not None:
            params.split_mode = lib.LLAMA_SPLIT_MODE_NONE
            params.main_gpu = spec.main_gpu
        if spec.use_mmap is not None:
            params.load_mode = _LOAD_MODE_MMAP if spec.use_mmap else _LOAD_MODE_NONE

        def report(fraction: float, _user_data: Any) -> bool:
            on_progress(fraction)
            return True

        params.progress_callback = callback = lib.llama_progress_callback(report)
        weights = lib.llama_model_load_from_file(os.fsencode(spec.weights_path), params)
        del callback  # had to live until here
        if not weights:
            raise LoadRefused("llama.cpp cannot load the file")
        if lib.llama_model_has_encoder(weights) or not lib.llama_model_has_decoder(weights):
            raise LoadRefused("models with an encoder cannot generate text here yet")
        return weights

    def _make_context(self, spec: LoadSpec) -> tuple[Any, int, int]:
        n_ctx = spec.n_ctx
        cell_bytes = self._cell_bytes()
        budget_bytes = int(free_ram_bytes() * _KV_SHARE)
        n_slots = n_slots_that_fit(spec.n_parallel, n_ctx, cell_bytes, budget_bytes)
        params = lib.llama_context_default_params()
        params.n_ctx = n_ctx * n_slots
        params.n_seq_max = n_slots
        params.n_batch = params.n_ubatch = max(min(spec.n_batch, n_ctx), n_slots)
        # The default reserves logits for every row of a batch: 505 MiB instead of 132.
        params.n_outputs_max = n_slots
        params.n_threads = params.n_threads_batch = spec.n_threads
        # The C default keeps whole windows of sliding-window layers: 576 MiB instead of 111.
        params.swa_full = False
        params.kv_unified = False
        params.type_k = params.type_v = _GGML_TYPES[spec.kv_cache_type]
        params.flash_attn_type = self._flash_attention(spec)
        ctx = lib.llama_init_from_model(self._weights, params)
        if not ctx:
            raise LoadRefused(
                f"no memory for {n_slots} windows of {n_ctx} tokens; lower num_ctx or NUM_PARALLEL"
            )
        lib.llama_set_n_threads(ctx, spec.n_threads, spec.n_threads)
        return ctx, n_slots, int(params.n_ubatch)

    def _flash_attention(self, spec: LoadSpec) -> int:
        if spec.flash_attention is not None:
            return _FLASH_ATTENTION_ON if spec.flash_attention else _FLASH_ATTENTION_OFF
        # A quantised V needs it. Otherwise llama.cpp knows where it has it; on a recent x86 CPU it
        # makes a step 10 to 25 % faster (8 and 16 sequences of 100 to 1000 tokens).
        return _FLASH_ATTENTION_AUTO if spec.kv_cache_type == "f16" else _FLASH_ATTENTION_ON

    def _cell_bytes(self) -> int:
        """Upper bound of the bytes of one cell: all layers keep K and V of every KV head in F16."""
        n_embd = int(lib.llama_model_n_embd(self._weights))
        n_head = max(1, int(lib.llama_model_n_head(self._weights)))
        n_head_kv = int(lib.llama_model_n_head_kv(self._weights))
        n_layer = int(lib.llama_model_n_layer(self._weights))
        return 2 * 2 * n_layer * n_head_kv * max(1, n_embd // n_head)

    def forward(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        outputs: Sequence[bool],
    ) -> int:
        """Evaluates rows; see `Model.forward`."""
        if not 0 < len(tokens) <= self.n_batch:
            raise ValueError(f"{len(tokens)} rows do not fit a batch of {self.n_batch}")
        if min(slots) < 0 or max(slots) >= self._n_slots:
            raise ValueError(f"slots {slots} are not all below {self._n_slots}")
        n_outputs = sum(outputs)
        if n_outputs > self._n_slots:
            raise ValueError(f"{n_outputs} output rows exceed the {self._n_slots} reserved")
        self._batch.fill(tokens, positions, slots, outputs)
        code = int(lib.llama_decode(self._ctx, self._batch.struct))
        self._n_outputs = n_outputs if code == 0 else 0
        return code

    def greedy(self) -> list[int]:
        """The likeliest token of every output row of the last forward."""
        tokens: list[int] = self._logits().argmax(axis=1).tolist()
        return tokens

    def sample(self, chain: Any, row: int) -> int:
        """What `chain` takes for output `row` of the last forward."""
        if not 0 <= row < self._n_outputs:
            raise ValueError(f"row {row} is not among the {self._n_outputs} outputs")
        # Positive indices count the batch's rows, negative ones its outputs from the end.
        return int(lib.llama_sampler_sample(chain, self._ctx, row - self._n_outputs))

    def _logits(self) -> NDArray[np.float32]:
        """(n_outputs, n_vocab) float32, in llama.cpp's memory, until the next forward."""
        address = _get_logits(self._ctx)
        if address != self._logits_address:
            # The buffer stays where it is for the life of the context, so neither is the view
            # made anew: that would cost more than the argmax.
            size = self._n_slots * self.vocab.n_tokens
            memory = (ctypes.c_float * size).from_address(address)
            self._logits_view = np.ctypeslib.as_array(memory).reshape(self._n_slots, -1)
            self._logits_address = address
        return self._logits_view[: self._n_outputs]

    def sampler(self, params: SamplingParams, prompt: Sequence[int]) -> LlamaSampler:
        """A chain for one sequence; see `Model.sampler`."""
        sampler = LlamaSampler(self, params)
        if params.has_penalties:
            sampler.remember(prompt[-params.n_lookback(self.info.n_ctx) :])
        return sampler

    def free(self, slot: int) -> None:
        """Gives back every cell of the slot."""
        if not 0 <= slot < self._n_slots:
            raise ValueError(f"slot {slot} is not below {self._n_slots}")
        lib.llama_memory_seq_rm(self._memory, slot, -1, -1)


def _is_host(device: str) -> bool:
    return device.startswith(("CPU", "BLAS")) or device.endswith("_Host")
