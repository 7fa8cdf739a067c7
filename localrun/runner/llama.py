"""A model in llama.cpp, through llama-cpp-python's low-level API.

Several mistakes are no errors in llama.cpp but assertions that end the process (an oversized
batch, a sequence id out of range, more output rows than reserved), so every call that could make
one is checked here. Vocabulary calls are safe beside `llama_decode`; all others belong to the
engine thread. Arrays from `llama_get_logits` die at the next decode.
"""

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from localrun.core import SamplingParams
from localrun.memory import CPU, Need, Split, added
from localrun.placement.layers import GPU_MARGIN_BYTES, RAM_MARGIN_BYTES
from localrun.runner.engine.layout import EmbeddingShape, Shape, embedding_shape, side_shape
from localrun.runner.ggml import facts
from localrun.runner.ggml.batch import Batch, pointer
from localrun.runner.ggml.binding import lib
from localrun.runner.ggml.devices import Machine
from localrun.runner.ggml.embeddings import LlamaEmbeddings
from localrun.runner.ggml.files import Adapters, open_weights
from localrun.runner.ggml.log import Lines, log
from localrun.runner.ggml.logits import likeliest, likelihoods
from localrun.runner.ggml.matching import GreedyMatched, Matched
from localrun.runner.ggml.params import (
    FLASH_ATTENTION_AUTO,
    FLASH_ATTENTION_ON,
    context_params,
    model_params,
)
from localrun.runner.ggml.probe import read_needs, with_adapters
from localrun.runner.ggml.sampler import LlamaSampler
from localrun.runner.ggml.threadpool import Threadpool
from localrun.runner.ggml.vocab import LlamaVocab
from localrun.runner.limits import large_allocation
from localrun.runner.measure import free_ram_bytes
from localrun.runner.model import (
    Berth,
    Embeddings,
    Likelihoods,
    LoadRefused,
    Matcher,
    NoMemory,
    OnProgress,
    Sampler,
    State,
    Wanted,
)
from localrun.spec import LoadSpec, RunnerInfo

# Share of the free memory for KV outside the context, and the most that is taken unasked.
_HOST_SHARE, _HOST_LIMIT_BYTES = 0.1, 4 << 30

# The binding wraps the result in a pointer object; the bare address is all that is needed.
_get_logits = ctypes.cast(lib.llama_get_logits, ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p))


class LlamaModel:
    """Weights, and one context at a time around them; see `Model`.

    Without a berth all of it lies in RAM.
    """

    def __init__(
        self,
        spec: LoadSpec,
        on_progress: OnProgress,
        machine: Machine | None = None,
        berth: Berth | None = None,
    ) -> None:
        self._spec = spec
        self._machine = machine or Machine()
        self._berth = berth
        self._ctx: Any = None
        self._threadpool: Threadpool  # of that context
        self._embeddings: LlamaEmbeddings | None = None
        self._side: LlamaEmbeddings | None = None
        self._needs: dict[str, Need] = dict(berth.needs) if berth else {}
        with log().reading() as lines:
            self._weights = self._load_weights(spec, on_progress, lines)
        self._weights_lines = lines
        self._adapters = self._load_adapters(spec)
        self.vocab = LlamaVocab(self._weights)
        self.facts = facts.read_facts(self._weights, spec, berth.split if berth else Split())
        if berth:
            self.facts = replace(self.facts, cell_bytes=berth.cell_bytes)
        self.host_tier_bytes = (
            min(int(free_ram_bytes() * _HOST_SHARE), _HOST_LIMIT_BYTES)
            if spec.host_tier_bytes is None
            else spec.host_tier_bytes
        )

    @property
    def first_shape(self) -> Shape | None:
        """The context that was planned; see `Model.first_shape`."""
        shape = self._berth.shape if self._berth else None
        return shape if isinstance(shape, Shape) else None

    def _load_weights(self, spec: LoadSpec, on_progress: OnProgress, lines: Lines) -> Any:
        split = self._berth.split if self._berth else Split()
        params = model_params(spec, split, self._machine.handle)

        def report(fraction: float, _user_data: Any) -> bool:
            on_progress(fraction)
            return True

        params.struct.progress_callback = callback = lib.llama_progress_callback(report)
        weights = open_weights(spec, params.struct)
        del callback, params  # had to live until here
        if weights:
            return weights
        if lines.lacks_memory:
            raise NoMemory("there is no memory for the weights")
        raise LoadRefused("llama.cpp cannot load the file")

    def _load_adapters(self, spec: LoadSpec) -> Adapters:
        try:
            return Adapters(self._weights, spec)
        except LoadRefused:
            self.close()
            raise

    def close(self) -> None:
        """Frees all of it. Idempotent; nothing else may be called afterwards."""
        if self._embeddings is not None:
            self._embeddings.close()
            self._embeddings = None
        if self._side is not None:
            self._side.close()
            self._side = None
        self._close_context()
        if self._weights:
            lib.llama_model_free(self._weights)
            self._weights = None

    def _close_context(self) -> None:
        if self._ctx:
            lib.llama_free(self._ctx)
            self._ctx = None
            self._threadpool.close()

    def free_bytes(self) -> int:
        """Memory that a KV cache could have; see `Model.free_bytes`."""
        kv_bytes = sum(need.kv_bytes for need in self._needs.values())
        if not kv_bytes:
            return max(0, free_ram_bytes() - RAM_MARGIN_BYTES)
        return min(
            self._free_bytes(name, need) * kv_bytes // need.kv_bytes
            for name, need in self._needs.items()
            if need.kv_bytes
        )

    def _free_bytes(self, name: str, need: Need) -> int:
        """What the part of the KV cache on one device could have."""
        if name == CPU:
            # Mapped weights count as free there, though every forward reads them.
            free = free_ram_bytes() - RAM_MARGIN_BYTES - self._mapped_bytes
        else:
            device = self._machine.device(name, self._spec.gpu_overhead_bytes)
            free = device.free_bytes - GPU_MARGIN_BYTES
        return max(0, free + (need.kv_bytes if self._ctx else -need.compute_bytes))

    @property
    def _mapped_bytes(self) -> int:
        buffers = self._weights_lines.buffers()
        return sum(n for name, kind, n in buffers if name == "CPU_Mapped" and kind == "model")

    def open(self, shape: Shape) -> None:
        """Makes a context; see `Model.open`."""
        self._close_context()  # first, since both may not fit
        params = context_params(self._spec, shape)
        with log().reading() as lines, large_allocation():
            ctx = lib.llama_init_from_model(self._weights, params)
        if not ctx:
            raise NoMemory(
                f"no memory for a context of {shape.n_cells} tokens; lower num_ctx or NUM_PARALLEL"
            )
        self._ctx = ctx
        self._adapters.apply(ctx)
        # Between two steps there is no time to wake up; beside a GPU a spin would cost a core for
        # nothing.
        self._threadpool = Threadpool(ctx, polls=self.facts.is_on_cpu)
        self.use_threads(self._spec.n_threads)
        self._shape = shape
        self._memory = lib.llama_get_memory(ctx)
        self.n_batch = int(params.n_ubatch)
        self._batch = Batch(self.n_batch)
        self._n_outputs = 0
        self._logits_address = 0
        self._logits_view: NDArray[np.float32] = np.empty((0, 0), np.float32)
        self._needs = self._read_needs(ctx, shape, lines)
        self._own_info = self._read_info(int(params.flash_attn_type), lines)

    def embeddings(self, n_ctx: int) -> Embeddings:
        """The context for vectors; see `Model.embeddings`."""
        shape = embedding_shape(self._spec, self.facts, n_ctx)
        if self._embeddings is not None:
            if shape.n_ctx <= self._embeddings.shape.n_ctx:
                return self._embeddings
            self._embeddings.close()  # first, since both may not fit
            self._embeddings = None
        self._embeddings = self._open_embeddings(shape)
        return self._embeddings

    def side_embeddings(self) -> Embeddings | None:
        """Another context beside; see `Model.side_embeddings`. A GPU has no threads to share."""
        if self._side is None and self._embeddings is not None and self.facts.is_on_cpu:
            with suppress(NoMemory):
                self._side = self._open_embeddings(side_shape(self._embeddings.shape))
        return self._side

    def _open_embeddings(self, shape: EmbeddingShape) -> LlamaEmbeddings:
        """Raises NoMemory."""
        n_bytes = shape.n_rows * self.vocab.n_tokens * ctypes.sizeof(ctypes.c_float)
        refusal = f"no memory for vectors of texts of {shape.n_ctx} tokens; lower num_ctx"
        if n_bytes > free_ram_bytes() - RAM_MARGIN_BYTES:
            raise NoMemory(refusal)
        with log().reading() as lines, large_allocation():
            ctx = lib.llama_init_from_model(self._weights, context_params(self._spec, shape))
        if not ctx:
            raise NoMemory(refusal)
        self._adapters.apply(ctx)
        needs = self._read_needs(ctx, shape, lines)
        return LlamaEmbeddings(ctx, self._weights, shape, needs, self._rest)

    def _rest(self) -> None:
        """While a context for vectors evaluates, the threads of the one for text do not spin."""
        if self._ctx:
            self._threadpool.rest()

    @property
    def info(self) -> RunnerInfo:
        """What was allocated; see `Model.info`."""
        if self._embeddings is None:
            return self._own_info
        shape = self._embeddings.shape
        needs = self._embeddings.needs
        if self._side is not None:
            needs = added(needs, _without_weights(self._side.needs))
        if not self._ctx:
            return RunnerInfo(
                n_ctx=shape.n_ctx,
                n_slots=self._spec.n_parallel,
                n_cells=shape.n_cells,
                layout="unified",
                needs=needs,
            )
        return structs.replace(self._own_info, needs=added(self._needs, _without_weights(needs)))

    def _read_needs(self, ctx: Any, shape: Shape | EmbeddingShape, lines: Lines) -> dict[str, Need]:
        """What weights and a context have on each device."""
        found = read_needs(ctx, self._machine, shape, self.vocab.n_tokens)
        if found is None:
            found = self._needs_by_log(lines)
        split = self._berth.split if self._berth else Split()
        needs = with_adapters(found, self._spec, facts.n_blocks(self._weights), split)
        if self._berth and self._mapped_bytes and CPU in self._berth.needs:
            # A mapping spans the file from the first to the last tensor in RAM, whatever of it
            # lies elsewhere; what was measured is what is read there.
            weights = self._berth.needs[CPU].weights_bytes
            needs[CPU] = Need(weights, needs[CPU].kv_bytes, needs[CPU].compute_bytes)
        return needs

    def _needs_by_log(self, lines: Lines) -> dict[str, Need]:
        sums: dict[str, list[int]] = {CPU: [0, 0, 0]}
        for name, kind, n_bytes in (*self._weights_lines.buffers(), *lines.buffers()):
            column = {"model": 0, "KV": 1, "RS": 1}.get(kind, 2)
            sums.setdefault(self._machine.home_of_name(name), [0, 0, 0])[column] += n_bytes
        return {name: Need(*columns) for name, columns in sums.items()}

    def _read_info(self, flash_attention: int, lines: Lines) -> RunnerInfo:
        is_flash = lines.flash_attention is not False
        if flash_attention != FLASH_ATTENTION_AUTO:
            is_flash = flash_attention == FLASH_ATTENTION_ON
        return RunnerInfo(
            n_ctx=self._shape.n_ctx,
            n_slots=self._shape.n_slots,
            n_cells=self._shape.n_cells,
            layout=self._shape.layout,
            flash_attention=is_flash,
            needs=self._needs,
        )

    def use_threads(self, n: int) -> None:
        """Compute threads; see `Model.use_threads`."""
        self._threadpool.use(n)

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
        if code == 0:
            self._threadpool.has_evaluated()
        return code

    def greedy(self) -> list[int]:
        """The likeliest token of every output row; see `Model.greedy`."""
        return likeliest(self._logits())

    def likelihoods(self, wanted: Sequence[Wanted]) -> list[Likelihoods]:
        """How likely tokens were; see `Model.likelihoods`."""
        return likelihoods(self._logits(), wanted)

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

    def sampler(
        self, params: SamplingParams, prompt: Sequence[int], matcher: Matcher | None = None
    ) -> Sampler:
        """A chain for one sequence; see `Model.sampler`."""
        if matcher is not None and params.is_greedy:
            return GreedyMatched(matcher, self._row)
        sampler = LlamaSampler(
            params, n_vocab=self.vocab.n_tokens, n_ctx=self.info.n_ctx, logits=self._row
        )
        if params.has_penalties:
            sampler.remember(prompt[-params.n_lookback(self.info.n_ctx) :])
        return sampler if matcher is None else Matched(sampler, matcher)

    def _row(self, row: int) -> NDArray[np.float32]:
        if not 0 <= row < self._n_outputs:
            raise ValueError(f"row {row} is not among the {self._n_outputs} outputs")
        logits: NDArray[np.float32] = self._logits()[row]
        return logits

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
        with large_allocation():
            data = np.empty(size, np.uint8)
        n = lib.llama_state_seq_get_data(self._ctx, pointer(data, ctypes.c_uint8), size, kv_id)
        return data.data[: int(n)]

    def restore(self, kv_id: int, state: State) -> bool:
        """Fills the empty sequence; see `Model.restore`."""
        data = np.frombuffer(state, np.uint8)
        memory = pointer(data, ctypes.c_uint8)
        n = lib.llama_state_seq_set_data(self._ctx, memory, len(data), self._checked(kv_id))
        return bool(n)

    def _checked(self, kv_id: int) -> int:
        if not 0 <= kv_id < self._shape.n_ids:
            raise ValueError(f"id {kv_id} is not below {self._shape.n_ids}")
        return kv_id


def _without_weights(needs: dict[str, Need]) -> dict[str, Need]:
    """What a context has taken: the weights stand in the needs of each."""
    return {
        name: Need(kv_bytes=need.kv_bytes, compute_bytes=need.compute_bytes)
        for name, need in needs.items()
    }
