"""The nouns of a loaded model: how it is to be loaded, what it then holds, and how it fares.

Values only, like those of `localrun.core`: frozen msgspec structs, without I/O. Counts are tokens
unless a name says otherwise.
"""

from typing import Literal

from msgspec import Struct

from localrun.memory import CPU, Need

# Who holds which cells: one pool for all sequences, or a whole window for each slot.
KvLayout = Literal["unified", "split"]

# How waiting sequences enter: at every step; a full batch that runs to its end; or a batch that
# also starts when its oldest member has waited long enough.
Admission = Literal["continuous", "static", "dynamic"]


class LoadOptions(Struct, frozen=True):
    """What a request or a Modelfile may fix about a loaded model. None leaves the choice to us.

    `num_ctx` tokens per sequence, `num_batch` rows per forward, `num_gpu` layers on GPUs,
    `main_gpu` the number of the only GPU to use, `tensor_split` the share of each GPU.
    """

    num_ctx: int | None = None
    num_batch: int | None = None
    num_gpu: int | None = None
    main_gpu: int | None = None
    tensor_split: tuple[float, ...] | None = None
    use_mmap: bool | None = None
    num_thread: int | None = None
    admission: Admission | None = None


# Rows of one forward: llama.cpp's own default for a ubatch. More only grows the compute buffer.
DEFAULT_N_BATCH = 512

# The architecture in a GGUF file that makes it a script for `localrun.runner.fake`.
FAKE_ARCHITECTURE = "localrun-fake"


class Verdict(Struct, frozen=True):
    """What a self-test found fastest for one model on one machine.

    `merges_rows`: decodes and prompt rows share a forward instead of having one each.
    """

    layout: KvLayout
    flash_attention: bool
    merges_rows: bool = False


def model_key(weights_digest: str, adapter_paths: tuple[str, ...]) -> str:
    """Identity of what is in memory: the weights and what is applied on top of them."""
    return "+".join((weights_digest, *adapter_paths))


class LoadSpec(Struct, frozen=True):
    """Everything that decides what a runner holds: weights, adapters and load options.

    A split model has its further parts in `more_weights_paths`, in order; `weights_digest` names
    all of them together.

    Names that share these share a runner; template, system text and sampling travel with the
    call instead. `engine` is `fake` for the scripted model of the tests. `asked` are the options
    that a request or a Modelfile fixed; the other fields hold what came of them.

    `n_gpu_layers` -1 is as many as fit. `gpu_overhead_bytes` are kept free on each GPU, by its
    name, or by the empty name on all others; `spreads` uses all GPUs even for what fits one;
    `rpc_servers` (host:port) lend theirs.

    A model that `embeds` makes vectors and no text; up to `embed_batch` tokens of texts share a
    forward (None: as many as pay), which waits up to `embed_delay_s` for more of them.

    `kv_pool` tokens of all sequences together, None measures; `kv_layout` None and
    `flash_attention` None follow `verdict`, the result of an earlier self-test, if there is one.
    `host_tier_bytes` of RAM hold the KV of sequences that had to leave the pool, None a share of
    what is free. `tpot_target_ms` bounds a step that has prompts beside running streams, None
    follows the model's own pace.
    """

    weights_path: str
    weights_digest: str
    n_ctx: int
    n_parallel: int
    n_threads: int
    engine: Literal["llama", "fake"] = "llama"
    more_weights_paths: tuple[str, ...] = ()
    adapter_paths: tuple[str, ...] = ()
    n_batch: int = DEFAULT_N_BATCH
    n_gpu_layers: int = -1
    main_gpu: int | None = None
    tensor_split: tuple[float, ...] | None = None
    gpu_overhead_bytes: dict[str, int] = {}
    spreads: bool = False
    rpc_servers: tuple[str, ...] = ()
    use_mmap: bool | None = None
    kv_cache_type: str = "f16"
    flash_attention: bool | None = None
    kv_pool: int | None = None
    kv_layout: KvLayout | None = None
    host_tier_bytes: int | None = None
    tpot_target_ms: float | None = None
    admission: Admission = "continuous"
    embeds: bool = False
    embed_batch: int | None = None
    embed_delay_s: float = 0.0
    verdict: Verdict | None = None
    asked: LoadOptions = LoadOptions()

    @property
    def weights_paths(self) -> tuple[str, ...]:
        """All files of the weights, in order."""
        return (self.weights_path, *self.more_weights_paths)

    @property
    def key(self) -> str:
        """See `model_key`."""
        return model_key(self.weights_digest, self.adapter_paths)

    def covers(self, wanted: "LoadSpec") -> bool:
        """True when a runner loaded with this spec can serve `wanted` without loading again.

        Only options that `wanted` really asks for count. The window is none of them: a smaller
        one is a cap on the sequence, for a larger one the runner makes a new context around the
        weights that it has.
        """
        asked = wanted.asked
        return (
            self.key == wanted.key
            and asked.num_batch in (None, self.n_batch)
            and asked.num_gpu in (None, self.n_gpu_layers)
            and asked.main_gpu in (None, self.main_gpu)
            and asked.tensor_split in (None, self.tensor_split)
            and asked.use_mmap in (None, self.use_mmap)
            and asked.admission in (None, self.admission)
            and (asked.num_thread in (None, 0) or wanted.n_threads == self.n_threads)
        )


class RunnerInfo(Struct, frozen=True):
    """What a loaded runner really holds.

    `n_ctx` tokens per sequence, `n_slots` sequences at once, `n_cells` tokens of all sequences
    together; `needs` is what lies on each device, as allocated.
    """

    n_ctx: int
    n_slots: int
    n_cells: int = 0
    layout: KvLayout = "split"
    flash_attention: bool = False
    needs: dict[str, Need] = {}

    @property
    def device_bytes(self) -> dict[str, int]:
        """Bytes by device name."""
        return {name: need.total_bytes for name, need in self.needs.items()}

    @property
    def size_bytes(self) -> int:
        """Bytes on all devices."""
        return sum(self.device_bytes.values())

    @property
    def size_vram_bytes(self) -> int:
        """Bytes on all devices but the CPU."""
        return sum(n for name, n in self.device_bytes.items() if name != CPU)


class Histogram(Struct, frozen=True):
    """Observations so far: `counts` one for each bucket of the metric and one above the last."""

    counts: tuple[int, ...]
    sum: float


class RunnerStats(Struct, frozen=True):
    """Counters and gauges of one runner since its load, by the names in `localrun.metrics`.

    `cpu` is the processor that its engine's thread computes on; None while not all processors
    compute, and the kernel finds a free one for whoever needs it.
    """

    values: dict[str, float] = {}
    histograms: dict[str, Histogram] = {}
    cpu: int | None = None


class Resident(Struct, frozen=True):
    """A model in memory, as `ps` shows it: a copy, never live state.

    `expires_at_s` is unix time, infinite for a model that stays. `n_queued` requests have no slot.
    `info` of a model that is being loaded is what it is planned to hold, None before there is a
    plan.
    """

    key: str
    model: str
    state: Literal["loading", "ready", "stopping"]
    expires_at_s: float
    n_busy: int = 0
    n_queued: int = 0
    info: RunnerInfo | None = None
    stats: RunnerStats | None = None
