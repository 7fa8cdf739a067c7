"""Windows that shift: the middle goes, the rest is computed again, and nobody else notices."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from live import Daemon

from localrun.core import SamplingParams
from localrun.runner.engine.engine import Engine
from localrun.runner.engine.sequence import Sequence
from localrun.runner.engine.traffic import StepOutput
from localrun.runner.llama import LlamaModel
from localrun.spec import LoadSpec

PROMPT = "Once upon a time there was a small village by the sea, and in that village"


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> LlamaModel:
    return LlamaModel(spec(smollm2_path), lambda _fraction: None)


def spec(path: Path, **fields: Any) -> LoadSpec:
    return LoadSpec(str(path), "digest", n_ctx=64, n_parallel=3, n_threads=2, **fields)


class Bench:
    """An engine on the real model, stepped by hand."""

    def __init__(self, model: LlamaModel, kv_layout: str) -> None:
        model._spec = spec(Path(model._spec.weights_path), kv_layout=kv_layout, kv_pool=256)
        model.host_tier_bytes = 1 << 28
        self.outputs: list[StepOutput] = []
        self.engine = Engine(model, model._spec, self.outputs.append)
        self.said: dict[int, list[int]] = {}

    def submit(self, number: int, tokens: list[int], **fields: Any) -> Sequence:
        sampling = SamplingParams(temperature=0, num_predict=fields.pop("num_predict"))
        sequence = Sequence(number, list(tokens), sampling, 64, **fields)
        self.engine.inbox.put(sequence)
        return sequence

    def finish(self) -> dict[int, list[int]]:
        self.engine.step()
        while not self.engine.is_idle:
            self.engine.step()
        for output in self.outputs:
            assert not output.failed
            for out in output.tokens:
                if out.token is not None:
                    self.said.setdefault(out.sequence.id, []).append(out.token)
        return self.said


@pytest.mark.parametrize("kv_layout", ["unified", "split"])
def test_after_a_shift_the_text_goes_on_as_from_head_and_tail(
    model: LlamaModel, kv_layout: str
) -> None:
    prompt = model.vocab.tokenize(PROMPT)
    bench = Bench(model, kv_layout)
    sequence = bench.submit(1, prompt, num_predict=80, shifts=True, n_keep=4)
    # Shares its cells from the start, and goes its own way.
    bench.submit(2, prompt, num_predict=30)
    said = bench.finish()
    assert len(said[1]) == 80
    assert sequence.n_shifted > 0
    assert bench.engine.stats().values["window_shifts_total"] >= 1
    assert bench.engine.stats().values.get("ledger_drift_total", 0) == 0

    whole = [*prompt, *said[1]]
    n_dropped = (64 - 4) // 2
    head_and_tail = whole[:4] + whole[4 + n_dropped : 64]
    fresh = Bench(model, kv_layout)
    fresh.submit(1, head_and_tail, num_predict=10)
    assert fresh.finish()[1] == said[1][64 - len(prompt) :][:10]

    alone = Bench(model, kv_layout)
    alone.submit(2, prompt, num_predict=30)
    assert alone.finish()[2] == said[2]


# Room for all of them, and so little that they have to yield; models that cannot cut a suffix.
@pytest.mark.parametrize(("n_cells", "shares_prefixes"), [(256, True), (130, True), (130, False)])
def test_a_shift_does_not_touch_cells_that_others_share(
    fake_model: Callable[..., Path],
    start_daemon: Callable[..., Daemon],
    n_cells: int,
    shares_prefixes: bool,
) -> None:
    # The scripted model refuses rows that would leave a gap, and counts who owns which cell.
    daemon = start_daemon(NUM_PARALLEL=4, CONTEXT_LENGTH=64, KV_POOL=n_cells)
    script = {"pieces": ["a", "b", "c", "d", "e"], "endless": True}
    daemon.create("m", fake_model(**script, shares_prefixes=shares_prefixes))
    prompt = "the same beginning for everybody, "
    replies: dict[int, Any] = {}

    def ask(number: int) -> None:
        options = {"num_predict": 40 + 100 * number, "num_keep": 8}
        body = {"model": "m", "prompt": prompt, "raw": True, "options": options}
        body |= {"stream": False, "shift": number > 0}
        replies[number] = daemon.json("POST", "/api/generate", body)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert replies[0]["done_reason"] == "length"
    assert replies[0]["eval_count"] == 64 - len(prompt)  # to the end of the window, as ever
    for number in (1, 2, 3):
        assert replies[number]["eval_count"] == 40 + 100 * number
        assert replies[number]["prompt_eval_count"] == len(prompt)
    _, metrics = daemon.request("GET", "/metrics")
    drift = [line for line in metrics.splitlines() if line.startswith(b"localrun_ledger_drift")]
    assert drift
    assert all(float(line.split()[-1]) == 0 for line in drift)


def test_a_stop_string_ends_an_answer_that_has_shifted(
    fake_model: Callable[..., Path], start_daemon: Callable[..., Daemon]
) -> None:
    daemon = start_daemon(CONTEXT_LENGTH=32)
    daemon.create("m", fake_model(pieces=[f"{number} " for number in range(100)], endless=True))
    body = {"model": "m", "prompt": "abcdefghijkl", "raw": True, "shift": True, "stream": False}
    reply = daemon.json("POST", "/api/generate", body | {"options": {"stop": ["26 "]}})
    # Twenty pieces fill the window; of those and the prompt's end half stays, which is counted.
    assert reply["done_reason"] == "stop"
    assert reply["response"].startswith("0 1 2 ")
    assert reply["response"].endswith(" 18 19 14 15 16 17 18 19 20 21 22 23 24 25 ")


def test_a_real_model_talks_beyond_its_window_only_if_asked(smollm2_daemon: Daemon) -> None:
    options = {"num_ctx": 96, "num_predict": 150, "temperature": 0, "repeat_penalty": 1.3}
    body = {"model": "smollm2:135m", "prompt": PROMPT, "raw": True, "options": options}
    body |= {"stream": False}
    shifted = smollm2_daemon.json("POST", "/api/generate", body | {"shift": True})
    ended = smollm2_daemon.json("POST", "/api/generate", body)
    assert ended["eval_count"] + ended["prompt_eval_count"] <= 96
    assert shifted["response"].startswith(ended["response"])
    if ended["done_reason"] == "length":
        assert shifted["eval_count"] > ended["eval_count"]


def test_log_probabilities_and_context_go_on_over_a_shift(smollm2_daemon: Daemon) -> None:
    options = {"num_ctx": 64, "num_predict": 90, "seed": 7}
    body = {"model": "smollm2:135m", "prompt": "Write a long story.", "options": options}
    body |= {"stream": False, "shift": True, "logprobs": True, "top_logprobs": 2}
    reply = smollm2_daemon.json("POST", "/api/generate", body)
    assert len(reply["logprobs"]) == reply["eval_count"]
    assert all(len(one["top_logprobs"]) == 2 for one in reply["logprobs"])
    text = b"".join(bytes(one["bytes"]) for one in reply["logprobs"]).decode("utf-8", "replace")
    assert reply["response"] == text
    if reply["done_reason"] == "length":
        assert reply["eval_count"] == 90
        # The tokens that are still in the window.
        assert len(reply["context"]) <= 64
        words = {"model": "smollm2:135m", "tokens": reply["context"]}
        said = smollm2_daemon.json("POST", "/api/detokenize", words)["content"]
        assert said.endswith(text[-40:])
