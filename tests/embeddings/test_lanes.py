"""Two forwards for vectors at a time: who takes how much, and an engine with both lanes."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from localrun.core import Vectors
from localrun.errors import EngineFailed, LocalrunError
from localrun.ipc.messages import Share
from localrun.memory import CPU
from localrun.runner.engine.embedder import Embedder, EmbedJob
from localrun.runner.engine.embedding_engine import EmbeddingEngine
from localrun.runner.engine.lanes import Part, part
from localrun.runner.engine.layout import EmbeddingShape, side_shape
from localrun.runner.engine.meter import Meter
from localrun.runner.engine.traffic import Remove, StepOutput
from localrun.runner.fake import FakeModel
from localrun.runner.fake_embeddings import FakeEmbeddings
from localrun.spec import LoadSpec

# A hang guard, not a measure.
LONG_S = 20.0


@pytest.mark.parametrize(
    ("n_short_rows", "shares", "n_threads", "n_used", "expected"),
    [
        pytest.param(0, True, 2, 0, Part(None, 2), id="a long text has all threads"),
        pytest.param(128, True, 2, 0, Part(None, 2), id="what one forward should have"),
        pytest.param(129, True, 2, 0, Part(128, 1), id="more than that"),
        pytest.param(401, True, 2, 0, Part(201, 1), id="half of what waits"),
        pytest.param(401, True, 7, 0, Part(201, 4), id="the larger half of the threads"),
        pytest.param(400, True, 1, 0, Part(None, 1), id="one thread makes one forward"),
        pytest.param(400, True, 2, 1, Part(None, 1), id="what the other one has left"),
        pytest.param(3, True, 7, 4, Part(None, 3), id="of few rows too"),
        pytest.param(400, True, 2, 2, None, id="the other one has all threads"),
        pytest.param(400, True, 1, 2, None, id="and more than there are by now"),
        pytest.param(5, False, 2, 0, Part(128, 1), id="texts that share no forward"),
        pytest.param(0, False, 2, 0, Part(None, 2), id="nothing else for the second one"),
    ],
)
def test_what_a_forward_takes(
    n_short_rows: int, *, shares: bool, n_threads: int, n_used: int, expected: Part | None
) -> None:
    assert part(n_short_rows, shares=shares, n_threads=n_threads, n_used=n_used) == expected


def test_the_second_context_is_small() -> None:
    shape = EmbeddingShape(8192, 8192, 64, 256, "mean")
    assert side_shape(shape) == EmbeddingShape(256, 256, 64, 256, "mean")
    alone = EmbeddingShape(8192, 8192, 1, 8192, "mean")
    assert side_shape(alone) == EmbeddingShape(256, 256, 1, 256, "mean")
    tiny = EmbeddingShape(64, 64, 64, 64, "mean")
    assert side_shape(tiny) == tiny


class Bench:
    """An engine around a scripted model whose forwards wait until the test lets them end."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, n_threads: int = 2) -> None:
        spec = LoadSpec(str(path), "sha256:0", 512, 8, n_threads, embeds=True, embed_batch=256)
        self.numbers = {1}
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self.forwards: list[tuple[FakeEmbeddings, int, int]] = []
        self.outputs: list[StepOutput] = []
        self.model = FakeModel(spec, lambda _fraction: None)
        self.engine = EmbeddingEngine(self.model, spec, self.outputs.append)
        evaluate = FakeEmbeddings.forward
        threads: dict[FakeEmbeddings, int] = {}

        def use_threads(context: FakeEmbeddings, n: int) -> None:
            threads[context] = n

        def forward(context: FakeEmbeddings, tokens: Sequence[int], *rest: Any) -> int:
            self.forwards.append((context, len(tokens), threads[context]))
            self.begun.release()
            assert self.may_end.acquire(timeout=LONG_S)
            return evaluate(context, tokens, *rest)

        monkeypatch.setattr(FakeEmbeddings, "use_threads", use_threads)
        monkeypatch.setattr(FakeEmbeddings, "forward", forward)

    def add(self, number: int, *texts: list[int], n_ctx: int = 512) -> None:
        self.engine.inbox.put(EmbedJob(number, list(texts), list(range(len(texts))), n_ctx))

    def begin(self, n: int) -> None:
        """Steps; `n` forwards have begun then."""
        self.engine.step(wait_s=LONG_S)
        for _ in range(n):
            assert self.begun.acquire(timeout=LONG_S)
        assert not self.begun.acquire(blocking=False)

    def end(self) -> None:
        """Lets all forwards end, those that follow too."""
        self.may_end.release(1000)
        while self.answers.keys() != self.numbers:
            self.engine.step(wait_s=LONG_S)

    @property
    def answers(self) -> dict[int, Vectors | LocalrunError]:
        return {number: answer for one in self.outputs for number, answer in one.vectors}

    @property
    def parts(self) -> list[tuple[bool, int, int]]:
        """Of every forward: whether it ran in the first context, its rows, its threads."""
        main = self.model.embeddings(1)
        return [(context is main, *rest) for context, *rest in self.forwards]


@pytest.fixture
def bench(fake_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Bench]:
    def make(n_threads: int = 2, **script: Any) -> Bench:
        return Bench(fake_model(**script), monkeypatch, n_threads)

    return make


TEXTS = [[n % 250] * 20 for n in range(20)]


def test_many_short_texts_go_through_two_forwards_at_a_time(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.add(1, *TEXTS)
    b.begin(2)
    assert sorted(b.parts) == [(False, 200, 1), (True, 200, 1)]
    b.end()
    answer = b.answers[1]
    assert isinstance(answer, Vectors)
    assert (answer.n_tokens, len(answer.data)) == (400, 20 * 8 * 4)


@pytest.mark.parametrize(
    ("n_threads", "texts"),
    [(2, TEXTS[:6]), (1, TEXTS), (2, [[1] * 500, [2] * 30])],
    ids=["few texts", "one thread", "a long text and a short one"],
)
def test_otherwise_one_forward_has_all_threads(
    bench: Callable[..., Bench], n_threads: int, texts: list[list[int]]
) -> None:
    b = bench(n_threads)
    b.add(1, *texts)
    b.begin(1)
    assert [n for _, _, n in b.parts] == [n_threads]
    b.end()
    assert all(is_main for is_main, _, _ in b.parts)


def test_a_text_that_comes_while_all_threads_are_busy_waits(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.numbers = {1, 2}
    b.add(1, [1, 2, 3])
    b.begin(1)
    b.add(2, [4, 5])
    b.begin(0)
    b.end()
    assert b.parts == [(True, 3, 2), (True, 2, 2)]


def test_a_long_text_keeps_to_its_context(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.numbers = {1, 2}
    b.add(1, [n % 250 for n in range(400)])
    b.add(2, *TEXTS)
    b.begin(2)
    b.end()  # the scripted context refuses a row whose place is not there
    for number in (1, 2):
        assert isinstance(b.answers[number], Vectors)


def test_a_text_that_was_begun_goes_on_where_it_was_before_all_others(
    fake_model: Callable[..., Path],
) -> None:
    spec = LoadSpec(str(fake_model(fail_on=249)), "sha256:0", 512, 8, 2, embeds=True)
    model = FakeModel(spec, lambda _fraction: None)
    embedder = Embedder(model, spec, Meter(), lambda: 2, lambda: 0)
    text = [n % 200 for n in range(200)]
    embedder.add(EmbedJob(1, [text], [0], 512))
    embedder.add(EmbedJob(2, [[249], [1, 2]], [0, 1], 512))
    main, side = embedder.open(), model.side_embeddings()
    assert main is not None
    assert side is not None
    long, short = embedder.begin(main, 100, 1), embedder.begin(side, 100, 1)
    assert long is not None
    assert short is not None
    for forward in (long, short):
        embedder.end(forward, forward.run(), 1.0)
    assert embedder.begin(side, 100, 1) is None
    while embedder.step(None):  # the scripted context refuses a row that leaves a gap
        pass
    (_, failed), (_, found) = sorted(embedder.take_answers(), reverse=True)
    assert isinstance(failed, EngineFailed)
    assert isinstance(found, Vectors)
    assert found.n_tokens == 200


def test_one_broken_text_fails_alone_wherever_it_was(bench: Callable[..., Bench]) -> None:
    b = bench(fail_on=249)
    b.numbers = set(range(20))
    for number, text in enumerate(TEXTS):
        b.add(number, [249] if number in (3, 17) else text)
    b.begin(2)
    b.end()
    failed = {n for n, answer in b.answers.items() if isinstance(answer, EngineFailed)}
    assert failed == {3, 17}


def test_who_leaves_while_its_text_is_evaluated_leaves_nothing_behind(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    b.add(1, *TEXTS)
    b.begin(2)
    b.engine.inbox.put(Remove(1))
    b.engine.step(wait_s=LONG_S)
    b.add(1, [7, 7])  # another one, whose number may be the same
    b.end()
    answer = b.answers[1]
    assert isinstance(answer, Vectors)
    assert answer.n_tokens == 2


def test_without_memory_for_a_second_context_there_is_one(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench()
    monkeypatch.setattr(b.model, "side_embeddings", lambda: None)
    b.add(1, *TEXTS)
    b.begin(1)
    b.end()
    assert [is_main for is_main, _, _ in b.parts] == [True] * len(b.parts)
    assert [n for _, _, n in b.parts[1:]] == [2] * len(b.parts[1:])


def test_what_a_lane_raises_ends_the_engine(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench()

    def broken(*_arguments: Any) -> int:
        raise ValueError("rows that would abort the process")

    monkeypatch.setattr(FakeEmbeddings, "forward", broken)
    b.add(1, [1])
    b.engine.step(wait_s=LONG_S)
    with pytest.raises(ValueError, match="would abort"):
        b.engine.step(wait_s=LONG_S)


def test_when_others_need_the_cpus_the_second_forward_waits(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.engine.inbox.put(Share(2, ()))
    b.add(1, *TEXTS)
    b.begin(1)
    b.end()
    assert [n for _, _, n in b.parts] == [1] * len(b.parts)
    assert CPU in b.model.info.needs
