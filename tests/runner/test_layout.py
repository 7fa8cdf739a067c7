"""The shape of a context: what memory, settings and verdicts make of a window and some slots."""

from typing import Any

import pytest

from localrun.errors import WindowTooLarge
from localrun.runner.engine.layout import ModelFacts, Shape, choose_shape, n_ctx_max, window_of
from localrun.spec import LoadOptions, LoadSpec, Verdict

PLENTY = 1 << 40
FACTS = ModelFacts(cell_bytes=1)
UNIFIED = Verdict("unified", flash_attention=True)
SPLIT = Verdict("split", flash_attention=False)


def spec_of(**fields: Any) -> LoadSpec:
    fields = {"n_ctx": 1000, "n_parallel": 4, "n_threads": 1, **fields}
    return LoadSpec("path", "digest", **fields)


def shape_of(
    facts: ModelFacts = FACTS,
    free_bytes: int = PLENTY,
    *,
    n_ctx: int = 1000,
    needs_split: bool = False,
    **fields: Any,
) -> Shape:
    return choose_shape(spec_of(**fields), facts, free_bytes, n_ctx=n_ctx, needs_split=needs_split)


@pytest.mark.parametrize(
    ("wishes", "layout", "n_ctx", "n_slots", "n_cells"),
    [
        # Memory decides first: a quarter of what is free is the KV cache's.
        ({}, "split", 1000, 4, 4 * 1024),
        ({"free_bytes": 16_000}, "split", 1000, 4, 4 * 1024),
        ({"free_bytes": 15_996}, "unified", 1000, 4, 4096),
        ({"free_bytes": 8_000}, "unified", 1000, 4, 2048),
        ({"free_bytes": 2_000}, "unified", 1000, 4, 1024),  # one window has the right to more
        ({"free_bytes": 1_000}, "unified", 768, 4, 768),  # but not to all
        ({"free_bytes": 10}, "unified", 256, 4, 256),
        ({"facts": ModelFacts(cell_bytes=1000), "free_bytes": 8_000_000}, "unified", 1000, 4, 2048),
        # KV_POOL says how many cells there are, whatever is free.
        ({"kv_pool": 4000}, "split", 1000, 4, 4096),
        ({"kv_pool": 3999}, "unified", 1000, 4, 4096),
        ({"kv_pool": 9000}, "split", 1000, 4, 4096),
        ({"kv_pool": 2500, "free_bytes": 8_000}, "unified", 1000, 4, 2560),
        ({"kv_pool": 4000, "free_bytes": 8_000}, "split", 1000, 4, 4096),
        ({"kv_pool": 500}, "unified", 500, 4, 512),
        ({"kv_pool": 500, "n_parallel": 1}, "split", 500, 1, 512),
        # A layout that is asked for, and what fits it.
        ({"kv_layout": "unified"}, "unified", 1000, 4, 4096),
        ({"kv_layout": "split", "kv_pool": 2500}, "split", 1000, 2, 2048),
        ({"kv_layout": "split", "kv_pool": 500}, "split", 500, 1, 512),
        ({"kv_layout": "split", "free_bytes": 8_000}, "split", 1000, 2, 2048),
        ({"kv_layout": "split", "free_bytes": 2_000}, "split", 1000, 1, 1024),
        # A verdict counts where memory and settings leave the choice.
        ({"verdict": UNIFIED}, "unified", 1000, 4, 4096),
        ({"verdict": SPLIT}, "split", 1000, 4, 4096),
        ({"verdict": SPLIT, "free_bytes": 8_000}, "unified", 1000, 4, 2048),
        ({"verdict": UNIFIED, "kv_layout": "split"}, "split", 1000, 4, 4096),
        ({"verdict": SPLIT, "kv_layout": "unified"}, "unified", 1000, 4, 4096),
        # A sequence that must not share its cells decides alone.
        ({"needs_split": True, "free_bytes": 8_000}, "split", 1000, 2, 2048),
        ({"needs_split": True, "kv_layout": "unified"}, "split", 1000, 4, 4096),
        ({"needs_split": True, "verdict": UNIFIED}, "split", 1000, 4, 4096),
        # A window that somebody asked for later.
        ({"n_ctx": 3000}, "split", 3000, 4, 4 * 3072),
        ({"n_ctx": 3000, "free_bytes": 16_000}, "unified", 3000, 4, 4096),
        ({"n_ctx": 3000, "kv_pool": 2500}, "unified", 2500, 4, 2560),
    ],
)
def test_the_shape_of_a_context(
    wishes: dict[str, Any], layout: str, n_ctx: int, n_slots: int, n_cells: int
) -> None:
    shape = shape_of(**wishes)
    assert (shape.layout, shape.n_ctx, shape.n_slots) == (layout, n_ctx, n_slots)
    assert shape.n_cells == n_cells


@pytest.mark.parametrize(
    ("n_original", "n_ctx", "layout", "n_cells"),
    [
        (0, 1000, "unified", 4096),
        (4096, 1000, "unified", 4096),
        (2048, 1000, "unified", 2048),  # a larger pool would change every short answer
        (2048, 2048, "unified", 2048),
        (2048, 2049, "unified", 4 * 2049 // 256 * 256 + 256),  # beyond it the pool does no harm
        (2048, 1000, "split", 4 * 1024),  # each window is a stream of its own
    ],
)
def test_a_pool_stays_within_the_window_of_short_rope_factors(
    n_original: int, n_ctx: int, layout: Any, n_cells: int
) -> None:
    facts = ModelFacts(cell_bytes=1, n_ctx_original=n_original)
    assert shape_of(facts, n_ctx=n_ctx, kv_layout=layout).n_cells == n_cells


@pytest.mark.parametrize(
    ("layout", "n_parallel", "shares_prefixes", "n_slots", "n_ids"),
    [
        ("unified", 4, True, 4, 20),
        ("unified", 4, False, 4, 4),  # nobody could use what is kept
        ("unified", 250, True, 250, 256),
        ("unified", 300, True, 256, 256),
        ("split", 4, True, 4, 4),
        ("split", 4, False, 4, 4),
    ],
)
def test_ids_beyond_the_slots_are_for_those_that_are_kept(
    layout: Any, n_parallel: int, shares_prefixes: bool, n_slots: int, n_ids: int
) -> None:
    facts = ModelFacts(cell_bytes=1, shares_prefixes=shares_prefixes)
    shape = shape_of(facts, n_parallel=n_parallel, kv_layout=layout)
    assert (shape.n_slots, shape.n_ids) == (n_slots, n_ids)


@pytest.mark.parametrize("layout", ["unified", "split"])
def test_there_are_never_more_ids_than_llama_cpp_has(layout: Any) -> None:
    shape = shape_of(n_ctx=100, n_parallel=1000, kv_layout=layout)
    assert shape.n_slots <= shape.n_ids <= 256


@pytest.mark.parametrize(
    ("setting", "verdict", "expected"),
    [(None, None, None), (None, SPLIT, False), (None, UNIFIED, True), (True, SPLIT, True)],
)
def test_flash_attention_is_the_settings_or_the_verdicts(
    setting: bool | None, verdict: Verdict | None, expected: bool | None
) -> None:
    assert shape_of(flash_attention=setting, verdict=verdict).flash_attention is expected


@pytest.mark.parametrize(
    ("free_bytes", "cell_bytes", "n"),
    [(0, 1, 256), (1000, 1, 768), (10_000, 1, 7936), (10_000, 10, 768), (100, 1000, 256)],
)
def test_the_largest_window_is_four_fifths_of_what_is_free(
    free_bytes: int, cell_bytes: int, n: int
) -> None:
    assert n_ctx_max(ModelFacts(cell_bytes), free_bytes) == n


@pytest.mark.parametrize(
    ("n_ctx", "free_bytes", "fields", "expected"),
    [
        (700, PLENTY, {}, 700),
        (5000, PLENTY, {}, 5000),  # the context will be made anew for it
        (5000, PLENTY, {"kv_pool": 2000}, 2000),
        (1000, 1000, {}, 768),  # nobody asked for so much
        (1000, 1000, {"kv_pool": 700}, 700),
    ],
)
def test_the_window_of_a_sequence(
    n_ctx: int, free_bytes: int, fields: dict[str, Any], expected: int
) -> None:
    assert window_of(spec_of(**fields), FACTS, free_bytes, n_ctx) == expected


@pytest.mark.parametrize(
    ("n_ctx", "fields"),
    [
        (5000, {}),
        (1000, {"asked": LoadOptions(num_ctx=1000)}),
        (5000, {"kv_pool": 2000}),
    ],
)
def test_a_window_that_was_asked_for_is_never_cut(n_ctx: int, fields: dict[str, Any]) -> None:
    with pytest.raises(WindowTooLarge) as caught:
        window_of(spec_of(**fields), FACTS, 1000, n_ctx)
    assert caught.value.n_ctx_max == 768
