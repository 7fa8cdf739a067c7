"""The nouns of memory: devices, what a model needs on each, and where its layers would lie.

Values only, shared by the daemon and its runners. All sizes are bytes; a device is named as
llama.cpp names it (`CPU`, `CUDA0`, `RPC0`, …), and the CPU's memory is RAM.
"""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

CPU = "CPU"

DeviceKind = Literal["cpu", "gpu", "igpu", "accel"]

# The kinds that layers can be put on: with memory of its own, and with a part of RAM.
GPU_KINDS: tuple[DeviceKind, ...] = ("gpu", "igpu")

# now      nothing would be gained by waiting
# crowded  other models take memory that would hold more of its layers, or hold it at all
# never    not even with all other models gone
Fit = Literal["now", "crowded", "never"]


class Device(Struct, frozen=True):
    """A place for layers. `free_bytes` is live and already without what the user keeps back.

    `description` is the maker's name of it; for a device of another machine `endpoint` is that
    machine's host:port.
    """

    name: str
    kind: DeviceKind
    free_bytes: int
    total_bytes: int
    description: str = ""
    endpoint: str = ""

    @property
    def is_gpu(self) -> bool:
        """True when layers can be put on it."""
        return self.kind in GPU_KINDS


class Need(Struct, frozen=True):
    """What a model takes on one device: weights, KV cache, compute buffers."""

    weights_bytes: int = 0
    kv_bytes: int = 0
    compute_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.weights_bytes + self.kv_bytes + self.compute_bytes


class Split(Struct, frozen=True):
    """Which layers go where.

    The last `n_gpu_layers` of the model's layers, of which its output is one, lie on `devices`, in
    this order and with `layers` of them each; the others on the CPU. Of the first `n_cpu_experts`
    layers only the experts stay in RAM. Without devices all lies on the CPU.
    """

    n_gpu_layers: int = 0
    devices: tuple[str, ...] = ()
    layers: tuple[int, ...] = ()
    n_cpu_experts: int = 0


class Plan(Struct, frozen=True):
    """How a runner would load a model, by what it measured on the machine as it is now.

    `needs` and `available` are by device name: what the model takes with this split, and what it
    could have. `reasons` say in words why it became this split. With `fit` `never`, the needs are
    those of the smallest split that was tried.
    """

    fit: Fit
    split: Split
    needs: dict[str, Need]
    available: dict[str, int]
    n_ctx: int = 0
    n_cells: int = 0
    reasons: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """True when it could be loaded at once."""
        return all(
            need.total_bytes <= self.available.get(name, 0) for name, need in self.needs.items()
        )


def added(one: Mapping[str, Need], other: Mapping[str, Need]) -> dict[str, Need]:
    """What both take, by device name."""
    total = dict(one)
    for name, more in other.items():
        before = total.get(name, Need())
        total[name] = Need(
            before.weights_bytes + more.weights_bytes,
            before.kv_bytes + more.kv_bytes,
            before.compute_bytes + more.compute_bytes,
        )
    return total
