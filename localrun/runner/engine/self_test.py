"""Which layout, and flash attention or not, is fastest for this model on this machine: measured.

No rule knows: the order of the four combinations differs between processors, builds of llama.cpp
and models. So each gets a small context, a few hundred rows, and the clock. A pool gets idle
sequences too, since it will have them: attention walks over their cells. The verdict goes to
the daemon, which keeps it for the next load: a context never changes under a model that is in use,
since another kind of attention may choose another word where two are about as likely.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from localrun.runner.engine.layout import Shape
from localrun.runner.model import LoadRefused, Model
from localrun.spec import KvLayout, Verdict

# Sequences and tokens of each in a trial. More would show the cost of attention better and take
# longer than a user may notice.
_N_SEQUENCES, _N_FILL = 8, 128
_WINDOW = 256
_N_STEPS = 3
_CHUNK = 64

# Rows of the first look, and what it may take: on a machine that slow attention is a small part,
# and the test would take far longer than it is worth.
_N_LOOK, _LOOK_LIMIT_S = 32, 0.2

# In a pool one sequence walks over the cells of all others, and the longer they are the more that
# costs: in trials of 128 tokens both layouts were about equal where after minutes of chats a pool
# had 0.73 of the rate. So it has to win clearly here to win there.
_POOL_HANDICAP = 1.1


@dataclass(frozen=True, slots=True)
class Trial:
    """Seconds that one combination took: a prompt row, and a step of `n` decodes."""

    layout: KvLayout
    flash_attention: bool
    row_s: float
    step_s: float
    n: int
    merged_s: float = 0.0

    @property
    def token_s(self) -> float:
        """Time of a prompt token and a token of an answer, as in an even mix of both."""
        return self.row_s + self.step_s / self.n

    @property
    def merges_rows(self) -> bool:
        """Whether one call for decodes and a chunk is faster than two."""
        return 0 < self.merged_s < self.step_s + _CHUNK * self.row_s


def judge(trials: Sequence[Trial]) -> Verdict:
    """The best of at least one trial."""

    def price(trial: Trial) -> float:
        return trial.token_s * (_POOL_HANDICAP if trial.layout == "unified" else 1.0)

    best = min(trials, key=price)
    return Verdict(best.layout, best.flash_attention, best.merges_rows)


def self_test(
    model: Model,
    combinations: Sequence[tuple[KvLayout, bool]],
    n_parallel: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Verdict | None]:
    """Tries each combination; yields None between two forwards or so, and the verdict at the end.

    Whoever iterates may stop at any time. The model's context is another one afterwards. Without
    a verdict the machine is too slow to ask, or no combination could be opened.
    """
    trials: list[Trial] = []
    n = min(n_parallel, _N_SEQUENCES)
    for layout, flash_attention in combinations:
        # As many as make a quarter of the pool, which is what idle sequences may hold.
        n_ids = n + n // 2 if layout == "unified" else n
        try:
            model.open(Shape(layout, _WINDOW, n, n_ids, n * _WINDOW, flash_attention))
        except LoadRefused:
            continue
        bench = _Bench(model, clock)
        if not trials and bench.rows(0, _N_LOOK) > _LOOK_LIMIT_S:
            return
        yield None
        model.trim(0, 0)
        row_s = bench.rows(0, _N_FILL) / _N_FILL
        yield None
        state = model.save(0)
        for kv_id in range(1, n_ids):
            model.restore(kv_id, state)
        step_s = min(bench.step(n) for _ in range(_N_STEPS))
        yield None
        merged_s = bench.step(n, n_chunk=_CHUNK) if layout == "unified" and n > 1 else 0.0
        trials.append(Trial(layout, flash_attention, row_s, step_s, n, merged_s))
        yield None
    if trials:
        yield judge(trials)


class _Bench:
    def __init__(self, model: Model, clock: Callable[[], float]) -> None:
        self._model = model
        self._clock = clock

    def rows(self, kv_id: int, n_rows: int) -> float:
        """Seconds for a prompt of `n_rows` tokens."""
        began = self._clock()
        self._forward([(kv_id, n_rows)])
        return self._clock() - began

    def step(self, n: int, *, n_chunk: int = 0) -> float:
        """Seconds for a decode of sequences 0 to n; the last one takes a chunk instead."""
        rows = [(kv_id, 1) for kv_id in range(n)]
        if n_chunk:
            rows[-1] = (n - 1, n_chunk)
        began = self._clock()
        self._forward(rows)
        return self._clock() - began

    def _forward(self, rows: list[tuple[int, int]]) -> None:
        tokens: list[int] = []
        positions: list[int] = []
        kv_ids: list[int] = []
        outputs: list[bool] = []
        n_vocab = self._model.vocab.n_tokens
        for kv_id, n_rows in rows:
            start = self._model.n_positions(kv_id)
            positions += range(start, start + n_rows)
            # Different words, since some kernels are faster on equal ones.
            tokens += [(1000 + 7 * position) % n_vocab for position in positions[-n_rows:]]
            kv_ids += [kv_id] * n_rows
            outputs += [False] * (n_rows - 1) + [True]
        n_batch = self._model.n_batch
        for at in range(0, len(tokens), n_batch):
            part = slice(at, at + n_batch)
            self._model.forward(tokens[part], positions[part], kv_ids[part], outputs[part])
