"""llama.cpp for real: batching, sharing and yielding change nothing that a client could see; seeds
repeat; misuse never ends the process."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localrun.core import SamplingParams
from localrun.errors import BROKEN_LOGITS, EngineFailed
from localrun.runner.engine.engine import Engine
from localrun.runner.engine.layout import Shape
from localrun.runner.engine.sequence import Sequence
from localrun.runner.engine.traffic import StepOutput
from localrun.runner.llama import LlamaModel
from localrun.runner.model import LoadRefused
from localrun.spec import LoadSpec

N_CTX = 256

# Two logits that are closer than this may change places with the shape of a batch.
NEAR_TIE = 0.5

BOTH = pytest.mark.parametrize("kv_layout", ["unified", "split"])


def spec_of(path: Path, **fields: Any) -> LoadSpec:
    fields = {"n_ctx": N_CTX, "n_parallel": 4, "n_threads": 2, **fields}
    return LoadSpec(str(path), "digest", **fields)


def load(path: Path, **fields: Any) -> LlamaModel:
    return LlamaModel(spec_of(path, **fields), lambda _fraction: None)


@pytest.fixture(scope="module")
def weights(smollm2_path: Path) -> LlamaModel:
    """Loaded once for the whole file."""
    return load(smollm2_path)


@pytest.fixture
def model(weights: LlamaModel) -> LlamaModel:
    """The weights; every test makes the context that it needs around them."""
    weights._spec = spec_of(Path(weights._spec.weights_path))
    return weights


@pytest.fixture(scope="module")
def gemma(gemma3_path: Path) -> LlamaModel:
    """A model with a sliding window."""
    return load(gemma3_path)


class Bench:
    """An engine on a real model, stepped by hand; what it says is kept as tokens."""

    def __init__(self, model: LlamaModel, **fields: Any) -> None:
        # The weights are loaded once for all specs; llama.cpp's log has one receiver, too.
        model._spec = spec = spec_of(Path(model._spec.weights_path), **fields)
        self.model = model
        model.host_tier_bytes = 1 << 30 if spec.host_tier_bytes is None else spec.host_tier_bytes
        self.outputs: list[StepOutput] = []
        self.n_ctx = spec.n_ctx
        self.engine = Engine(model, spec, self.outputs.append)
        self.sequences: list[Sequence] = []
        self.failed: dict[int, Exception] = {}

    def submit(self, tokens: list[int], **params: Any) -> Sequence:
        params = {"temperature": 0, **params}
        number = len(self.sequences)
        sequence = Sequence(number, list(tokens), SamplingParams(**params), self.n_ctx)
        self.sequences.append(sequence)
        self.engine.inbox.put(sequence)
        return sequence

    def step(self) -> None:
        self.outputs.clear()
        self.engine.step()
        self.failed |= {s.id: error for output in self.outputs for s, error in output.failed}

    def finish(self) -> list[list[int]]:
        """Steps until nobody is left; the completion of every sequence so far."""
        self.step()
        while not self.engine.is_idle:
            self.step()
        return [s.tokens[s.n_prompt :] for s in self.sequences]

    def count(self, name: str) -> float:
        return self.engine.stats().values[name]


def generate(model: LlamaModel, prompts: list[str], **params: Any) -> list[str]:
    """The texts of prompts that run together."""
    bench = Bench(model)
    for prompt in prompts:
        bench.submit(model.vocab.tokenize(prompt), **params)
    completions = bench.finish()
    assert not bench.failed
    return [text_of(model, tokens) for tokens in completions]


def text_of(model: LlamaModel, tokens: Iterable[int]) -> str:
    return b"".join(model.vocab.token_bytes(token) for token in tokens).decode("utf-8", "replace")


def open_pool(model: LlamaModel, n_cells: int, n_ids: int = 4, n_ctx: int = N_CTX) -> None:
    model.open(Shape("unified", n_ctx, n_ids, n_ids, n_cells, None))


def prefill(model: LlamaModel, kv_id: int, tokens: Seq[int], start: int = 0) -> int:
    """Evaluates `tokens` behind the `start` that the sequence has; logits of the last one."""
    n = len(tokens)
    positions = range(start, start + n)
    return model.forward(tokens, positions, [kv_id] * n, [False] * (n - 1) + [True])


def greedy(model: LlamaModel, kv_id: int, n: int) -> list[int]:
    """The next `n` tokens of a sequence whose logits are there."""
    said = [model.greedy()[0]]
    while len(said) < n:
        assert prefill(model, kv_id, said[-1:], model.n_positions(kv_id)) == 0
        said.append(model.greedy()[0])
    return said


def logits_gap(model: LlamaModel, tokens: list[int]) -> float:
    """How far the likeliest next token is ahead of the second, computed alone."""
    open_pool(model, 2048, n_ids=1, n_ctx=2048)
    for start in range(0, len(tokens), model.n_batch):
        assert prefill(model, 0, tokens[start : start + model.n_batch], start) == 0
    second, first = np.sort(model._logits()[0])[-2:]
    return float(first - second)


def assert_equal_to_near_ties(
    model: LlamaModel, prompts: list[list[int]], got: list[list[int]], want: list[list[int]]
) -> None:
    """Where two completions part, the two likeliest tokens were about equally likely."""
    for prompt, one, other in zip(prompts, got, want, strict=True):
        if one == other:
            continue
        n = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
        assert n is not None, "one of them ended early"
        assert logits_gap(model, prompt + one[:n]) < NEAR_TIE


REPETITIVE = "red green red green red green red green red"

PROMPTS = [
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "The first ten numbers are one, two, three, four, five,",
    "def fibonacci(n):\n",
]


def long_prompts(model: LlamaModel, n: int, n_tokens: int = 150) -> list[list[int]]:
    """Prompts that differ from their first token on."""
    words = "The river ran past the old mill, and the miller's daughter counted the boats. "
    return [
        model.vocab.tokenize(f"{number} {'is where it began. ' * number}{words * 20}")[:n_tokens]
        for number in range(1, n + 1)
    ]


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


# ---- cells


@BOTH
def test_a_restored_state_is_the_one_that_was_saved(model: LlamaModel, kv_layout: Any) -> None:
    model.open(Shape(kv_layout, N_CTX, 4, 4, 4 * N_CTX, None))
    (prompt,) = long_prompts(model, 1)
    assert prefill(model, 0, prompt) == 0
    want = greedy(model, 0, 5)
    model.trim(0, len(prompt))
    saved = bytes(model.save(0))
    assert len(saved) == model.state_bytes(0)
    model.trim(0, 0)
    assert model.restore(0, saved)
    assert model.n_positions(0) == len(prompt)
    assert bytes(model.save(0)) == saved
    model.trim(0, 0)
    assert model.restore(2, saved)  # under another id as well
    model.trim(2, len(prompt) - 1)
    assert prefill(model, 2, prompt[-1:], len(prompt) - 1) == 0
    assert greedy(model, 2, 5) == want


def test_a_pool_takes_exactly_its_cells_and_goes_on_after_a_trim(model: LlamaModel) -> None:
    bench = Bench(model, n_parallel=4, kv_layout="unified", kv_pool=256)
    prompts = long_prompts(model, 3, 60)
    ledger = bench.engine._cache.ledger
    for kv_id, prompt in enumerate(prompts):
        assert prefill(model, kv_id, prompt) == 0
        ledger.grow(kv_id, len(prompt))
    model.copy(0, 3, 50)
    ledger.fork(0, 3, 50)
    for _ in range(3):  # interleaved, as decodes are
        assert (
            model.forward([5] * 4, [*[ledger.length(n) for n in range(4)]], range(4), [1] * 4) == 0
        )
        for kv_id in range(4):
            ledger.grow(kv_id, 1)
    n_free = ledger.n_free
    assert n_free == 256 - 3 * 60 - 4 * 3
    assert prefill(model, 3, [5] * n_free, ledger.length(3)) == 0
    ledger.grow(3, n_free)
    assert prefill(model, 1, [5], ledger.length(1)) == 1
    assert model.n_positions(1) == ledger.length(1)  # nothing has changed
    model.trim(0, 0)
    ledger.trim(0, 0)
    assert ledger.n_free == 60 + 3 - 50
    assert prefill(model, 1, [5] * ledger.n_free, ledger.length(1)) == 0
    ledger.grow(1, ledger.n_free)
    assert prefill(model, 2, [5], ledger.length(2)) == 1


def test_a_state_that_does_not_fit_a_full_pool_changes_nothing(model: LlamaModel) -> None:
    open_pool(model, 256, n_ids=3)
    prompts = long_prompts(model, 2, 130)
    assert prefill(model, 0, prompts[0]) == 0
    saved = model.save(0)
    assert model.restore(1, saved) is False
    assert model.n_positions(1) == 0
    assert prefill(model, 2, prompts[1][:126]) == 0
    assert model.restore(1, saved) is False
    assert (model.n_positions(0), model.n_positions(2)) == (130, 126)
    model.trim(2, 0)
    model.trim(0, 0)
    assert model.restore(1, saved) is True
    assert model.n_positions(1) == 130


def test_a_fork_says_what_a_fresh_prefill_says(model: LlamaModel) -> None:
    open_pool(model, 1024)
    (prompt,) = long_prompts(model, 1)
    assert prefill(model, 0, prompt) == 0
    want = greedy(model, 0, 10)
    model.copy(0, 1, 100)
    assert model.n_positions(1) == 100
    assert prefill(model, 1, prompt[100:], 100) == 0
    got = greedy(model, 1, 10)
    model.trim(0, 0)  # the fork keeps what it shared
    assert prefill(model, 1, got[-1:], model.n_positions(1)) == 0
    assert_equal_to_near_ties(model, [prompt], [got], [want])


@pytest.mark.parametrize("kv_id", [-1, 4, 1000])
def test_ids_that_would_abort_the_process_are_refused(model: LlamaModel, kv_id: int) -> None:
    open_pool(model, 256)
    calls: list[Callable[[], object]] = [
        lambda: model.trim(kv_id, 0),
        lambda: model.n_positions(kv_id),
        lambda: model.copy(kv_id, 0, 1),
        lambda: model.copy(0, kv_id, 1),
        lambda: model.state_bytes(kv_id),
        lambda: model.save(kv_id),
        lambda: model.restore(kv_id, b"state"),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="is not below 4"):
            call()


def test_split_cells_have_one_owner(model: LlamaModel) -> None:
    model.open(Shape("split", N_CTX, 2, 2, 2 * N_CTX, None))
    assert prefill(model, 0, [1, 2, 3]) == 0
    with pytest.raises(ValueError, match="unified"):
        model.copy(0, 1, 2)


@pytest.mark.parametrize("state", [b"", b"no state", b"\0" * 5000])
def test_bytes_that_are_no_state_are_not_restored(model: LlamaModel, state: bytes) -> None:
    open_pool(model, 256)
    assert model.restore(0, state) is False
    assert model.n_positions(0) == 0


@pytest.mark.parametrize(
    "rows",
    [
        ([], [], [], []),
        ([1] * 513, list(range(513)), [0] * 513, [False] * 513),
        ([1], [0], [4], [True]),
        ([1], [0], [-1], [True]),
        ([1] * 5, list(range(5)), [0] * 5, [True] * 5),
    ],
    ids=["no rows", "too many rows", "id too high", "negative id", "too many outputs"],
)
def test_rows_that_would_abort_the_process_are_refused(model: LlamaModel, rows: Any) -> None:
    open_pool(model, 256)
    with pytest.raises(ValueError, match=r"rows|ids"):
        model.forward(*rows)


def test_output_rows_out_of_range_are_refused(model: LlamaModel) -> None:
    open_pool(model, 256)
    sampler = model.sampler(SamplingParams(), [])
    with pytest.raises(ValueError, match="row"):
        sampler.sample(0)
    sampler.close()


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
