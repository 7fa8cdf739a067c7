"""The context around the weights: which one there is, and when another one takes its place."""

from collections.abc import Callable

from localrun.runner.engine.cache import KvCache
from localrun.runner.engine.cost_model import CostModel
from localrun.runner.engine.host_tier import HostTier, default_limit_bytes
from localrun.runner.engine.layout import Shape, choose_shape
from localrun.runner.engine.meter import Meter
from localrun.runner.model import LoadRefused, Model
from localrun.spec import KvLayout, LoadSpec, Verdict


class Context:
    """Owns shape and KV cache, and the host tier, which outlives them. Engine thread only."""

    def __init__(
        self,
        model: Model,
        spec: LoadSpec,
        costs: CostModel,
        meter: Meter,
        clock_ns: Callable[[], int],
    ) -> None:
        self._model = model
        self._clock_ns = clock_ns
        self._spec = spec
        self._costs = costs
        self._meter = meter
        self.host = HostTier(model.host_tier_bytes)
        self.n_ctx = spec.n_ctx  # the largest window that anybody has asked for
        self.reopen(model.first_shape or self._choose(needs_split=False))
        self._preferred = self.shape.layout

    @property
    def window(self) -> int:
        """Tokens that a sequence may have here."""
        return self.n_ctx if self._is_one_pool else self.shape.n_ctx

    @property
    def _is_one_pool(self) -> bool:
        # A pool serves any window that is not larger than itself. Not where llama.cpp chooses the
        # rope's factors by the size of the context: there a window is what it was made for.
        return self.shape.layout == "unified" and not self._model.facts.n_ctx_original

    def wanted(self, n_ctx: int, *, needs_split: bool, is_empty: bool) -> Shape | None:
        """The context that has to take the place of this one, if any.

        A larger window needs one, and a sequence that must not share its cells. When such
        sequences have gone, the usual layout comes back as soon as nobody runs.
        """
        self.n_ctx = max(self.n_ctx, n_ctx)
        fits = self.n_ctx <= (self.shape.n_cells if self._is_one_pool else self.shape.n_ctx)
        must_split = needs_split and self.shape.layout == "unified"
        is_foreign = is_empty and not needs_split and self.shape.layout != self._preferred
        if fits and not must_split and not is_foreign:
            return None
        shape = self._choose(needs_split=needs_split)
        if (shape.n_ctx, shape.layout) == (self.shape.n_ctx, self.shape.layout):
            self.n_ctx = self.shape.n_ctx  # there is no memory for more
            return None
        return shape

    def _choose(self, *, needs_split: bool) -> Shape:
        model = self._model
        return choose_shape(
            self._spec, model.facts, model.free_bytes(), n_ctx=self.n_ctx, needs_split=needs_split
        )

    def replace(self, shape: Shape) -> None:
        """Another context, or the same one again where memory has no other. Nobody may run.

        Kept sequences move to the host tier, as far as it holds them.
        """
        before = self.shape
        self.cache.save_donors()
        try:
            self.reopen(shape)
        except LoadRefused:
            self.reopen(before)
            self.n_ctx = before.n_ctx
        self._meter.count("context_rebuilds_total")

    def reopen(self, shape: Shape) -> None:
        """An empty context. Raises LoadRefused."""
        self._model.open(shape)
        self.shape = shape
        if self._spec.host_tier_bytes is None:
            kv_bytes = shape.n_cells * self._model.facts.cell_bytes
            self.host.limit_bytes = default_limit_bytes(kv_bytes, self._model.host_tier_bytes)
        self.cache = KvCache(
            self._model, shape, self.host, self._costs, self._meter, self._clock_ns
        )

    def alternatives(self) -> list[tuple[KvLayout, bool]]:
        """The (layout, flash attention) that settings and memory leave open."""
        spec = self._spec
        layouts: list[KvLayout] = [self.shape.layout]
        if spec.kv_layout is None and self.shape.layout == "split":
            layouts.append("unified")
        kinds = [True, False] if spec.flash_attention is None else [spec.flash_attention]
        if spec.kv_cache_type != "f16":
            kinds = [True]  # llama.cpp needs it for a quantised V
        return [(layout, kind) for kind in kinds for layout in layouts]

    @property
    def merges_rows(self) -> bool:
        """Whether decodes and prompt rows share a call: measured for one kind of context only."""
        verdict: Verdict | None = self._spec.verdict
        return verdict is not None and verdict.merges_rows and self.shape.layout == verdict.layout
