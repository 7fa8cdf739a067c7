"""What of a model's header decides about contexts, of weights that are loaded or only measured."""

import ctypes
from typing import Any

from localrun.memory import Split
from localrun.runner.engine.layout import ModelFacts, Pooling
from localrun.runner.ggml.binding import lib
from localrun.runner.model import LoadRefused
from localrun.spec import LoadSpec

# By llama.cpp's numbers. A model that does not say makes text: the last token has seen all others.
# Source: Ollama's runner, which takes its output as well.
_POOLINGS: dict[str | None, Pooling] = {"1": "mean", "2": "cls", "3": "last", "4": "rank"}

# llama.cpp's numbers of F32, F16 and BF16; and what it adds where the file does not say.
_FLOATS, _GUESSED = (0, 1, 32), 1024

# Bytes of one value; quantized ones carry a scale for every 32.
_TYPE_BYTES = {"f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}


def read_facts(weights: Any, spec: LoadSpec, split: Split) -> ModelFacts:
    """What the weights demand of a context. Raises LoadRefused for those that cannot be run."""
    if lib.llama_model_has_encoder(weights) or not lib.llama_model_has_decoder(weights):
        raise LoadRefused("models with an encoder and a decoder cannot be run here yet")
    is_exact = lib.llama_model_is_recurrent(weights) or lib.llama_model_is_hybrid(weights)
    original = 0
    if _meta(weights, "rope.scaling.type") in (None, "longrope"):
        original = int(_meta(weights, "rope.scaling.original_context_length") or 0)
    return ModelFacts(
        cell_bytes=_cell_bytes(weights, spec),
        shares_prefixes=not is_exact and int(lib.llama_model_n_swa(weights)) == 0,
        n_ctx_original=original,
        n_vocab=int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(weights))),
        pooling=_POOLINGS.get(_meta(weights, "pooling_type"), "last"),
        is_causal=_meta(weights, "attention.causal") != "false",
        is_quantized=int(lib.llama_model_ftype(weights)) % _GUESSED not in _FLOATS,
        is_on_cpu=not split.devices,
    )


def n_blocks(weights: Any) -> int:
    """Layers but for the output, those included that predict further tokens."""
    return int(_meta(weights, "block_count") or lib.llama_model_n_layer(weights))


def _meta(weights: Any, key: str) -> str | None:
    """A value of the file's header below its architecture's name."""
    buffer = ctypes.create_string_buffer(128)
    size = len(buffer)
    if lib.llama_model_meta_val_str(weights, b"general.architecture", buffer, size) < 0:
        return None
    name = f"{buffer.value.decode('utf-8', 'replace')}.{key}".encode()
    if lib.llama_model_meta_val_str(weights, name, buffer, size) < 0:
        return None
    return buffer.value.decode("utf-8", "replace")


def _cell_bytes(weights: Any, spec: LoadSpec) -> int:
    """Upper bound of the bytes of one cell: all layers keep K and V of every KV head."""
    n_embd = int(lib.llama_model_n_embd(weights))
    n_head = max(1, int(lib.llama_model_n_head(weights)))
    n_head_kv = int(lib.llama_model_n_head_kv(weights))
    n_layer = int(lib.llama_model_n_layer(weights))
    n_values = 2 * n_layer * n_head_kv * max(1, n_embd // n_head)
    return max(1, int(n_values * _TYPE_BYTES[spec.kv_cache_type]))
