"""What a split takes on each device, measured by llama.cpp itself: loaded without its weights.

llama.cpp plans buffers for weights, KV cache and compute as for a real load, byte for byte, in
the time that it takes to read the header. Where the exact sums are not to be had, they come from
the file's table of tensors and from the log.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from localrun.memory import CPU, Need, Split, added
from localrun.placement.layers import Layer, Sizes, needs_of
from localrun.runner.engine.layout import EmbeddingShape, ModelFacts, Shape
from localrun.runner.ggml import library
from localrun.runner.ggml.binding import lib
from localrun.runner.ggml.devices import Machine
from localrun.runner.ggml.facts import n_blocks, read_facts
from localrun.runner.ggml.files import open_weights, tensor_bytes
from localrun.runner.ggml.log import Lines, log
from localrun.runner.ggml.params import EXPERTS, context_params, model_params, without_allocation
from localrun.runner.model import LoadRefused
from localrun.spec import LoadSpec

_EXPERTS = re.compile(EXPERTS)
_BLOCK = re.compile(r"blk\.(\d+)\.")
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Measured:
    """Needs by device with one split and shape; KV of each layer, about."""

    needs: dict[str, Need]
    kv_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tensors:
    """A file's tensors: bytes of each block, of its experts, and of what is in no block."""

    blocks: tuple[int, ...]
    experts: tuple[int, ...]
    input_bytes: int
    output_bytes: int
    is_tied: bool

    @property
    def sizes(self) -> Sizes:
        """What the layers take, KV and compute buffers aside."""
        parts = zip(self.blocks, self.experts, strict=True)
        layers = tuple(Layer(weights, 0, experts) for weights, experts in parts)
        return Sizes(layers, self.input_bytes, self.output_bytes, self.is_tied)

    @classmethod
    def of(cls, sizes: Mapping[str, int], n_layers: int) -> "Tensors":
        """Adds up what llama.cpp's table of tensors says."""
        blocks, experts = [0] * n_layers, [0] * n_layers
        outputs = inputs = 0
        for name, n_bytes in sizes.items():
            block = _BLOCK.match(name)
            if block and int(block[1]) < n_layers:
                blocks[int(block[1])] += n_bytes
                experts[int(block[1])] += n_bytes if _EXPERTS.search(name) else 0
            elif name.startswith("output"):
                outputs += n_bytes
            else:
                inputs += n_bytes
        is_tied = "output.weight" not in sizes
        shared = sizes.get("token_embd.weight", 0) if is_tied else 0
        return cls(tuple(blocks), tuple(experts), inputs, outputs + shared, is_tied)


def read_needs(
    context: Any, machine: Machine, shape: Shape | EmbeddingShape, n_vocab: int
) -> dict[str, Need] | None:
    """What a context and its model have on each device; None where llama.cpp does not tell.

    The logits are not in llama.cpp's sums; they are in RAM.
    """
    sums = library.breakdown(context)
    if sums is None:
        return None
    needs = {CPU: Need(compute_bytes=shape.n_outputs * n_vocab * _FLOAT_BYTES)}
    for buffer_type, weights, kv, compute in sums:
        needs = added(needs, {machine.home(buffer_type): Need(weights, kv, compute)})
    return needs


def with_adapters(
    needs: Mapping[str, Need], spec: LoadSpec, n_layers: int, split: Split
) -> dict[str, Need]:
    """`needs`, of weights alone, and the spec's adapters.

    llama.cpp does not count them; each of their tensors lies beside the one that it changes.
    """
    if not spec.adapter_paths:
        return dict(needs)
    adapters = Tensors.of(tensor_bytes(spec.adapter_paths), n_layers)
    return added(needs, needs_of(adapters.sizes, split))


class Probe:
    """A model with one split, without memory. Use as a context manager. Raises LoadRefused."""

    def __init__(self, spec: LoadSpec, split: Split, machine: Machine) -> None:
        self._spec = spec
        self._split = split
        self._machine = machine
        params = without_allocation(model_params(spec, split, machine.handle))
        self._weights = open_weights(spec, params.struct)
        if not self._weights:
            raise LoadRefused("llama.cpp cannot load the file")
        try:
            self.facts: ModelFacts = read_facts(self._weights, spec, split)
        except LoadRefused:
            self.close()
            raise
        self._n_vocab = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._weights)))
        tensors = tensor_bytes((*spec.weights_paths, *spec.adapter_paths))
        self._tensors = Tensors.of(tensors, n_blocks(self._weights))

    def __enter__(self) -> "Probe":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees it."""
        if self._weights:
            lib.llama_model_free(self._weights)
            self._weights = None

    def measure(self, shape: Shape | EmbeddingShape) -> Measured:
        """What it takes with a context of this shape. Raises LoadRefused."""
        with log().reading() as lines:
            context = lib.llama_init_from_model(self._weights, context_params(self._spec, shape))
        if not context:
            raise LoadRefused(f"llama.cpp cannot make a context of {shape.n_cells} tokens")
        needs = read_needs(context, self._machine, shape, self._n_vocab)
        lib.llama_free(context)
        kv = lines.kv_bytes(len(self._tensors.blocks))
        if needs is None:
            needs = self._added_up(kv, lines, shape)
        else:
            n_layers = len(self._tensors.blocks)
            needs = with_adapters(needs, self._spec, n_layers, self._split)
        return Measured(self._as_loaded(needs), tuple(kv))

    def _as_loaded(self, needs: dict[str, Need]) -> dict[str, Need]:
        """With a copy of an input that llama.cpp only plans for when it really loads.

        Seen on the later ones of several GPUs that have the whole model, up to what the first one
        takes; measured and loaded are equal in all other cases.
        """
        devices = self._split.devices
        if len(devices) < 2 or self._split.n_gpu_layers <= len(self._tensors.blocks):
            return needs
        first = needs[devices[0]].compute_bytes
        return {
            name: replace(need, compute_bytes=max(first, need.compute_bytes))
            if name in devices
            else need
            for name, need in needs.items()
        }

    def _added_up(
        self, kv: list[int], lines: Lines, shape: Shape | EmbeddingShape
    ) -> dict[str, Need]:
        tensors = self._tensors
        layers = tuple(Layer(*one) for one in zip(tensors.blocks, kv, tensors.experts, strict=True))
        sizes = Sizes(layers, tensors.input_bytes, tensors.output_bytes, tensors.is_tied)
        needs = needs_of(sizes, self._split)
        compute = {CPU: shape.n_outputs * self._n_vocab * _FLOAT_BYTES}
        for buffer, kind, n_bytes in lines.buffers():
            if kind == "compute":
                name = self._machine.home_of_name(buffer)
                compute[name] = compute.get(name, 0) + n_bytes
        return {
            name: replace(need, compute_bytes=compute.get(name, 0)) for name, need in needs.items()
        }

    def sizes(self, measured: Measured) -> Sizes:
        """The parts of a measurement with all layers on the first GPU, or none on any."""
        tensors = self._tensors
        total = sum(need.kv_bytes for need in measured.needs.values())
        kv = _scaled(measured.kv_bytes, total)
        layers = tuple(Layer(*one) for one in zip(tensors.blocks, kv, tensors.experts, strict=True))
        ram = measured.needs[CPU]
        in_blocks = sum(tensors.blocks)
        if not self._split.devices:
            rest = max(0, ram.weights_bytes - in_blocks)
            return Sizes(layers, rest, 0, cpu_compute_bytes=ram.compute_bytes)
        gpu = measured.needs.get(self._split.devices[0], Need())
        return Sizes(
            layers,
            ram.weights_bytes,
            max(0, gpu.weights_bytes - in_blocks),
            tensors.is_tied,
            gpu.compute_bytes,
            ram.compute_bytes,
        )


def _scaled(parts: tuple[int, ...], total: int) -> list[int]:
    """`total` shared out as `parts` are, or evenly where they are not known; rounded up."""
    known = sum(parts)
    if not known:
        return [-(-total // max(1, len(parts)))] * len(parts)
    return [-(-part * total // known) for part in parts]
