"""llama.cpp for real: batching, sharing and yielding change nothing that a client could see; seeds
repeat."""

from pathlib import Path
from typing import Any

import pytest
from real_engine import (
    BOTH,
    N_CTX,
    PROMPTS,
    REPETITIVE,
    Bench,
    assert_equal_to_near_ties,
    generate,
    load,
    long_prompts,
    open_pool,
    text_of,
)

from localrun.errors import BROKEN_LOGITS, EngineFailed
from localrun.runner.engine.layout import Shape
from localrun.runner.llama import LlamaModel
from localrun.runner.model import LoadRefused

# ---- batches and sampling


def test_sequences_that_run_together_say_what_they_say_alone(model: LlamaModel) -> None:
    together = generate(model, PROMPTS, temperature=0, num_predict=12)
    alone = [generate(model, [p], temperature=0, num_predict=12)[0] for p in PROMPTS]
    assert together == alone
    assert "Paris" in together[0]
    assert "six" in together[1]


def test_a_chunked_prompt_says_what_a_whole_one_says(model: LlamaModel) -> None:
    want = generate(model, PROMPTS[:1], temperature=0, num_predict=8)
    bench = Bench(model, n_batch=7, n_parallel=1)
    assert model.n_batch == 7
    bench.submit(model.vocab.tokenize(PROMPTS[0]), num_predict=8)
    assert text_of(model, bench.finish()[0]) == want[0]


def test_a_seed_repeats_its_text_and_another_seed_says_something_else(model: LlamaModel) -> None:
    params: dict[str, Any] = {"temperature": 1.5, "num_predict": 24, "top_k": 100}
    first = generate(model, PROMPTS[1:2], seed=7, **params)
    assert generate(model, PROMPTS[1:2], seed=7, **params) == first
    assert generate(model, PROMPTS[1:2], seed=8, **params) != first


def test_top_k_1_is_greedy(model: LlamaModel) -> None:
    likeliest = generate(model, PROMPTS[2:], temperature=0, num_predict=12)
    assert generate(model, PROMPTS[2:], temperature=2.0, top_k=1, num_predict=12) == likeliest


@pytest.mark.parametrize(
    "params",
    [
        {"repeat_penalty": 1.8},
        {"presence_penalty": 2.0, "repeat_last_n": -1},
        {"frequency_penalty": 2.0},
    ],
)
def test_penalties_look_back_into_the_prompt(model: LlamaModel, params: dict[str, Any]) -> None:
    prompt = [REPETITIVE]
    assert "green" in generate(model, prompt, temperature=0, num_predict=4)[0]
    assert "green" not in generate(model, prompt, temperature=0, num_predict=4, **params)[0]


def test_repeat_last_n_0_switches_penalties_off(model: LlamaModel) -> None:
    prompt = [REPETITIVE]
    plain = generate(model, prompt, temperature=0, num_predict=4)
    off: dict[str, Any] = {"repeat_penalty": 1.8, "repeat_last_n": 0}
    assert generate(model, prompt, temperature=0, num_predict=4, **off) == plain


@pytest.mark.parametrize("params", [{"typical_p": 0.5}, {"min_p": 0.2}, {"top_p": 0.5}])
def test_every_filter_gives_text(model: LlamaModel, params: dict[str, Any]) -> None:
    assert generate(model, PROMPTS[:1], temperature=0.5, num_predict=8, seed=1, **params)[0]


def test_a_row_without_numbers_fails_its_sequence_and_no_other(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = generate(model, PROMPTS[:1], temperature=0, num_predict=8)
    bench = Bench(model)
    first = bench.submit(model.vocab.tokenize(PROMPTS[0]), num_predict=8)
    second = bench.submit(model.vocab.tokenize(PROMPTS[1]), num_predict=8)
    likeliest = model.greedy

    def broken() -> list[int]:
        tokens = likeliest()
        return [tokens[0], -1] if len(tokens) == 2 and second.n_completion == 3 else tokens

    monkeypatch.setattr(model, "greedy", broken)
    bench.finish()
    assert bench.failed.keys() == {second.id}
    error = bench.failed[second.id]
    assert isinstance(error, EngineFailed)
    assert error.code == BROKEN_LOGITS
    assert text_of(model, first.tokens[first.n_prompt :]) == alone[0]
    assert bench.count("requests_failed_total") == 1


# ---- sharing and yielding


@BOTH
def test_the_next_turn_of_a_chat_evaluates_only_what_is_new(
    model: LlamaModel, kv_layout: str
) -> None:
    bench = Bench(model, kv_layout=kv_layout)
    first = bench.submit(model.vocab.tokenize(PROMPTS[0]), num_predict=20)
    bench.finish()
    n_before = bench.count("prefill_tokens_total")
    new = model.vocab.tokenize(
        "\n<|im_start|>user\nAnd of Italy?<|im_end|>\n<|im_start|>assistant\n"
    )
    second = bench.submit([*first.tokens, *new], num_predict=12)
    bench.finish()
    n_evaluated = bench.count("prefill_tokens_total") - n_before
    # The last token that was said has no cell yet.
    assert second.n_cached >= len(first.tokens) - 1
    assert n_evaluated == second.n_prompt - second.n_cached
    assert "Rome" in text_of(model, second.tokens[second.n_prompt :])


def contended(
    model: LlamaModel, prompts: list[list[int]], **fields: Any
) -> tuple[list[list[int]], Bench]:
    params = {"num_predict": 80, **fields.pop("params", {})}
    bench = Bench(model, n_ctx=512, n_parallel=6, **fields)
    for prompt in prompts:
        bench.submit(prompt, **params)
    return bench.finish(), bench


@pytest.fixture(scope="module")
def crowd(weights: LlamaModel) -> tuple[list[list[int]], list[list[int]]]:
    """Six prompts, and what they say where nobody lacks cells."""
    prompts = long_prompts(weights, 6)
    completions, bench = contended(weights, prompts, kv_layout="split")
    assert bench.count("preemptions_swap_total") == 0
    return prompts, completions


@pytest.mark.parametrize("host_tier_bytes", [0, None], ids=["recompute", "swap"])
def test_a_pool_too_small_for_all_says_the_same(
    model: LlamaModel, crowd: tuple[list[list[int]], list[list[int]]], host_tier_bytes: int | None
) -> None:
    prompts, want = crowd
    got, bench = contended(
        model, prompts, kv_layout="unified", kv_pool=1024, host_tier_bytes=host_tier_bytes
    )
    assert not bench.failed
    kind = "recompute" if host_tier_bytes == 0 else "swap"
    assert bench.count(f"preemptions_{kind}_total") > 0
    assert bench.count("forward_errors_total") == 0
    assert bench.count("ledger_drift_total") == 0
    assert_equal_to_near_ties(model, prompts, got, want)


def test_deterministic_sequences_say_exactly_the_same_under_any_load(model: LlamaModel) -> None:
    prompts = long_prompts(model, 3)
    params = {"num_predict": 30, "deterministic": True}
    alone, _ = contended(model, prompts[1:2], params=params)
    got, bench = contended(model, prompts, params=params, kv_pool=1024)
    assert not bench.failed
    assert got[1] == alone[0]


# ---- what is loaded


def test_the_sizes_that_ps_shows_are_those_that_llama_cpp_allocated(model: LlamaModel) -> None:
    kv_bytes = 4 * N_CTX * 23_040  # 30 layers x (K + V) x 3 heads x 64 x 2 bytes
    assert model.facts.cell_bytes == 23_040
    model.open(Shape("split", N_CTX, 4, 4, 4 * N_CTX, None))
    assert model.info.n_slots == 4
    assert model.info.size_bytes > 96_000_000 + kv_bytes
    assert model.info.size_vram_bytes == 0
    before = model.info.size_bytes
    open_pool(model, 8 * N_CTX)
    assert model.info.size_bytes - before >= kv_bytes * 0.9
    assert (model.info.layout, model.info.n_cells) == ("unified", 8 * N_CTX)


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF but not really")
    with pytest.raises(LoadRefused):
        load(path)


# ---- sliding windows


def test_a_large_vocabulary_with_a_sliding_window_generates(gemma: LlamaModel) -> None:
    assert gemma.vocab.chat_template is None
    tokens = gemma.vocab.tokenize("The capital of France is")
    assert gemma.vocab.tokenize("<bos>The capital of France is") == tokens  # one BOS, not two
    texts = generate(gemma, ["one, two, three, four, five,"] * 2, temperature=0, num_predict=4)
    assert texts[0] == texts[1]
    assert "six" in texts[0]


@BOTH
def test_a_sliding_window_reuses_whole_sequences_only(gemma: LlamaModel, kv_layout: str) -> None:
    bench = Bench(gemma, n_ctx=1024, n_parallel=2, kv_layout=kv_layout)
    (prompt,) = long_prompts(gemma, 1, 600)  # longer than the window of 512
    first = bench.submit(prompt, num_predict=8)
    bench.finish()
    part = bench.submit([*prompt[:590], 5, 6, 7], num_predict=1)
    bench.finish()
    assert part.n_cached == 0
    turn = gemma.vocab.tokenize(" And then one day", is_start=False)
    whole = bench.submit([*first.tokens, *turn], num_predict=12)
    bench.finish()
    assert whole.n_cached >= first.n_prompt
    fresh = Bench(gemma, n_ctx=1024, n_parallel=1, kv_layout=kv_layout)
    fresh.submit([*first.tokens, *turn], num_predict=12)
    (want,) = fresh.finish()
    got = whole.tokens[whole.n_prompt :]
    assert_equal_to_near_ties(gemma, [[*first.tokens, *turn]], [got], [want])


def test_a_sliding_window_survives_preemption(gemma: LlamaModel) -> None:
    prompts = long_prompts(gemma, 3, 220)
    alone = []
    for prompt in prompts:
        bench = Bench(gemma, n_ctx=512, n_parallel=1)
        bench.submit(prompt, num_predict=40)
        alone += bench.finish()
    bench = Bench(gemma, n_ctx=512, n_parallel=3, kv_layout="unified", kv_pool=512)
    for prompt in prompts:
        bench.submit(prompt, num_predict=40)
    got = bench.finish()
    assert not bench.failed
    assert bench.count("preemptions_swap_total") + bench.count("preemptions_recompute_total") > 0
    assert_equal_to_near_ties(gemma, prompts, got, alone)
