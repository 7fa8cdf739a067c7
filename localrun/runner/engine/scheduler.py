"""Who enters, who evaluates how many rows in the next step, and who has to yield. Pure.

Iteration-level batching as in Orca (OSDI 2022): the decision is made anew for every step, so a
finished sequence leaves and a waiting one enters between two forwards. Prompts are evaluated in
chunks beside the decodes, as in Sarathi-Serve (OSDI 2024), so that a long prompt never stops the
streams next to it. When cells run out, somebody who came later yields them, as in vLLM (SOSP
2023), so the oldest sequence always advances.
"""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

from localrun.runner.engine.sequence import Sequence
from localrun.spec import Admission

# A sequence that does not fit may be overtaken by so many smaller ones before everybody waits.
MAX_OVERTAKEN = 8

# How far behind the head of the line to look for somebody who fits.
_MAX_SEEN = 64

# Rows of a prompt chunk of a deterministic sequence: always these, whatever else is going on.
DETERMINISTIC_ROWS = 64

# How long the first of a batch waits for the others. `static` waits for a full batch; the limit
# is for the last few of a load, which would wait for ever.
STATIC_DELAY_S, DYNAMIC_DELAY_S = 5.0, 0.05

# Sequences that yield in one step. Saving their KV takes time, which this spreads over steps.
_MAX_VICTIMS = 2

# Part of the step's rows that the first prompt takes when a short one stands behind it, which the
# rest evaluates whole. Every further piece makes the forward's graphs smaller, so that one of fewer
# rows than these begins with the next step: 2 % less time for 16 prompts of 55 rows.
_SHARED, _MIN_PIECE = 0.75, 64


# ---- who enters


def batch_may_start(
    admission: Admission, *, n_waiting: int, n_running: int, n_slots: int, waited_s: float
) -> bool:
    """Whether waiting sequences may enter at all.

    continuous  always
    static      nothing runs, and a whole batch waits (or its first for STATIC_DELAY_S)
    dynamic     nothing runs, and a whole batch waits, or its first for DYNAMIC_DELAY_S
    """
    if admission == "continuous":
        return True
    delay_s = STATIC_DELAY_S if admission == "static" else DYNAMIC_DELAY_S
    return n_running == 0 and (n_waiting >= n_slots or waited_s >= delay_s)


class FairLine:
    """Sequences that wait, in the order in which they get slots.

    First come, first served within a client; clients take turns by the tokens that they ask for,
    so that a hundred requests of one do not keep another one waiting. Source: start-time fair
    queueing (Goyal, Vin and Cheng, SIGCOMM 1996), which needs a number per client and no rounds.
    """

    def __init__(self) -> None:
        self._waiting: list[Sequence] = []
        self._next_start: dict[str, float] = {}
        self._now = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._waiting)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def join(self, sequence: Sequence, n_tokens: float | None = None) -> None:
        """Takes its place behind those whose turn comes before.

        `n_tokens` is what it will probably cost; without it, all that it might.
        """
        if n_tokens is None:
            n_tokens = sequence.n_prompt + max(1, sequence.n_predict)
        start = max(self._now, self._next_start.get(sequence.client, 0.0))
        self._next_start[sequence.client] = start + n_tokens
        sequence.tag = start
        index = len(self._waiting)
        while index and self._waiting[index - 1].tag > start:
            index -= 1
        self._waiting.insert(index, sequence)

    def leave(self, sequence: Sequence) -> None:
        """It got a slot, or its reader has left. Raises ValueError when it does not wait."""
        # Not its own place: one that overtakes or is cancelled far behind must not push newcomers
        # behind those who still wait.
        now = self._waiting[0].tag if self._waiting else 0.0
        self._waiting.remove(sequence)
        self._now = max(self._now, now)
        if not self._waiting:
            self._next_start.clear()
            self._now = 0.0

    def find(self, sequence_id: int) -> Sequence | None:
        """The sequence of that id, if it waits."""
        return next((s for s in self._waiting if s.id == sequence_id), None)


def next_to_enter(
    waiting: Iterable[Sequence],
    is_held: Callable[[Sequence], bool],
    fits: Callable[[Sequence], bool],
) -> Sequence | None:
    """The first that may have a slot now. Held ones are passed over and lose nothing.

    One that does not fit is passed by smaller ones, MAX_OVERTAKEN times; then all wait for it.
    """
    too_large: Sequence | None = None
    for n_seen, sequence in enumerate(waiting):
        if n_seen > _MAX_SEEN:
            return None
        if is_held(sequence):
            continue
        if fits(sequence):
            if too_large is not None:
                too_large.n_overtaken += 1
            return sequence
        too_large = too_large or sequence
        if too_large.n_overtaken >= MAX_OVERTAKEN:
            return None
    return None


@dataclass(slots=True)
class Expectation:
    """How much of their possible length sequences really use, learned from those that ended.

    `share` of the expected completion is kept free for each running sequence. It shrinks while
    all goes well and jumps when somebody had to be preempted.
    """

    n_completion: float = 256.0
    share: float = 0.5
    _n_calm: int = 0

    def saw_end(self, n_completion: int) -> None:
        """A sequence ended with that many tokens."""
        self.n_completion += 0.1 * (n_completion - self.n_completion)

    def saw_step(self, *, preempted: bool) -> None:
        """A step has passed."""
        if preempted:
            self.share = min(1.0, self.share + 0.15)
            self._n_calm = 0
            return
        self._n_calm += 1
        if self._n_calm % 50 == 0:
            self.share = max(0.1, self.share * 0.98)

    def growth(self, sequence: Sequence) -> int:
        """Cells to keep for what the sequence has yet to generate."""
        n_left = sequence.n_predict - sequence.n_completion
        return int(self.share * max(0.0, min(n_left, self.n_completion - sequence.n_completion)))


# ---- who evaluates what


@dataclass(frozen=True, slots=True)
class Budget:
    """Prefill rows of one step: `alone` when nothing decodes, `beside` next to running streams.

    `ending` is how far the chunk that ends a prompt may go beside them: a few rows more save it
    another step.
    """

    alone: int
    beside: int
    ending: int


class StepPlan(NamedTuple):
    """One step: who decodes one row, which prompts advance by how many, who gives up its cells."""

    decode: tuple[Sequence, ...]
    prefill: tuple[tuple[Sequence, int], ...]
    preempt: tuple[Sequence, ...]

    @property
    def is_empty(self) -> bool:
        """True when there is nothing to evaluate."""
        return not self.decode and not self.prefill


def plan_decodes(running: Seq[Sequence], n_free: float) -> StepPlan | None:
    """What `plan_step` says where all decode and there are cells for all, without its questions.

    None elsewhere. That is nearly every step, and between two forwards the CPUs do nothing else.
    """
    if n_free < len(running) or any(s.n_pending != 1 for s in running):
        return None
    return StepPlan(tuple(running), (), ())


def plan_step(
    running: Seq[Sequence],
    budget: Budget,
    n_free: float,
    own_cells: Callable[[Sequence], int],
    work_lost_s: Callable[[Sequence], float],
) -> StepPlan:
    """Rows for everybody in order of arrival, as far as `n_free` cells go.

    `running` is in order of arrival, `n_free` counts what can be had without hurting anybody
    (infinite where each sequence has its own cells). A sequence that finds too few makes a later
    one yield: the one with the least work lost per cell that it frees, the latest among equals.
    """
    is_beside = any(s.n_pending == 1 for s in running)
    n_left = budget.beside if is_beside else budget.alone
    n_ending = budget.ending if is_beside else budget.alone
    decode: list[Sequence] = []
    prefill: list[tuple[Sequence, int]] = []
    preempt: list[Sequence] = []
    for index, sequence in enumerate(running):
        if sequence in preempt:
            continue
        n_rows = 1
        if sequence.n_pending > 1 and prefill:
            n_rows = _next_chunk(sequence, n_left, budget.alone)
        elif sequence.n_pending > 1:
            behind = running[index + 1 :]
            n_rows = _first_chunk(sequence, n_left, n_ending, budget.alone, behind)
        if n_rows == 0:
            continue
        while n_free < n_rows and len(preempt) < _MAX_VICTIMS:
            victim = _victim(running[index + 1 :], preempt, own_cells, work_lost_s)
            if victim is None:
                break
            preempt.append(victim)
            n_free += own_cells(victim)
        n_rows = _that_fit(sequence, n_rows, n_free)
        if n_rows == 0:
            continue
        n_free -= n_rows
        if sequence.n_pending == 1:
            decode.append(sequence)
        else:
            prefill.append((sequence, n_rows))
            n_left -= n_rows
    return StepPlan(tuple(decode), tuple(prefill), tuple(preempt))


def _first_chunk(
    sequence: Sequence, n_left: int, n_ending: int, n_batch: int, behind: Seq[Sequence]
) -> int:
    """Rows of the first prompt in a step of `n_left`, or of `n_ending` if they end it."""
    n_whole = _whole_chunk(sequence, n_batch)
    if sequence.sampling.deterministic or n_whole <= n_ending:
        return n_whole
    n_shared = max(1, int(n_left * _SHARED))
    has_short = any(1 < s.n_pending <= n_left - n_shared for s in behind)
    return n_shared if has_short else n_left


def _next_chunk(sequence: Sequence, n_left: int, n_batch: int) -> int:
    """Rows of a prompt behind others: all of it, or what is left if that is much, or none."""
    n_whole = _whole_chunk(sequence, n_batch)
    if n_whole <= n_left:
        return n_whole
    return 0 if sequence.sampling.deterministic or n_left < _MIN_PIECE else n_left


def _whole_chunk(sequence: Sequence, n_batch: int) -> int:
    """All rows of the prompt, or those of a fixed size that nothing may change."""
    n_rows = sequence.n_pending
    return min(n_rows, DETERMINISTIC_ROWS, n_batch) if sequence.sampling.deterministic else n_rows


def _that_fit(sequence: Sequence, n_rows: int, n_free: float) -> int:
    if n_free >= n_rows:
        return n_rows
    return 0 if sequence.sampling.deterministic else max(0, int(n_free))


def _victim(
    later: Seq[Sequence],
    gone: Seq[Sequence],
    own_cells: Callable[[Sequence], int],
    work_lost_s: Callable[[Sequence], float],
) -> Sequence | None:
    best: Sequence | None = None
    best_price = float("inf")
    for sequence in later:
        n_cells = own_cells(sequence)
        if n_cells == 0 or sequence in gone:
            continue
        price = work_lost_s(sequence) / n_cells
        if price <= best_price:
            best, best_price = sequence, price
    return best
