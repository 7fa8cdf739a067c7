"""Texts that wait for their vectors, and the forwards they go through together.

Texts end all together, unlike answers, so batching is dynamic: whatever waits when a forward ends
shares the next one, and the first of few may wait a moment for more. Requests take turns by tokens,
so that one text does not wait for somebody else's hundreds. A text longer than a forward has rows
goes through several where the model allows it, and beside running answers all of them are short.
The first request makes the context. Engine thread only.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from localrun.core import Vectors
from localrun.errors import BROKEN_LOGITS, EngineFailed, LoadFailed, LocalrunError
from localrun.runner.engine.meter import Meter
from localrun.runner.model import Embeddings, LoadRefused, Model
from localrun.spec import LoadSpec

# Seconds of a row before any was seen, as of a small model on few cores; then a running mean, with
# this weight of the newest forward. And the fewest rows, so that a text always goes on.
_ROW_S, _WEIGHT, _ROWS_MIN = 0.004, 0.3, 16

_FLOAT_BYTES = 4

# The answer to a job, by its id.
Answer = tuple[int, Vectors | LocalrunError]


@dataclass(slots=True, eq=False)
class EmbedJob:
    """A request: the distinct ones among its texts as tokens, and which one stands at each place.

    No text has more than `n_ctx` tokens; `n_dropped` were left out for it. `n_dims` numbers of a
    vector are wanted, all when 0.
    """

    id: int
    texts: list[list[int]]
    places: list[int]
    n_ctx: int
    n_dims: int = 0
    n_dropped: int = 0
    vectors: dict[int, bytes] = field(default_factory=dict)

    def starts(self, now: int) -> list[int]:
        """Where each text has its turn, in tokens of this request's own since `now`.

        Source: start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996), as in `scheduler`.
        """
        return list(itertools.accumulate(map(len, self.texts[:-1]), initial=now))[: len(self.texts)]


@dataclass(slots=True, eq=False)
class _Text:
    job: EmbedJob
    number: int
    start: int
    arrived_ns: int
    n_done: int = 0
    is_alone: bool = False  # since it failed together with others

    @property
    def tokens(self) -> list[int]:
        return self.job.texts[self.number]

    @property
    def n_left(self) -> int:
        return len(self.tokens) - self.n_done


@dataclass(slots=True, eq=False)
class Forward:
    """Rows of texts that a context evaluates together."""

    context: Embeddings
    pieces: list[tuple[_Text, int]]
    n_threads: int

    def run(self) -> int:
        """Evaluates them, in any thread; returns llama.cpp's code, 0 for done."""
        tokens: list[int] = []
        positions: list[int] = []
        ids: list[int] = []
        for number, (text, n) in enumerate(self.pieces):
            tokens += text.tokens[text.n_done : text.n_done + n]
            positions += range(text.n_done, text.n_done + n)
            ids += [number] * n
        self.context.use_threads(self.n_threads)
        return self.context.forward(tokens, positions, ids)


def plan_rows(
    n_left: Sequence[int], n_rows: int, n_texts: int, *, can_split: bool, most: int
) -> list[int]:
    """How many rows the first of the texts that wait get in the next forward. Pure.

    `n_left` tokens of each are still to do. `n_rows` is what a forward should have, `most` what
    it can have: a text that must not be split gets its rows in any case. One that is split has a
    forward for itself, but for its end, which is the first of several.
    """
    rows: list[int] = []
    left = n_rows
    for n in n_left[:n_texts]:
        if n > left and rows:
            break
        # A row that is evaluated alone has other last bits than one among others.
        room = left - (n == left + 1 and left > 1) if can_split else most
        rows.append(min(n, room))
        left -= rows[-1]
        if left <= 0:
            break
    return rows


class Embedder:
    """Owns the jobs from arrival to answer."""

    def __init__(
        self,
        model: Model,
        spec: LoadSpec,
        meter: Meter,
        n_threads: Callable[[], int],
        clock_ns: Callable[[], int],
    ) -> None:
        self._model = model
        self._delay_ns = int(spec.embed_delay_s * 1e9)
        self._meter = meter
        self._n_threads = n_threads
        self._clock_ns = clock_ns
        self._jobs: dict[int, EmbedJob] = {}
        self._waiting: list[_Text] = []  # by their turns; only the first may be begun
        self._now = 0  # the turn of the text that was begun last
        self._row_s = _ROW_S
        self._answers: list[Answer] = []
        self._context: Embeddings | None = None

    @property
    def is_idle(self) -> bool:
        """True when nothing waits, and every answer was taken."""
        return not self._jobs and not self._answers

    @property
    def has_waiting(self) -> bool:
        """True while texts are not in a forward."""
        return bool(self._waiting)

    @property
    def n_jobs(self) -> int:
        """Requests without an answer."""
        return len(self._jobs)

    def add(self, job: EmbedJob) -> None:
        """Puts its texts into the line."""
        self._jobs[job.id] = job
        now_ns = self._clock_ns()
        starts = job.starts(self._now)
        self._waiting += [_Text(job, n, start, now_ns) for n, start in enumerate(starts)]
        self._waiting.sort(key=_turn)  # what is there already goes first among equals
        self._end_if_done(job)

    def remove(self, job_id: int) -> None:
        """Nobody waits for it any more; an unknown one is no error."""
        if job := self._jobs.pop(job_id, None):
            self._drop(job)

    def take_answers(self) -> tuple[Answer, ...]:
        """What has come out since the last call."""
        answers, self._answers = tuple(self._answers), []
        return answers

    def step(self, budget_s: float | None) -> bool:
        """One forward, beside running answers one of about `budget_s`; False for none."""
        if not self._waiting:
            return False
        context = self.open()
        if context is None:
            return True
        n_rows = context.shape.n_shared
        if budget_s is not None:
            n_rows = min(n_rows, max(_ROWS_MIN, int(budget_s / self._row_s)))
        forward = self.begin(context, n_rows, self._n_threads())
        if forward is None:
            return False
        began_ns = self._clock_ns()
        code = forward.run()
        self.end(forward, code, (self._clock_ns() - began_ns) / 1e9)
        return True

    def open(self) -> Embeddings | None:
        """The context for all texts that wait; without memory for one their requests fail."""
        try:
            context = self._model.embeddings(max(job.n_ctx for job in self._jobs.values()))
        except LoadRefused as error:
            for job in list(self._jobs.values()):
                self._fail(job, LoadFailed(str(error)))
            return None
        if context is not self._context:
            self._context = context
            for text in self._waiting[:1]:
                text.n_done = 0  # its rows are gone with the one before
        return context

    def n_short_rows(self, n_most: int) -> int:
        """Rows of the texts that wait and fit `n_most`, counted as far as two forwards go."""
        n_rows = 0
        for text in self._waiting:
            if text.n_left <= n_most and not text.n_done:
                n_rows += text.n_left
                if n_rows > 2 * n_most:
                    break
        return n_rows

    def begin(self, context: Embeddings, n_rows: int, n_threads: int) -> Forward | None:
        """The next forward, in a context that has none: about `n_rows` rows of those that wait.

        None while there is nothing that fits it, or while more may come.
        """
        shape = context.shape
        texts = list(itertools.islice(self._that_fit(context), shape.n_ids))
        if not texts:
            return None
        n_left = [text.n_left for text in texts]
        is_full = len(texts) == shape.n_ids or sum(n_left) >= min(n_rows, shape.n_shared)
        if not is_full and self._clock_ns() - texts[0].arrived_ns < self._delay_ns:
            return None
        rows = plan_rows(n_left, n_rows, shape.n_ids, can_split=shape.can_split, most=shape.n_rows)
        forward = Forward(context, list(zip(texts, rows, strict=False)), n_threads)
        begun = {text for text, _ in forward.pieces}
        self._waiting = [text for text in self._waiting if text not in begun]
        self._now = max(self._now, *(text.start for text in begun))
        if not texts[0].n_done:
            context.forget(0)  # of a text that was begun, and that nobody waits for any more
        return forward

    def _that_fit(self, context: Embeddings) -> Iterator[_Text]:
        """Those that may share the next forward in that context, in their turns."""
        if context is not self._context:
            n_most = context.shape.n_rows
            fresh = (text for text in self._waiting if not (text.n_done or text.is_alone))
            return (text for text in fresh if text.n_left <= n_most)
        if self._waiting and self._waiting[0].is_alone:
            return iter(self._waiting[:1])
        return itertools.takewhile(lambda text: not text.is_alone, self._waiting)

    def end(self, forward: Forward, code: int, elapsed_s: float) -> None:
        """Takes the vectors of a forward that has run. Texts that failed together go one by one."""
        context, pieces = forward.context, forward.pieces
        if code != 0:
            self._after_failure(context, pieces, code)
            return
        n_rows = sum(n for _, n in pieces)
        self._row_s += _WEIGHT * (elapsed_s / n_rows - self._row_s)
        self._meter.observe("embed_seconds", elapsed_s)
        self._meter.count("embed_tokens_total", n_rows)
        for number, (text, n) in enumerate(pieces):
            text.n_done += n
            # One that goes on is alone, so its number stays.
            if text.n_left:
                self._put_back(text)
                continue
            self._take(text, context.vector(number, text.job.n_dims))
            context.forget(number)

    def _after_failure(
        self, context: Embeddings, pieces: list[tuple[_Text, int]], code: int
    ) -> None:
        self._meter.count("forward_errors_total")
        for number in range(len(pieces)):
            context.forget(number)
        if len(pieces) == 1:
            self._fail(pieces[0][0].job, EngineFailed(code))
            return
        for text, _ in pieces:
            text.n_done, text.is_alone = 0, True
            self._put_back(text)

    def _put_back(self, text: _Text) -> None:
        if self._is_wanted(text.job):
            self._waiting.insert(0, text)
            self._waiting.sort(key=_turn)

    def _is_wanted(self, job: EmbedJob) -> bool:
        return self._jobs.get(job.id) is job

    def _take(self, text: _Text, vector: bytes) -> None:
        job = text.job
        if not self._is_wanted(job):
            return
        if not vector:
            self._fail(job, EngineFailed(BROKEN_LOGITS))
            return
        self._meter.count("embed_texts_total")
        job.vectors[text.number] = vector
        self._end_if_done(job)

    def _end_if_done(self, job: EmbedJob) -> None:
        if len(job.vectors) < len(job.texts):
            return
        del self._jobs[job.id]
        vectors = [job.vectors[number] for number in job.places]
        n_tokens = sum(len(job.texts[number]) for number in job.places)
        data = b"".join(vectors)
        n_dims = len(vectors[0]) // _FLOAT_BYTES if vectors else 0
        self._answers.append((job.id, Vectors(data, n_dims, n_tokens, job.n_dropped)))

    def _fail(self, job: EmbedJob, error: LocalrunError) -> None:
        if not self._is_wanted(job):
            return
        del self._jobs[job.id]
        self._drop(job)
        self._answers.append((job.id, error))

    def _drop(self, job: EmbedJob) -> None:
        self._waiting = [text for text in self._waiting if text.job is not job]


def _turn(text: _Text) -> tuple[bool, int]:
    # Whoever was begun stays in front: its rows are in the context.
    return text.n_done == 0, text.start
