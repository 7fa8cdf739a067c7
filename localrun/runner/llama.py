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
from localrun.runner.engine.layout import ModelFacts, Shape
from localrun.runner.measure import free_ram_bytes
from localrun.runner.model import LoadRefused, OnProgress, State

# Share of the free memory for KV outside the context, and the most that is taken unasked.
_HOST_SHARE, _HOST_LIMIT_BYTES = 0.1, 4 << 30

_GGML_TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}
# Bytes of one value; quantized ones carry a scale for every 32.
_TYPE_BYTES = {"f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
_FLASH_ATTENTION_OFF, _FLASH_ATTENTION_ON, _FLASH_ATTENTION_AUTO = 0, 1, -1
_LOAD_MODE_NONE, _LOAD_MODE_MMAP = 0, 1
_LOG_WARN = 3
_LOG_CONTINUED = 5

# `load_tensors:   CPU_Mapped model buffer size =    93.27 MiB`
_BUFFER_LINE = re.compile(r"(\S+)\s+(?:\w+ )?buffer size\s*=\s*([\d.]+) MiB")
_FLASH_LINE = re.compile(r"Flash Attention (enabled|not supported)")
_MIB = 1024 * 1024


class _Log:
    """Receives llama.cpp's log: sums buffer sizes while loading, passes warnings on to stderr."""

    def __init__(self) -> None:
        self.buffer_bytes: dict[str, int] = {}
        self.is_flash = True  # what llama.cpp decided when it was asked to
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
        if found := _FLASH_LINE.search(line):
            self.is_flash = found[1] == "enabled"
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
    """Weights, and one context at a time around them; see `Model`."""

    def __init__(self, spec: LoadSpec, on_progress: OnProgress) -> None:
        if spec.adapter_paths:
            raise LoadRefused("adapters (LoRA) cannot be applied yet")
        self._spec = spec
        self._log = _Log()
        self._ctx: Any = None
        lib.llama_backend_init()
        self._weights = self._load_weights(spec, on_progress)
        self._weights_bytes = dict(self._log.buffer_bytes)
        self.vocab = LlamaVocab(self._weights)
        self.facts = self._read_facts()
        self.host_tier_bytes = (
            min(int(free_ram_bytes() * _HOST_SHARE), _HOST_LIMIT_BYTES)
            if spec.host_tier_bytes is None
            else spec.host_tier_bytes
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

    def _read_facts(self) -> ModelFacts:
        weights = self._weights
        is_exact = lib.llama_model_is_recurrent(weights) or lib.llama_model_is_hybrid(weights)
        original = 0
        if self._meta("rope.scaling.type") in (None, "longrope"):
            original = int(self._meta("rope.scaling.original_context_length") or 0)
        return ModelFacts(
            cell_bytes=self._cell_bytes(),
            shares_prefixes=not is_exact and int(lib.llama_model_n_swa(weights)) == 0,
            n_ctx_original=original,
        )

    def _meta(self, key: str) -> str | None:
        """A value of the file's header below its architecture's name."""
        buffer = ctypes.create_string_buffer(128)
        size = len(buffer)
        if lib.llama_model_meta_val_str(self._weights, b"general.architecture", buffer, size) < 0:
            return None
        name = f"{buffer.value.decode('utf-8', 'replace')}.{key}".encode()
        if lib.llama_model_meta_val_str(self._weights, name, buffer, size) < 0:
            return None
        return buffer.value.decode("utf-8", "replace")

    def _cell_bytes(self) -> int:
        """Upper bound of the bytes of one cell: all layers keep K and V of every KV head."""
        n_embd = int(lib.llama_model_n_embd(self._weights))
        n_head = max(1, int(lib.llama_model_n_head(self._weights)))
        n_head_kv = int(lib.llama_model_n_head_kv(self._weights))
        n_layer = int(lib.llama_model_n_layer(self._weights))
        n_values = 2 * n_layer * n_head_kv * max(1, n_embd // n_head)
        return max(1, int(n_values * _TYPE_BYTES[self._spec.kv_cache_type]))

    def free_bytes(self) -> int:
        """Memory that a context could have; see `Model.free_bytes`."""
        mine = sum(self._log.buffer_bytes.values()) if self._ctx else 0
        return free_ram_bytes() + mine

    def open(self, shape: Shape) -> None:
        """Makes a context; see `Model.open`."""
        if self._ctx:
            lib.llama_free(self._ctx)  # first, since both may not fit
            self._ctx = None
        self._log.buffer_bytes = {}
        params = self._context_params(shape)
        ctx = lib.llama_init_from_model(self._weights, params)
        if not ctx:
            raise LoadRefused(
                f"no memory for a context of {shape.n_cells} tokens; lower num_ctx or NUM_PARALLEL"
            )
        self._ctx = ctx
        self._n_threads = 0
        self.use_threads(self._spec.n_threads)
        self._shape = shape
        self._memory = lib.llama_get_memory(ctx)
        self.n_batch = int(params.n_ubatch)
        self._batch = _Batch(self.n_batch)
        self._n_outputs = 0
        self._logits_address = 0
        self._logits_view: NDArray[np.float32] = np.empty((0, 0), np.float32)
        self.info = self._read_info(int(params.flash_attn_type))

    def _context_params(self, shape: Shape) -> Any:
        spec = self._spec
        params = lib.llama_context_default_params()
        params.n_ctx = shape.n_cells
        params.n_seq_max = shape.n_ids
        params.n_batch = params.n_ubatch = max(min(spec.n_batch, shape.n_ctx), shape.n_ids)
        # The default reserves logits for every row of a batch: 505 MiB instead of 132.
        params.n_outputs_max = shape.n_ids
        params.n_threads = params.n_threads_batch = spec.n_threads
        # The C default keeps whole windows of sliding-window layers: 576 MiB instead of 111.
        params.swa_full = False
        params.kv_unified = shape.layout == "unified"
        params.type_k = params.type_v = _GGML_TYPES[spec.kv_cache_type]
        params.flash_attn_type = self._flash_attention(shape)
        return params

    def _read_info(self, flash_attention: int) -> RunnerInfo:
        sizes = dict(self._weights_bytes)
        for device, n_bytes in self._log.buffer_bytes.items():
            sizes[device] = sizes.get(device, 0) + n_bytes
        is_flash = self._log.is_flash
        if flash_attention != _FLASH_ATTENTION_AUTO:
            is_flash = flash_attention == _FLASH_ATTENTION_ON
        return RunnerInfo(
            n_ctx=self._shape.n_ctx,
            n_slots=self._shape.n_slots,
            n_cells=self._shape.n_cells,
            layout=self._shape.layout,
            flash_attention=is_flash,
            device_bytes=sizes,
            size_bytes=sum(sizes.values()),
            size_vram_bytes=sum(n for device, n in sizes.items() if not _is_host(device)),
        )

    def _flash_attention(self, shape: Shape) -> int:
        # A quantised V needs it. Otherwise llama.cpp knows where it has it, and a self-test which
        # of the two is faster.
        if self._spec.kv_cache_type != "f16":
            return _FLASH_ATTENTION_ON
        if shape.flash_attention is None:
            return _FLASH_ATTENTION_AUTO
        return _FLASH_ATTENTION_ON if shape.flash_attention else _FLASH_ATTENTION_OFF

    def use_threads(self, n: int) -> None:
        """Compute threads; see `Model.use_threads`."""
        if n != self._n_threads:
            self._n_threads = n
            lib.llama_set_n_threads(self._ctx, n, n)

    def forward(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        kv_ids: Sequence[int],
        outputs: Sequence[bool],
    ) -> int:
        """Evaluates rows; see `Model.forward`."""
        if not 0 < len(tokens) <= self.n_batch:
            raise ValueError(f"{len(tokens)} rows do not fit a batch of {self.n_batch}")
        if min(kv_ids) < 0 or max(kv_ids) >= self._shape.n_ids:
            raise ValueError(f"ids {kv_ids} are not all below {self._shape.n_ids}")
        n_outputs = sum(outputs)
        if n_outputs > self._shape.n_ids:
            raise ValueError(f"{n_outputs} output rows exceed the {self._shape.n_ids} reserved")
        self._batch.fill(tokens, positions, kv_ids, outputs)
        code = int(lib.llama_decode(self._ctx, self._batch.struct))
        lib.llama_synchronize(self._ctx)  # so that whoever measures the call measures the work
        self._n_outputs = n_outputs if code == 0 else 0
        return code

    def greedy(self) -> list[int]:
        """The likeliest token of every output row; see `Model.greedy`."""
        logits = self._logits()
        likeliest: list[int] = logits.argmax(axis=1).tolist()
        for row, token in enumerate(likeliest):
            best = logits[row, token]
            if best != best:  # a row with a NaN has its first NaN as maximum
                likeliest[row] = -1
        return likeliest

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
            size = self._shape.n_ids * self.vocab.n_tokens
            memory = (ctypes.c_float * size).from_address(address)
            self._logits_view = np.ctypeslib.as_array(memory).reshape(self._shape.n_ids, -1)
            self._logits_address = address
        return self._logits_view[: self._n_outputs]

    def sampler(self, params: SamplingParams, prompt: Sequence[int]) -> LlamaSampler:
        """A chain for one sequence; see `Model.sampler`."""
        sampler = LlamaSampler(self, params)
        if params.has_penalties:
            sampler.remember(prompt[-params.n_lookback(self.info.n_ctx) :])
        return sampler

    def n_positions(self, kv_id: int) -> int:
        """Tokens of the sequence in the cells."""
        return int(lib.llama_memory_seq_pos_max(self._memory, self._checked(kv_id))) + 1

    def trim(self, kv_id: int, n: int) -> bool:
        """Keeps the first `n` tokens; see `Model.trim`."""
        if 0 < n < self.n_positions(kv_id) and not self.facts.shares_prefixes:
            return False
        return bool(lib.llama_memory_seq_rm(self._memory, self._checked(kv_id), n, -1))

    def copy(self, source: int, target: int, n: int) -> None:
        """Shares cells; see `Model.copy`."""
        if self._shape.layout != "unified":
            raise ValueError("only a unified pool has cells with several owners")
        lib.llama_memory_seq_cp(self._memory, self._checked(source), self._checked(target), 0, n)

    def state_bytes(self, kv_id: int) -> int:
        """Size of the sequence's state."""
        return int(lib.llama_state_seq_get_size(self._ctx, self._checked(kv_id)))

    def save(self, kv_id: int) -> State:
        """The sequence's KV; see `Model.save`."""
        size = self.state_bytes(kv_id)
        data = np.empty(size, np.uint8)
        n = lib.llama_state_seq_get_data(self._ctx, _pointer(data, ctypes.c_uint8), size, kv_id)
        return data.data[: int(n)]

    def restore(self, kv_id: int, state: State) -> bool:
        """Fills the empty sequence; see `Model.restore`."""
        data = np.frombuffer(state, np.uint8)
        pointer = _pointer(data, ctypes.c_uint8)
        n = lib.llama_state_seq_set_data(self._ctx, pointer, len(data), self._checked(kv_id))
        return bool(n)

    def _checked(self, kv_id: int) -> int:
        if not 0 <= kv_id < self._shape.n_ids:
            raise ValueError(f"id {kv_id} is not below {self._shape.n_ids}")
        return kv_id


def _is_host(device: str) -> bool:
    return device.startswith(("CPU", "BLAS")) or device.endswith("_Host")
