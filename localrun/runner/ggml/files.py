"""Model files as llama.cpp opens them: weights in one file or in parts, and LoRA adapters."""

import ctypes
import os
from collections.abc import Iterable
from typing import Any

from localrun.runner.ggml import library
from localrun.runner.ggml.binding import lib
from localrun.runner.model import LoadRefused
from localrun.spec import LoadSpec


def open_weights(spec: LoadSpec, params: Any) -> Any:
    """A model of all files of the spec; a null where llama.cpp cannot load them."""
    # The files of a store have no numbers in their names, so llama.cpp is told the parts.
    paths = [os.fsencode(path) for path in spec.weights_paths]
    return lib.llama_model_load_from_splits(
        (ctypes.c_char_p * len(paths))(*paths), len(paths), params
    )


def tensor_bytes(paths: Iterable[str]) -> dict[str, int]:
    """The tensors of GGUF files by name."""
    sizes: dict[str, int] = {}
    for path in paths:
        sizes |= library.tensor_bytes(os.fsencode(path))
    return sizes


class Adapters:
    """The LoRA adapters on top of loaded weights, which own them: they are freed together."""

    def __init__(self, weights: Any, spec: LoadSpec) -> None:
        """Raises LoadRefused for one that does not fit the weights."""
        self._adapters = [_load(weights, path) for path in spec.adapter_paths]

    def apply(self, context: Any) -> None:
        """From now on the context computes with them; each context has to be told."""
        count = len(self._adapters)
        if count:
            handles = (lib.llama_adapter_lora_p_ctypes * count)(*self._adapters)
            scales = (ctypes.c_float * count)(*([1.0] * count))
            lib.llama_set_adapters_lora(context, handles, count, scales)


def _load(weights: Any, path: str) -> Any:
    adapter = lib.llama_adapter_lora_init(weights, os.fsencode(path))
    if not adapter:
        raise LoadRefused("llama.cpp cannot apply the adapter; it may be for another model")
    return adapter
