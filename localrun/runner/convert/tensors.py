"""Tensors under their Hugging Face names → names, types and order of values in GGUF."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import gguf
import numpy as np
from gguf.constants import MODEL_TENSOR, TENSOR_NAMES

from localrun.runner.convert.architectures import Architecture, n_blocks
from localrun.runner.convert.config import Config
from localrun.runner.convert.safetensors import Array, StoredTensor
from localrun.runner.jobs import Refused

# Of these llama.cpp reads single values, in F32.
_SMALL = (MODEL_TENSOR.POS_EMBD, MODEL_TENSOR.TOKEN_TYPES)
_F16_MAX = 65504.0


@dataclass(frozen=True, slots=True)
class TargetTensor:
    """A tensor of the new file and where its values come from."""

    name: str
    source: StoredTensor
    is_f32: bool

    @property
    def dtype(self) -> "np.dtype[np.float16] | np.dtype[np.float32]":
        """Matrices are F16, vectors F32: as every converter writes them."""
        return np.dtype(np.float32) if self.is_f32 else np.dtype(np.float16)

    def values(self, architecture: Architecture, config: Config) -> Array:
        """The values as they are written."""
        loaded = architecture.transform(config, self.source.name, self.source.load())
        if not self.is_f32 and loaded.dtype != np.float16:
            # BF16 and F32 reach further; an infinite weight would make every answer nonsense.
            loaded = np.clip(loaded, -_F16_MAX, _F16_MAX)
        return np.ascontiguousarray(loaded.astype(self.dtype, copy=False))


def target_tensors(
    architecture: Architecture, config: Config, stored: Mapping[str, StoredTensor]
) -> list[TargetTensor]:
    """What the new file will have, in the order of the names given.

    Raises Refused for tensors that are missing or that nobody knows.
    """
    names = gguf.get_tensor_name_map(architecture.gguf, n_blocks(config))
    found = []
    for tensor in stored.values():
        name = tensor.name.removeprefix(architecture.strips)
        if tensor.name.endswith(architecture.leaves_out):
            continue
        known = names.get_type_and_name(name, try_suffixes=(".weight", ".bias"))
        if known is None:
            raise Refused(
                f"the tensor `{tensor.name[:80]}` has no place in a model of this architecture"
            )
        tensor.check_type()
        kind, target = known
        found.append(TargetTensor(target, tensor, len(tensor.shape) < 2 or kind in _SMALL))
    _check_complete(architecture, config, {tensor.name for tensor in found})
    return found


def _check_complete(architecture: Architecture, config: Config, names: set[str]) -> None:
    for name in _required(architecture, config):
        if name not in names:
            raise Refused(f"the safetensors lack what becomes the tensor `{name}`")


def _required(architecture: Architecture, config: Config) -> Iterator[str]:
    for kind in architecture.required:
        pattern = TENSOR_NAMES[kind] + ".weight"
        if "{bid}" in pattern:
            yield from (pattern.format(bid=number) for number in range(n_blocks(config)))
        else:
            yield pattern
