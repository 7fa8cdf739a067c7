"""The step with answers that have to be of some form, on a scripted model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localrun.core import SamplingParams
from localrun.errors import FormatFailed, LocalrunError
from localrun.runner.engine.engine import Engine
from localrun.runner.engine.sequence import Sequence
from localrun.runner.engine.traffic import StepOutput
from localrun.runner.fake import FakeModel
from localrun.runner.structured.compiler import Compiler
from localrun.runner.structured.constraint import Constraint, ThinkTags, json_grammar
from localrun.spec import LoadSpec

OBJECT = json_grammar('{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}')
NUMBER = json_grammar('{"type":"integer"}')
DIGITS = "start: /[0-9]{5}/"


class Bench:
    """An engine on a scripted model, stepped by hand."""

    def __init__(self, path: Path, **spec: Any) -> None:
        self.spec = LoadSpec(str(path), "digest", n_ctx=100, n_threads=8, **spec)
        self.model = FakeModel(self.spec, lambda _fraction: None)
        self.compiler = Compiler(self.model.vocab)
        self.outputs: list[StepOutput] = []
        self.engine = Engine(self.model, self.spec, self.outputs.append)
        self.texts: dict[int, bytes] = {}
        self.reasons: dict[int, Any] = {}
        self.errors: dict[int, LocalrunError] = {}
        self.n_tokens: dict[int, int] = {}

    def submit(
        self,
        number: int,
        grammar: str = "",
        text: str = "x",
        tags: ThinkTags | None = None,
        **more: Any,
    ) -> None:
        sequence = Sequence(
            number, self.model.vocab.tokenize(text), SamplingParams(temperature=0, **more), 100
        )
        if grammar:
            sequence.matcher = self.compiler.matcher(Constraint(grammar, tags))
        self.engine.inbox.put(sequence)

    def finish(self) -> None:
        """Steps until nothing happens."""
        while self.engine.step():
            pass
        for output in self.outputs:
            self.errors.update({sequence.id: error for sequence, error in output.failed})
            for out in output.tokens:
                piece = b"" if out.token is None else self.model.vocab.token_bytes(out.token)
                number = out.sequence.id
                self.texts[number] = self.texts.get(number, b"") + piece
                self.n_tokens[number] = self.n_tokens.get(number, 0) + (out.token is not None)
                self.reasons[number] = out.reason or self.reasons.get(number)


@pytest.fixture
def make_bench(fake_model: Callable[..., Path]) -> Callable[..., Bench]:
    def make(*, n_parallel: int = 2, kv_pool: int | None = None, **script: Any) -> Bench:
        layout = {"kv_layout": "unified"} if kv_pool else {}
        return Bench(fake_model(**script), n_parallel=n_parallel, kv_pool=kv_pool, **layout)

    return make


def test_what_the_model_says_is_taken_as_far_as_it_may_come(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(pieces=['{"', "a", '": ', "42", "}", "and more"])
    bench.submit(1, OBJECT)
    bench.finish()
    assert bench.texts[1] == b'{"a": 42}'
    # It ends with its last bracket: no token stands behind it, and no end is waited for.
    assert (bench.reasons[1], bench.n_tokens[1]) == ("stop", 5)


def test_an_end_is_taken_where_the_answer_is_whole(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(pieces=["4", "2"])
    bench.submit(1, NUMBER)
    bench.finish()
    assert (bench.texts[1], bench.reasons[1]) == (b"42", "stop")


def test_an_end_that_comes_too_soon_is_not_taken(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(pieces=['{"', "a", '": ', "t"])
    bench.submit(
        1, json_grammar('{"properties":{"a":{"const":true}},"required":["a"],"type":"object"}')
    )
    bench.finish()
    assert json.loads(bench.texts[1]) == {"a": True}


def test_an_answer_that_is_cut_says_so(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(pieces=['{"', "a", '": ', "42", "}"])
    bench.submit(1, OBJECT, num_predict=3)
    bench.submit(2, OBJECT, num_predict=5)
    bench.finish()
    assert (bench.texts[1], bench.reasons[1]) == (b'{"a": ', "length")
    assert (bench.texts[2], bench.reasons[2]) == (b'{"a": 42}', "stop")


def test_constrained_and_free_answers_run_beside_each_other(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(n_parallel=3, pieces=["la "] * 8)
    bench.submit(1, DIGITS)
    bench.submit(2)
    bench.submit(3, "start: /[a-c]{3}/")
    bench.finish()
    assert bench.texts == {1: b"00000", 2: b"la " * 8, 3: b"aaa"}


def test_a_matcher_goes_on_where_it_was_after_a_preemption(
    make_bench: Callable[..., Bench],
) -> None:
    long = "start: /[0-9]{40}/"
    bench = make_bench(n_parallel=6, kv_pool=150, pieces=["7", "x"], endless=True)
    for number in range(6):
        bench.submit(number, long, text=f"{number}" * 40, num_predict=40)
    bench.finish()
    values = bench.engine.stats().values
    assert values["preemptions_swap_total"] + values["preemptions_recompute_total"] > 0
    assert {len(text) for text in bench.texts.values()} == {40}
    assert set(bench.reasons.values()) == {"stop"}


def test_an_answer_that_cannot_go_on_fails_alone(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(pieces=["la "] * 4)
    bench.submit(1, 'start: "a" NOTHING\nNOTHING: /b/ & /c/')
    bench.submit(2)
    bench.finish()
    assert isinstance(bench.errors[1], FormatFailed)
    assert bench.texts[2] == b"la " * 4
    bench.submit(3, DIGITS)
    bench.finish()
    assert bench.texts[3] == b"00000"


def test_thinking_is_free_and_the_answer_behind_it_is_not(make_bench: Callable[..., Bench]) -> None:
    pieces = ["<t>", "hm {", "</t>", "\n\n", '{"', "a", '":', "1", "}"]
    bench = make_bench(pieces=pieces)
    bench.submit(1, OBJECT, tags=ThinkTags("<t>", "</t>"))
    bench.submit(2, OBJECT, tags=ThinkTags("<t>", "</t>"), num_predict=2)
    bench.finish()
    assert (bench.texts[1], bench.reasons[1]) == ("".join(pieces).encode(), "stop")
    assert (bench.texts[2], bench.reasons[2]) == (b"<t>hm {", "length")
