"""`python -m bench.pressure`: more requests than cells. Who ends, who runs at once, who says what.

The engine and a real model in this process, so that logits can be looked at: where a text differs
from the one without pressure, its two likeliest tokens must have been about equally likely.
Prints Markdown.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench import rig
from bench.report import table
from bench.rig import model_path, say
from cli.bench.prompts import Prompter
from localrun.core import SamplingParams
from localrun.runner.engine.engine import Engine
from localrun.runner.engine.layout import Shape
from localrun.runner.engine.sequence import Sequence
from localrun.runner.engine.traffic import StepOutput
from localrun.runner.llama import LlamaModel
from localrun.spec import KvLayout, LoadSpec

# Two logits closer than this are a near-tie: the shape of a batch alone may swap them.
NEAR_TIE = 0.5


@dataclass(frozen=True, slots=True)
class Load:
    """`n_requests` at once, each of `n_prompt` + `n_output` tokens, in windows of `n_ctx`."""

    n_requests: int
    n_prompt: int
    n_output: int
    n_parallel: int
    n_ctx: int
    n_cells: int | None
    deterministic: bool = False
    layout: KvLayout = "unified"


@dataclass(frozen=True, slots=True)
class Found:
    """What became of a load."""

    texts: list[list[int]]
    n_ended: int
    n_failed: int
    n_at_once: int
    counts: dict[str, float]
    seconds: float


CHATS = Load(40, 150, 100, 32, 4096, 8192)
GREEDY = Load(12, 300, 200, 12, 512, 2048)
GREEDY_ALONE = Load(12, 300, 200, 1, 512, None)
EXACT = Load(12, 300, 200, 12, 512, 2048, deterministic=True)
EXACT_ALONE = Load(12, 300, 200, 1, 512, None, deterministic=True)


class Bench:
    """Runs loads on one model. The weights are loaded once, contexts as they are needed."""

    def __init__(self, path: Path, n_threads: int) -> None:
        self._path = path
        self._n_threads = n_threads
        self._model = LlamaModel(self._spec(CHATS), lambda _fraction: None)

    def _spec(self, load: Load) -> LoadSpec:
        return LoadSpec(
            str(self._path),
            "digest",
            n_ctx=load.n_ctx,
            n_parallel=load.n_parallel,
            n_threads=self._n_threads,
            kv_layout=load.layout,
            kv_pool=load.n_cells,
        )

    def prompts(self, load: Load) -> list[list[int]]:
        """The same for loads of the same size; no two begin alike."""
        prompter = Prompter(load.n_prompt, 0)
        words = (prompter.text(load.n_prompt) for _ in range(load.n_requests))
        return [self._model.vocab.tokenize(text)[: load.n_prompt] for text in words]

    def run(self, load: Load) -> Found:
        """All requests at once, until the last one ends."""
        model = self._model
        model._spec = spec = self._spec(load)  # llama.cpp's log has one receiver: one model
        outputs: list[StepOutput] = []
        engine = Engine(model, spec, outputs.append)
        params = SamplingParams(
            temperature=0, num_predict=load.n_output, deterministic=load.deterministic
        )
        sequences = [
            Sequence(number, tokens, params, load.n_ctx)
            for number, tokens in enumerate(self.prompts(load))
        ]
        for sequence in sequences:
            engine.inbox.put(sequence)
        n_at_once = n_failed = n_ended = 0
        began_s = time.perf_counter()
        while not engine.is_idle or not engine.inbox.empty():
            engine.step()
            n_at_once = max(n_at_once, len(engine.running))
            n_failed += sum(len(output.failed) for output in outputs)
            n_ended += sum(1 for output in outputs for token in output.tokens if token.reason)
            outputs.clear()
        return Found(
            [sequence.tokens[sequence.n_prompt :] for sequence in sequences],
            n_ended,
            n_failed,
            n_at_once,
            engine.stats().values,
            time.perf_counter() - began_s,
        )

    def partings(self, load: Load, texts: list[list[int]], others: list[list[int]]) -> list[float]:
        """Of every pair that differs, how far apart the two likeliest tokens were there."""
        pairs = zip(self.prompts(load), texts, others, strict=True)
        return [self._gap(prompt + text[:n]) for prompt, text, n in _first_differences(pairs)]

    def _gap(self, tokens: list[int]) -> float:
        model = self._model
        model.open(Shape("unified", 1024, 1, 1, 1024, None))
        for start in range(0, len(tokens), model.n_batch):
            rows = tokens[start : start + model.n_batch]
            n = len(rows)
            wants = [False] * (n - 1) + [True]
            code = model.forward(rows, range(start, start + n), [0] * n, wants)
            assert code == 0, code
        second, first = np.sort(model._logits()[0])[-2:]
        return float(first - second)


def _first_differences(
    pairs: "zip[tuple[list[int], list[int], list[int]]]",
) -> Iterator[tuple[list[int], list[int], int]]:
    for prompt, text, other in pairs:
        same = (a == b for a, b in zip(text, other, strict=False))
        n = next((n for n, is_same in enumerate(same) if not is_same), None)
        if n is not None:
            yield prompt, text, n


def main() -> None:
    """Runs the loads and prints what became of them."""
    parser = rig.parser("pressure", __doc__)
    arguments = parser.parse_args()
    bench = Bench(model_path(arguments.model), arguments.threads)
    rows = []

    def run(title: str, load: Load) -> Found:
        say(title)
        found = bench.run(load)
        counts = found.counts
        rows.append(
            [
                title,
                f"{found.n_ended} of {load.n_requests}",
                str(found.n_failed),
                str(found.n_at_once),
                f"{counts['preemptions_swap_total']:g} + {counts['preemptions_recompute_total']:g}",
                f"{counts['recomputed_tokens_total']:g}",
                f"{counts['ledger_drift_total']:g}",
                f"{found.seconds:.0f}",
            ]
        )
        return found

    run("40 of 150 + 100 tokens, 8,192 cells", CHATS)
    greedy = run("12 of 300 + 200 tokens, 2,048 cells", GREEDY)
    alone = run("the same, one at a time", GREEDY_ALONE)
    exact = run("deterministic, 2,048 cells", EXACT)
    exact_alone = run("the same, one at a time", EXACT_ALONE)
    head = ["load", "ended", "failed", "at once", "saved + recomputed", "rows again", "drift", "s"]
    print(table(head, rows))
    gaps = bench.partings(GREEDY, greedy.texts, alone.texts)
    far = sum(gap >= NEAR_TIE for gap in gaps)
    print(
        f"\nTexts that differ from those without pressure: {len(gaps)} of {GREEDY.n_requests}, "
        f"{far} of them at more than a near-tie (largest gap {max(gaps, default=0):.2f}); "
        f"deterministic: {sum(a != b for a, b in zip(exact.texts, exact_alone.texts, strict=True))}"
    )


if __name__ == "__main__":
    main()
