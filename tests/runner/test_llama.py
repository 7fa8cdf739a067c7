"""llama.cpp for real: batching changes nothing, seeds repeat, misuse never ends the process."""

from pathlib import Path
from typing import Any

import pytest

from localrun.core import LoadSpec, SamplingParams
from localrun.runner.engine.engine import Engine, StepOutput
from localrun.runner.engine.sequence import Sequence
from localrun.runner.llama import LlamaModel
from localrun.runner.model import LoadRefused

N_CTX = 256


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> LlamaModel:
    return LlamaModel(
        LoadSpec(str(smollm2_path), "digest", n_ctx=N_CTX, n_parallel=4, n_threads=2),
        lambda _fraction: None,
    )


def generate(model: LlamaModel, prompts: list[str], **params: Any) -> list[str]:
    """The texts of prompts that run together."""
    outputs: list[StepOutput] = []
    engine = Engine(model, outputs.append)
    for number, prompt in enumerate(prompts):
        tokens = model.vocab.tokenize(prompt)
        engine.inbox.put(Sequence(number, tokens, SamplingParams(**params), N_CTX))
    texts = [b""] * len(prompts)
    n_ended = 0
    while n_ended < len(prompts):
        outputs.clear()
        engine.step()
        for out in outputs[0].tokens:
            if out.token is not None:
                texts[out.sequence.id] += model.vocab.token_bytes(out.token)
            n_ended += out.reason is not None
        assert not outputs[0].failed
    return [text.decode() for text in texts]


REPETITIVE = "red green red green red green red green red"

PROMPTS = [
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "The first ten numbers are one, two, three, four, five,",
    "def fibonacci(n):\n",
]


def test_sequences_that_run_together_say_what_they_say_alone(model: LlamaModel) -> None:
    together = generate(model, PROMPTS, temperature=0, num_predict=12)
    alone = [generate(model, [p], temperature=0, num_predict=12)[0] for p in PROMPTS]
    assert together == alone
    assert "Paris" in together[0]
    assert "six" in together[1]


def test_a_chunked_prompt_says_what_a_whole_one_says(model: LlamaModel, smollm2_path: Path) -> None:
    chunked = LlamaModel(
        LoadSpec(str(smollm2_path), "d", n_ctx=N_CTX, n_parallel=1, n_threads=2, n_batch=7),
        lambda _fraction: None,
    )
    want = generate(model, PROMPTS[:1], temperature=0, num_predict=8)
    assert generate(chunked, PROMPTS[:1], temperature=0, num_predict=8) == want


def test_a_seed_repeats_its_text_and_another_seed_says_something_else(model: LlamaModel) -> None:
    params: dict[str, Any] = {"temperature": 1.5, "num_predict": 24, "top_k": 100}
    first = generate(model, PROMPTS[1:2], seed=7, **params)
    assert generate(model, PROMPTS[1:2], seed=7, **params) == first
    assert generate(model, PROMPTS[1:2], seed=8, **params) != first


def test_top_k_1_is_greedy(model: LlamaModel) -> None:
    greedy = generate(model, PROMPTS[2:], temperature=0, num_predict=12)
    assert generate(model, PROMPTS[2:], temperature=2.0, top_k=1, num_predict=12) == greedy


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


@pytest.mark.parametrize(
    "rows",
    [
        ([], [], [], []),
        ([1] * 513, list(range(513)), [0] * 513, [False] * 513),
        ([1], [0], [4], [True]),
        ([1], [0], [-1], [True]),
        ([1] * 5, list(range(5)), [0] * 5, [True] * 5),
    ],
    ids=["no rows", "too many rows", "slot too high", "negative slot", "too many outputs"],
)
def test_rows_that_would_abort_the_process_are_refused(model: LlamaModel, rows: Any) -> None:
    with pytest.raises(ValueError, match=r"rows|slots"):
        model.forward(*rows)


def test_freed_slots_and_rows_out_of_range_are_refused(model: LlamaModel) -> None:
    with pytest.raises(ValueError, match="slot"):
        model.free(4)
    sampler = model.sampler(SamplingParams(), [])
    with pytest.raises(ValueError, match="row"):
        sampler.sample(99)
    sampler.close()


def test_the_sizes_that_ps_shows_are_those_that_llama_cpp_allocated(model: LlamaModel) -> None:
    kv_bytes = 4 * N_CTX * 23_040  # 30 layers x (K + V) x 3 heads x 64 x 2 bytes
    assert model.info.n_slots == 4
    assert model.info.size_bytes > 96_000_000 + kv_bytes
    assert model.info.size_vram_bytes == 0


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF but not really")
    with pytest.raises(LoadRefused):
        LlamaModel(LoadSpec(str(path), "d", n_ctx=64, n_parallel=1, n_threads=1), lambda _f: None)


def test_a_large_vocabulary_with_a_sliding_window_generates(gemma3_path: Path) -> None:
    gemma = LlamaModel(
        LoadSpec(str(gemma3_path), "d", n_ctx=N_CTX, n_parallel=2, n_threads=2), lambda _f: None
    )
    assert gemma.vocab.chat_template is None
    tokens = gemma.vocab.tokenize("The capital of France is")
    assert gemma.vocab.tokenize("<bos>The capital of France is") == tokens  # one BOS, not two
    texts = generate(gemma, ["one, two, three, four, five,"] * 2, temperature=0, num_predict=4)
    assert texts[0] == texts[1]
    assert "six" in texts[0]
