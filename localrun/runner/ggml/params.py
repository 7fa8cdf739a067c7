"""Load specs, splits and shapes as llama.cpp's parameters: the same to measure as to load."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from localrun.memory import Split
from localrun.runner.engine.layout import EmbeddingShape, Pooling, Shape
from localrun.runner.ggml import library
from localrun.runner.ggml.binding import lib
from localrun.spec import LoadSpec

GGML_TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}
FLASH_ATTENTION_OFF, FLASH_ATTENTION_ON, FLASH_ATTENTION_AUTO = 0, 1, -1
_POOLINGS: dict[Pooling, int] = {"mean": 1, "cls": 2, "last": 3, "rank": 4}
_LOAD_MODE_NONE, _LOAD_MODE_MMAP = 0, 1

# The tensors that a mixture of experts has for each expert. Source: llama.cpp's common.h.
EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"


class _Override(ctypes.Structure):
    _fields_ = [("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p)]


@dataclass(frozen=True, slots=True)
class ModelParams:
    """`struct` points into `kept`, which must live until the model is loaded."""

    struct: Any
    kept: tuple[Any, ...]


def model_params(spec: LoadSpec, split: Split, handle_of: Callable[[str], int]) -> ModelParams:
    """Parameters that put the layers exactly where `split` says."""
    params = lib.llama_model_default_params()
    n = len(split.devices)
    # The list ends with a null; an empty one means no GPU, none would mean all.
    devices = (ctypes.c_void_p * (n + 1))(*(handle_of(name) for name in split.devices), None)
    shares = (ctypes.c_float * int(lib.llama_max_devices()))(*split.layers)
    params.devices = ctypes.cast(devices, ctypes.c_void_p)
    params.tensor_split = shares
    params.n_gpu_layers = split.n_gpu_layers if n else 0
    kept: tuple[Any, ...] = (devices, shares)
    if pattern := _kept_in_ram(split):
        overrides = (_Override * 2)(_Override(pattern, library.cpu_buffer_type()), _Override())
        params.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p)
        kept = (*kept, overrides, pattern)
    if spec.use_mmap is not None:
        params.load_mode = _LOAD_MODE_MMAP if spec.use_mmap else _LOAD_MODE_NONE
    return ModelParams(params, kept)


def _kept_in_ram(split: Split) -> bytes:
    """A pattern of the tensors that stay in RAM although their layer does not."""
    if split.n_cpu_experts:
        numbers = "|".join(str(number) for number in range(split.n_cpu_experts))
        return f"blk\\.({numbers}){EXPERTS}".encode()
    # With several GPUs llama.cpp keeps four copies of some buffers, so that one works on a part
    # of a batch while the next one is at an earlier part. Our batches have one part. It does
    # without the copies where there is an override, whether or not it is ever used.
    return b"^nothing$" if len(split.devices) > 1 else b""


def without_allocation(params: ModelParams) -> ModelParams:
    """The same, to measure: nothing is read and nothing allocated."""
    params.struct.no_alloc = True
    params.struct.load_mode = _LOAD_MODE_NONE  # llama.cpp maps or measures, not both
    return params


def context_params(spec: LoadSpec, shape: Shape | EmbeddingShape) -> Any:
    """Parameters of a context of this shape."""
    if isinstance(shape, EmbeddingShape):
        return _embedding_params(spec, shape)
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
    params.type_k = params.type_v = GGML_TYPES[spec.kv_cache_type]
    params.flash_attn_type = _flash_attention(spec, shape)
    return params


def _embedding_params(spec: LoadSpec, shape: EmbeddingShape) -> Any:
    params = lib.llama_context_default_params()
    params.embeddings = True
    params.pooling_type = _POOLINGS[shape.pooling]
    params.n_ctx = shape.n_cells
    params.n_seq_max = shape.n_ids
    # All tokens of a text have to be in one graph, and llama.cpp ends the process when there are
    # more outputs than were reserved.
    params.n_batch = params.n_ubatch = params.n_outputs_max = shape.n_rows
    params.n_threads = params.n_threads_batch = spec.n_threads
    params.swa_full = False
    params.kv_unified = True
    is_off = shape.flash_attention is False
    params.flash_attn_type = FLASH_ATTENTION_OFF if is_off else FLASH_ATTENTION_AUTO
    return params


def _flash_attention(spec: LoadSpec, shape: Shape) -> int:
    # A quantised V needs it. Otherwise llama.cpp knows where it has it, and a self-test which
    # of the two is faster.
    if spec.kv_cache_type != "f16":
        return FLASH_ATTENTION_ON
    if shape.flash_attention is None:
        return FLASH_ATTENTION_AUTO
    return FLASH_ATTENTION_ON if shape.flash_attention else FLASH_ATTENTION_OFF
