"""Log-probabilities and biases with a real model: its own logits, whoever runs beside."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live import Daemon, wait_until
from text_routes import ROUTES, Route

from localrun.core import SamplingParams
from localrun.runner.engine.engine import Engine
from localrun.runner.engine.sequence import Sequence
from localrun.runner.engine.traffic import StepOutput
from localrun.runner.llama import LlamaModel
from localrun.runner.model import Likelihoods
from localrun.spec import LoadSpec

MODEL = "smollm2:135m"
QUESTION = "Name the capital of France."

each_route = pytest.mark.parametrize("route", ROUTES, ids=str)


# ---- the engine


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> LlamaModel:
    """Loaded once for the whole file; every engine makes a context of its own around it."""
    spec = LoadSpec(str(smollm2_path), "digest", n_ctx=128, n_parallel=4, n_threads=2)
    return LlamaModel(spec, lambda _fraction: None)


class Bench:
    """An engine stepped by hand, and what it says about each token of each sequence."""

    def __init__(self, model: LlamaModel, **fields: Any) -> None:
        fields = {"n_ctx": 128, "n_parallel": 4, "n_threads": 2, **fields}
        model._spec = spec = LoadSpec(model._spec.weights_path, "digest", **fields)
        self.model = model
        model.host_tier_bytes = 0
        self.outputs: list[StepOutput] = []
        self.engine = Engine(model, spec, self.outputs.append)
        self.said: dict[int, list[tuple[int | None, Likelihoods | None]]] = {}

    def submit(self, text: str, **params: Any) -> Sequence:
        sampling = SamplingParams(**{"temperature": 0, "num_predict": 8, **params})
        tokens = self.model.vocab.tokenize(text)
        sequence = Sequence(len(self.said), tokens, sampling, 128)
        self.said[sequence.id] = []
        self.engine.inbox.put(sequence)
        return sequence

    def finish(self) -> None:
        self.engine.step()
        while not self.engine.is_idle:
            self.engine.step()
        for out in (out for step in self.outputs for out in step.tokens):
            self.said[out.sequence.id].append((out.token, out.likelihoods))


PROMPTS = ["The first ten numbers are one, two,", "def fibonacci(n):\n", "Once upon a time"]


def test_rows_that_ask_get_the_softmax_of_the_models_own_logits(model: LlamaModel) -> None:
    bench = Bench(model)
    # Neither temperature nor penalties nor biases move what the model itself thinks.
    asking = bench.submit(PROMPTS[0], top_logprobs=5, num_predict=1)
    moved = bench.submit(
        PROMPTS[0], top_logprobs=5, num_predict=1, temperature=5.0, seed=3, presence_penalty=2.0,
        repeat_penalty=1.5, logit_bias={28: -100.0, 339: 7.0},
    )  # fmt: skip
    silent = bench.submit(PROMPTS[1])
    bench.engine.step()
    rows = [row for row in model._logits().astype(np.float64)]
    bench.finish()
    (first,), (second,) = bench.said[asking.id], bench.said[moved.id]
    assert first[1] is not None
    assert second[1] is not None
    assert all(likelihoods is None for _, likelihoods in bench.said[silent.id])
    for (token, likelihoods), row in ((first, rows[0]), (second, rows[1])):
        assert likelihoods is not None
        expected = row - row.max() - np.log(np.exp(row - row.max()).sum())
        assert likelihoods.taken == pytest.approx(expected[token], abs=1e-4)
        assert [top for top, _ in likelihoods.top] == np.argsort(-expected)[:5].tolist()
        for top, logprob in likelihoods.top:
            assert logprob == pytest.approx(expected[top], abs=1e-4)
    assert first[1].top[0] == (first[0], first[1].taken)


def test_nobody_pays_who_does_not_ask(model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    own = model.likelihoods

    def spy(wanted: Any) -> Any:
        asked.append(len(wanted))
        return own(wanted)

    monkeypatch.setattr(model, "likelihoods", spy)
    bench = Bench(model)
    for prompt in PROMPTS:
        bench.submit(prompt)
    bench.finish()
    assert asked == []
    bench.submit(PROMPTS[0], top_logprobs=0)
    for prompt in PROMPTS:
        bench.submit(prompt)
    bench.finish()
    assert set(asked) == {1}


@pytest.mark.parametrize("params", [{}, {"temperature": 0.9, "seed": 5}, {"deterministic": True}])
def test_every_token_has_its_own_whoever_runs_beside(
    model: LlamaModel, params: dict[str, Any]
) -> None:
    bench = Bench(model)
    asking = [bench.submit(p, top_logprobs=3, num_predict=6, **params) for p in PROMPTS]
    bench.submit(PROMPTS[0])
    bench.finish()
    for sequence in asking:
        said = bench.said[sequence.id]
        assert [token for token, _ in said] == sequence.tokens[sequence.n_prompt :]
        for token, likelihoods in said:
            assert likelihoods is not None
            assert 0 < math.exp(likelihoods.taken) <= 1
            if not params.get("seed"):
                assert likelihoods.top[0][0] == token


def test_who_had_to_yield_has_each_token_once(model: LlamaModel) -> None:
    # The pool holds less than what the four need in the end.
    bench = Bench(model, kv_layout="unified", kv_pool=128)
    asking = [
        bench.submit(f"{n}: {prompt}", top_logprobs=1, num_predict=70)
        for n, prompt in enumerate((*PROMPTS, *PROMPTS[:1]))
    ]
    bench.finish()
    assert bench.engine.stats().values["preemptions_recompute_total"] > 0
    for sequence in asking:
        said = [token for token, likelihoods in bench.said[sequence.id] if likelihoods]
        assert [t for t in said if t is not None] == sequence.tokens[sequence.n_prompt :]


def test_control_tokens_have_a_name_among_the_likeliest(model: LlamaModel) -> None:
    vocab = model.vocab
    (end,) = vocab.tokenize("<|im_end|>")
    assert (vocab.token_bytes(end), vocab.token_name(end)) == (b"", b"<|im_end|>")
    (word,) = vocab.tokenize("the")
    assert vocab.token_name(word) == b"the"


# ---- biases


def id_of(daemon: Daemon, text: str) -> int:
    """The id of the one token that `text` is; the context of an answer begins with its prompt."""
    body = {
        "model": MODEL,
        "prompt": text,
        "template": "{{ .Prompt }}",
        "options": {"num_predict": 1},
        "stream": False,
    }
    answer = daemon.json("POST", "/api/generate", body)
    assert answer["prompt_eval_count"] == 1
    return int(answer["context"][0])


@each_route
def test_a_banned_token_never_comes_and_a_forced_one_always(
    smollm2_daemon: Daemon, route: Route
) -> None:
    common = {"num_predict": 4, "temperature": 0}
    wonted = route.ask(smollm2_daemon, MODEL, QUESTION, top=0, **common).logprobs[0][0]
    banned = id_of(smollm2_daemon, wonted.decode())
    forced = id_of(smollm2_daemon, " cat")
    for seed in range(5):  # four routes: twenty runs
        heat = {"num_predict": 4, "temperature": 1.5 if seed else 0, "seed": seed, "top": 1}
        without = route.ask(smollm2_daemon, MODEL, QUESTION, logit_bias={str(banned): -100}, **heat)
        assert wonted not in [data for data, _, _ in without.logprobs]
        only = route.ask(smollm2_daemon, MODEL, QUESTION, logit_bias={str(forced): 100}, **heat)
        assert only.text == " cat" * 4
        # How likely it was is what the model thinks, whoever forced it.
        assert all(logprob < math.log(0.5) for _, logprob, _ in only.logprobs)


def test_a_small_bias_moves_a_greedy_choice_between_near_tokens(smollm2_daemon: Daemon) -> None:
    route = ROUTES[1]
    common = {"num_predict": 1, "temperature": 0}
    said = route.ask(smollm2_daemon, MODEL, QUESTION, top=2, **common)
    (first, first_logprob), (second, second_logprob) = said.logprobs[0][2]
    gap = first_logprob - second_logprob
    number = str(id_of(smollm2_daemon, second.decode()))
    above = route.ask(
        smollm2_daemon, MODEL, QUESTION, top=0, logit_bias={number: gap + 1}, **common
    )
    below = route.ask(
        smollm2_daemon, MODEL, QUESTION, top=0, logit_bias={number: gap - 1}, **common
    )
    assert (above.bytes, below.bytes) == (second, first)


@each_route
@pytest.mark.parametrize(
    ("biases", "words"),
    [
        ({"49152": 1}, "no token id 49152"),
        ({"9999999999": -100}, "no token id 9999999999"),
        ({"5": "1"}, "token id 5 must be a number"),
        ({" yes": -100}, '" yes" is not a token id'),
        ({"-1": 1}, '"-1" is not a token id'),
        (dict.fromkeys(map(str, range(1025)), 1), "more than 1024"),
    ],
    ids=["beyond", "far beyond", "text", "a word", "negative", "many"],
)
def test_biases_that_mean_nothing_are_refused_with_the_field(
    smollm2_daemon: Daemon, route: Route, biases: dict[str, Any], words: str
) -> None:
    body = route.body(MODEL, QUESTION, stream=True, logit_bias=biases)
    error = smollm2_daemon.json("POST", route.path, body, status=400)["error"]
    assert words in (error if route.is_native else error["message"])
    assert ("logit_bias" in error) if route.is_native else (error["param"] == "logit_bias")


def test_biases_beyond_the_range_are_cut_to_it_and_the_last_id_is_one(
    smollm2_daemon: Daemon,
) -> None:
    for route in ROUTES:
        number = str(id_of(smollm2_daemon, " cat"))
        biases = {number: 1000, "49151": -1000}
        said = route.ask(smollm2_daemon, MODEL, QUESTION, num_predict=2, logit_bias=biases)
        assert said.text == " cat cat"


# ---- what clients see


@each_route
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("heat", [{"temperature": 0}, {"temperature": 1.0, "seed": 4}], ids=str)
def test_the_tokens_of_a_real_answer_are_its_bytes(
    smollm2_daemon: Daemon, route: Route, stream: bool, heat: dict[str, Any]
) -> None:
    said = route.ask(
        smollm2_daemon, MODEL, "Say hello with two emoji: 🙂🚀", stream=stream, top=5,
        num_predict=16, stop=["zebra"], **heat,
    )  # fmt: skip
    assert said.text
    assert said.bytes.decode("utf-8", "replace") == said.text
    for data, logprob, top in said.logprobs:
        assert 0 < math.exp(logprob) <= 1
        assert len(top) >= 5
        assert [p for _, p in top[:5]] == sorted((p for _, p in top[:5]), reverse=True)
        if not heat["temperature"]:
            assert (data, logprob) == top[0]


@each_route
def test_a_seed_gives_one_text_with_and_without_logprobs(
    smollm2_daemon: Daemon, route: Route
) -> None:
    wishes = {"seed": 7, "temperature": 0.8, "num_predict": 12}
    texts = {
        route.ask(smollm2_daemon, MODEL, "Tell me a story.", stream=stream, **top, **wishes).text
        for top in ({}, {"top": 3})
        for stream in (True, False)
    }
    assert len(texts) == 1
    other = route.ask(smollm2_daemon, MODEL, "Tell me a story.", **(wishes | {"seed": 8}))
    assert other.text not in texts


def test_a_seed_gives_one_text_after_other_work_and_after_another_load(
    start_daemon: Callable[..., Daemon], smollm2_path: Path
) -> None:
    # A self-test of the first load may choose another way to compute for the second one.
    daemon = start_daemon(CONTEXT_LENGTH=512, KV_LAYOUT="split", FLASH_ATTENTION=1)
    daemon.create(MODEL, smollm2_path)

    def ask() -> list[str]:
        wishes = {"seed": 7, "num_predict": 12}
        return [
            route.ask(daemon, MODEL, "Tell me a story.", temperature=heat, **wishes).text
            for route in ROUTES
            for heat in (0, 0.8)
        ]

    texts = ask()
    ROUTES[0].ask(daemon, MODEL, "Tell me about the sea.", num_predict=4)
    assert ask() == texts
    daemon.json("POST", "/api/generate", {"model": MODEL, "keep_alive": 0})
    wait_until(lambda: not daemon.ps(), "the model to be unloaded")
    assert ask() == texts


def test_strictly_the_same_logprobs_under_any_load(smollm2_daemon: Daemon) -> None:
    wishes = {"seed": 7, "num_predict": 12, "deterministic": True, "top": 3}

    def ask(route: Route) -> Any:
        return route.ask(smollm2_daemon, MODEL, "Tell me a story.", **wishes).logprobs

    alone = [ask(route) for route in ROUTES[:2]]
    with ThreadPoolExecutor() as pool:
        others = [
            pool.submit(smollm2_daemon.chat, MODEL, f"Count from {n} to 99.", num_predict=40)
            for n in range(3)
        ]
        beside = [ask(route) for route in ROUTES[:2]]
        for other in others:
            other.result()
    assert beside == alone


def test_biases_of_a_model_are_those_of_its_requests(
    start_daemon: Callable[..., Daemon], smollm2_path: Path
) -> None:
    daemon = start_daemon(CONTEXT_LENGTH=256, NUM_PARALLEL=1)
    daemon.create(MODEL, smollm2_path)
    number = str(id_of(daemon, " cat"))
    body = {"model": "cats", "from": MODEL, "parameters": {"logit_bias": {number: 100}}}
    daemon.json("POST", "/api/create", {**body, "stream": False})
    assert daemon.chat("cats", "hi", num_predict=3)["message"]["content"] == " cat cat cat"
    shown = daemon.json("POST", "/api/show", {"model": "cats"})
    assert f'{{"{number}": 100.0}}' in shown["parameters"]
    for wrong in ({number: "100"}, 3, "[" * 100_000):
        body["parameters"] = {"logit_bias": wrong}
        error = daemon.json("POST", "/api/create", {**body, "stream": False}, status=400)["error"]
        assert "logit_bias" in error
