"""Where a model goes and how large its context is. Pure.

Decides what a machine without GPUs has to decide, the window and the threads; what llama.cpp puts
on GPUs is left to the request's `num_gpu`, or to llama.cpp, which takes every layer that it can.
"""

from dataclasses import dataclass

from localrun.core import DEFAULT_N_BATCH, LoadOptions

# Ollama's window for machines with less than 23 GiB of GPU memory.
DEFAULT_N_CTX = 4096


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds unless a request or a Modelfile says otherwise. `n_ctx` None chooses.

    Nobody gets more than `n_threads_max` threads: beyond the CPUs they only wait for each other.
    """

    n_ctx: int | None
    n_threads: int
    n_threads_max: int
    n_batch: int = DEFAULT_N_BATCH


@dataclass(frozen=True, slots=True)
class Placement:
    """What to load with: tokens of a window, rows of a forward, CPU threads, layers on GPUs."""

    n_ctx: int
    n_batch: int
    n_threads: int
    n_gpu_layers: int


def place(options: LoadOptions, defaults: Defaults, *, n_ctx_train: int) -> Placement:
    """The placement of a model that was trained on windows of `n_ctx_train` (0: not known).

    A window never exceeds the trained one, whoever asked for it: what lies beyond is noise.
    """
    n_ctx = options.num_ctx or defaults.n_ctx or DEFAULT_N_CTX
    return Placement(
        n_ctx=min(n_ctx, n_ctx_train) if n_ctx_train else n_ctx,
        n_batch=options.num_batch or defaults.n_batch,
        n_threads=min(options.num_thread or defaults.n_threads, defaults.n_threads_max),
        n_gpu_layers=-1 if options.num_gpu is None else options.num_gpu,
    )
