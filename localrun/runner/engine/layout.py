"""Which shape a context takes: layout, window, slots, cells. Pure.

    unified  one pool. Any cell may be anybody's, a prefix is shared in place, nothing is reserved
             for a token that is not yet written. Attention walks over foreign cells.
    split    a whole window for each slot. Attention walks over own cells only; sharing copies.

Memory decides first: split only while a whole window for every slot fits what the KV cache may
have. Then a self-test's verdict, if there is one.
"""

from dataclasses import dataclass, replace
from typing import Literal

from localrun.errors import WindowTooLarge
from localrun.spec import DEFAULT_N_BATCH, KvLayout, LoadSpec

# Sequence ids beyond the slots of a unified pool, for sequences that are kept for their prefix.
# llama.cpp has 256 ids; each one costs an output row of logits.
_N_DONORS = 16
_MAX_IDS = 256

# Part of the free memory that the KV cache takes by itself, and the most that one window may ask.
_KV_SHARE = 0.25
WINDOW_SHARE = 0.8

# Texts that share a forward. Most texts are longer than 8 tokens, and an id costs an output row.
_MAX_TEXTS = 64

# Of contexts for vectors: what the logits of a forward may take, and of one that is as long as a
# window has to be; and rows that there are in any case.
_LOGITS_BYTES, _MOST_LOGITS_BYTES, _MIN_ROWS = 256 << 20, 1 << 30, 32

# More rows no longer pay: texts of one forward do not see each other, but attention is computed for
# each pair of its rows. all-MiniLM in F16 makes 500 vectors a second, of 16 tokens, with 64 rows,
# 620 with 128, 650 with 256 or 512 (2 cores), and who comes meanwhile waits half as long.
_SHARED_ON_CPU = 256
_FLOAT_BYTES = 4

# A window that nobody asked for is not cut below this to keep layers on a GPU: llama.cpp's own
# bound when it fits a context, and Ollama's window for the smallest machines.
_MIN_AUTO_N_CTX = 4096


# How the outputs of a text's tokens become one vector, or one score. Source: llama.cpp.
Pooling = Literal["mean", "cls", "last", "rank"]


@dataclass(frozen=True, slots=True)
class Shape:
    """A context to make. `n_cells` tokens in all, `n_ids` sequence ids, `n_ctx` a sequence."""

    layout: KvLayout
    n_ctx: int
    n_slots: int
    n_ids: int
    n_cells: int
    flash_attention: bool | None

    @property
    def n_outputs(self) -> int:
        """Rows whose logits are kept."""
        return self.n_ids


@dataclass(frozen=True, slots=True)
class EmbeddingShape:
    """A context for vectors: texts of `n_ctx` tokens, `n_rows` tokens of `n_ids` texts a forward.

    No more than `n_shared` rows are to be those of several texts. A text that `can_split` may have
    more tokens than a forward has rows.
    """

    n_ctx: int
    n_rows: int
    n_ids: int
    n_shared: int
    pooling: Pooling
    can_split: bool = False
    flash_attention: bool | None = None

    @property
    def n_cells(self) -> int:
        """A text that is split stands beside those of the next forward."""
        return self.n_rows + (self.n_ctx if self.can_split else 0)

    @property
    def n_outputs(self) -> int:
        """llama.cpp keeps logits of every row, wanted or not."""
        return self.n_rows


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What of a model decides the shape: bytes of one cell, and the positions that it was made for.

    `shares_prefixes` is False for models that cannot drop a suffix exactly (sliding windows,
    recurrent states). `n_ctx_original` is the window before its long-rope factors take over, 0
    for models without them: llama.cpp chooses them by the size of the pool. It also rounds the
    cells of a stream up to a multiple of `pad`. `pooling` makes vectors of outputs; a token of a
    model that is not `is_causal` sees those behind it. With quantized weights activations are
    quantized too, which makes a rounding of another order of sums 1e-4 of a vector: then texts
    share no forward on a CPU. `is_on_cpu` is a model without a layer on a GPU.
    """

    cell_bytes: int
    shares_prefixes: bool = True
    n_ctx_original: int = 0
    pad: int = 256
    n_vocab: int = 0
    pooling: Pooling = "last"
    is_causal: bool = True
    is_quantized: bool = False
    is_on_cpu: bool = False


def n_ctx_max(facts: ModelFacts, free_bytes: int) -> int:
    """The largest window that memory holds, in tokens; `free_bytes` counts the present context."""
    n_cells = int(free_bytes * WINDOW_SHARE) // facts.cell_bytes
    return max(facts.pad, n_cells // facts.pad * facts.pad)


def window_of(spec: LoadSpec, facts: ModelFacts, free_bytes: int, n_ctx: int) -> int:
    """The window of a sequence that asks for `n_ctx` tokens.

    KV_POOL bounds it; memory does too, but then only a window that nobody asked for is cut.
    Raises WindowTooLarge.
    """
    n_ctx = min(n_ctx, spec.kv_pool or n_ctx)
    n_max = n_ctx_max(facts, free_bytes)
    if n_ctx <= n_max:
        return n_ctx
    if spec.asked.num_ctx is None and n_ctx <= spec.n_ctx:
        return n_max
    raise WindowTooLarge(n_ctx, n_max)


def choose_shape(
    spec: LoadSpec, facts: ModelFacts, free_bytes: int, *, n_ctx: int, needs_split: bool = False
) -> Shape:
    """The context for windows of `n_ctx`; `needs_split` when a sequence must not share its cells.

    KV_POOL also bounds the window: a sequence cannot have more cells than there are. So does
    memory, but for a window that the load was asked for: whether it fits, a plan has told.
    """
    if spec.asked.num_ctx is None or n_ctx > spec.n_ctx:
        n_ctx = min(n_ctx, n_ctx_max(facts, free_bytes))
    n_affordable = int(free_bytes * _KV_SHARE) // facts.cell_bytes
    return _shape(spec, facts, n_ctx, n_affordable, needs_split=needs_split)


def embedding_shape(spec: LoadSpec, facts: ModelFacts, n_ctx: int) -> EmbeddingShape:
    """The context for vectors of texts of `n_ctx` tokens, fewer where a forward has no more rows.

    As many rows as the spec wants, but for a text that has to be evaluated in one piece; and no
    more than the logits that llama.cpp reserves for each of them may take.
    """
    can_split = facts.is_causal and facts.pooling in ("last", "rank")
    row_bytes = max(1, facts.n_vocab * _FLOAT_BYTES)
    n_shared = spec.embed_batch or (_SHARED_ON_CPU if facts.is_on_cpu else DEFAULT_N_BATCH)
    n_rows = spec.embed_batch or DEFAULT_N_BATCH
    n_rows = max(_MIN_ROWS, min(n_rows, _LOGITS_BYTES // row_bytes))
    if not can_split:
        n_rows = max(n_rows, min(n_ctx, _MOST_LOGITS_BYTES // row_bytes))
        n_ctx = min(n_ctx, n_rows)
    n_texts = 1 if facts.is_quantized and facts.is_on_cpu else min(_MAX_TEXTS, n_rows)
    n_rows = _multiple(n_rows, n_texts)
    flash_attention = spec.flash_attention
    if flash_attention is None and facts.is_causal and facts.is_on_cpu:
        # A chunk behind 1,000 tokens takes 4 times as long with it, and has other bits for each
        # of three kinds of size. A batch of texts that see ahead takes 2.7 times as long without.
        flash_attention = False
    n_shared = n_rows if n_texts == 1 else min(n_shared, n_rows)
    return EmbeddingShape(
        n_ctx, n_rows, n_texts, n_shared, facts.pooling, can_split, flash_attention
    )


def side_shape(shape: EmbeddingShape) -> EmbeddingShape:
    """A context beside that one: for texts that share a forward with others, so it is small."""
    n_rows = _multiple(min(shape.n_shared, _SHARED_ON_CPU), shape.n_ids)
    n_shared = min(shape.n_shared, n_rows)
    return replace(shape, n_ctx=min(shape.n_ctx, n_rows), n_rows=n_rows, n_shared=n_shared)


def _multiple(n_rows: int, n_texts: int) -> int:
    """llama.cpp reserves as many rows for each text, and ends the process where a rest is left."""
    return -(-n_rows // n_texts) * n_texts


def least_shape(spec: LoadSpec, facts: ModelFacts, n_ctx: int) -> Shape:
    """The smallest context for windows of `n_ctx`: no more cells than one of them or KV_POOL."""
    return _shape(spec, facts, n_ctx, 0, needs_split=False)


def n_ctx_least(spec: LoadSpec) -> int:
    """The window that will do where the whole one has no room: all of it if somebody asked."""
    return spec.n_ctx if spec.asked.num_ctx is not None else min(spec.n_ctx, _MIN_AUTO_N_CTX)


def _shape(
    spec: LoadSpec, facts: ModelFacts, n_ctx: int, n_affordable: int, *, needs_split: bool
) -> Shape:
    n_ctx = min(n_ctx, spec.kv_pool or n_ctx)
    n_wanted = n_ctx * spec.n_parallel
    n_pool = spec.kv_pool or max(n_ctx, min(n_wanted, n_affordable))
    is_long = 0 < facts.n_ctx_original < n_pool and n_ctx <= facts.n_ctx_original
    layout = "split" if needs_split else spec.kv_layout
    if layout is None:
        layout = _auto(spec, facts, fits_split=n_wanted <= n_pool)
    if layout == "unified" and is_long:
        n_pool = facts.n_ctx_original
    flash_attention = spec.flash_attention
    if flash_attention is None and spec.verdict is not None:
        flash_attention = spec.verdict.flash_attention
    if layout == "split":
        n_slots = max(1, min(spec.n_parallel, n_pool // n_ctx, _MAX_IDS))
        n_cells = n_slots * _padded(n_ctx, facts.pad)
        return Shape("split", n_ctx, n_slots, n_slots, n_cells, flash_attention)
    n_donors = _N_DONORS if facts.shares_prefixes else 0
    n_ids = min(spec.n_parallel + n_donors, _MAX_IDS)
    n_slots = min(spec.n_parallel, n_ids)
    n_cells = _padded(n_pool, facts.pad)
    return Shape("unified", n_ctx, n_slots, n_ids, n_cells, flash_attention)


def _auto(spec: LoadSpec, facts: ModelFacts, *, fits_split: bool) -> KvLayout:
    if not fits_split:
        return "unified"
    return spec.verdict.layout if spec.verdict is not None else "split"


def _padded(n: int, pad: int) -> int:
    return -(-n // pad) * pad
