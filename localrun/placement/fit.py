"""What a load is made with before anything is measured: window, batch, threads. Pure.

Also how much the machine's GPUs change of that. Which layers go where is for the runner to say,
which measures (`placement.layers`); `num_gpu` of a request is handed on to it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from localrun.memory import Device
from localrun.placement.layers import overhead_of, usable
from localrun.spec import DEFAULT_N_BATCH, LoadOptions

_GIB = 1 << 30

# Tokens of a window by memory of all GPUs, as in Ollama: the cards have 24 and 48 GiB, a little
# less of which is reported.
_N_CTX_BY_GPU_BYTES = ((47 * _GIB, 262_144), (23 * _GIB, 32_768), (0, 4096))

# Models in memory for each GPU, and on a machine without one. Ollama's number.
_MAX_LOADED_PER_GPU = 3


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds unless a request or a Modelfile says otherwise. `n_ctx` None chooses.

    Nobody gets more than `n_threads_max` threads: beyond the CPUs they only wait for each other.
    """

    n_ctx: int | None
    n_threads: int
    n_threads_max: int
    n_batch: int = DEFAULT_N_BATCH
    gpu_overhead_bytes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Placement:
    """What to load with: tokens of a window, rows of a forward, CPU threads, layers on GPUs."""

    n_ctx: int
    n_batch: int
    n_threads: int
    n_gpu_layers: int


def usable_bytes(gpus: Iterable[Device], overheads: Mapping[str, int]) -> int:
    """Memory of `gpus` altogether, without what the user keeps free."""
    return sum(max(0, gpu.total_bytes - overhead_of(gpu, overheads)) for gpu in gpus)


def default_n_ctx(gpu_bytes: int) -> int:
    """Tokens of a window that nobody asked for, with so much memory of all GPUs together.

    Source: Ollama, which also counts the total rather than what is free just now.
    """
    return next(n_ctx for least, n_ctx in _N_CTX_BY_GPU_BYTES if gpu_bytes >= least)


def default_max_loaded(n_gpus: int) -> int:
    """Models in memory at once unless a setting says otherwise."""
    return _MAX_LOADED_PER_GPU * max(1, n_gpus)


def place(
    options: LoadOptions,
    defaults: Defaults,
    *,
    n_ctx_train: int,
    devices: Sequence[Device] = (),
) -> Placement:
    """The placement of a model that was trained on windows of `n_ctx_train` (0: not known).

    A window never exceeds the trained one, whoever asked for it: what lies beyond is noise.
    `devices` are those of the machine.
    """
    n_ctx = options.num_ctx or defaults.n_ctx
    if not n_ctx:
        gpus, _ = usable(devices)
        n_ctx = default_n_ctx(usable_bytes(gpus, defaults.gpu_overhead_bytes))
    return Placement(
        n_ctx=min(n_ctx, n_ctx_train) if n_ctx_train else n_ctx,
        n_batch=options.num_batch or defaults.n_batch,
        n_threads=min(options.num_thread or defaults.n_threads, defaults.n_threads_max),
        n_gpu_layers=-1 if options.num_gpu is None else options.num_gpu,
    )
