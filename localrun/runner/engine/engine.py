"""The engine: one thread that turns waiting sequences into tokens, a step at a time.

A step is `plan → forward → sample → emit`. This thread alone calls the model. It knows token ids
only: templates, text and stop strings live in `runner.text`, which feeds `inbox` and receives
one `StepOutput` a step.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import NamedTuple

from localrun.core import DoneReason
from localrun.errors import EngineFailed, LocalrunError
from localrun.runner.engine.kv import Slots
from localrun.runner.engine.scheduler import Budget, StepPlan, plan_step
from localrun.runner.engine.sequence import Sequence
from localrun.runner.model import Model

# Prefill rows beside running streams. At the measured 500-3000 rows/s of small models this keeps
# a step below a quarter of a second.
PREFILL_ROWS_BESIDE = 128


@dataclass(frozen=True, slots=True)
class Remove:
    """The sequence is over for its reader: it left, or its text reached a stop string."""

    id: int


class TokenOut(NamedTuple):
    """One step's result for one sequence: `token` None when it ended without another token."""

    sequence: Sequence
    token: int | None
    reason: DoneReason | None


class StepOutput(NamedTuple):
    """What one step did, for the text thread. `failed` sequences are gone."""

    admitted: tuple[Sequence, ...]
    tokens: tuple[TokenOut, ...]
    failed: tuple[tuple[Sequence, LocalrunError], ...]
    n_running: int


class Engine:
    """Owns the model, the slots and the two queues of sequences."""

    def __init__(
        self,
        model: Model,
        emit: Callable[[StepOutput], None],
        *,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.inbox: SimpleQueue[Sequence | Remove] = SimpleQueue()
        self._model = model
        self._emit = emit
        self._clock_ns = clock_ns
        self._slots = Slots(model.info.n_slots)
        self._budget = Budget(alone=model.n_batch, beside=min(model.n_batch, PREFILL_ROWS_BESIDE))
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._tokens: list[TokenOut] = []
        self._failed: list[tuple[Sequence, LocalrunError]] = []

    def run(self) -> None:
        """Steps for ever; sleeps in the inbox while there is nothing to do."""
        while True:
            self.step(block=not self._running and not self._waiting)

    def step(self, *, block: bool = False) -> None:
        """One scheduling decision and what follows from it. `block` waits for a message first."""
        changed = self._drain_inbox(block=block)
        plan = plan_step(self._waiting, self._running, self._slots.n_free, self._budget)
        for sequence in plan.admit:
            self._admit(sequence)
        self._evaluate(plan)
        if changed or not plan.is_empty:
            self._emit_step(plan)

    def _drain_inbox(self, *, block: bool) -> bool:
        changed = False
        while block or not self.inbox.empty():
            message = self.inbox.get()
            block, changed = False, True
            if isinstance(message, Remove):
                self._remove(message.id)
            else:
                self._waiting.append(message)
        return changed

    def _admit(self, sequence: Sequence) -> None:
        self._waiting.remove(sequence)
        self._running.append(sequence)
        sequence.slot = self._slots.take()
        sequence.admitted_ns = self._clock_ns()
        if not sequence.sampling.is_greedy:
            sequence.sampler = self._model.sampler(sequence.sampling, sequence.tokens)

    def _evaluate(self, plan: StepPlan) -> None:
        # Decodes first and in a call of their own: one graph covers equally long pieces only, so
        # a call that mixes them with a prompt falls apart into several and costs the streams more.
        if plan.decode:
            # llama.cpp cuts a batch at gaps and steps back in the ids, so the rows go by slot.
            by_slot = sorted(plan.decode, key=lambda sequence: sequence.slot)
            self._forward([(sequence, 1) for sequence in by_slot])
        for piece in plan.prefill:
            self._forward([piece])

    def _forward(self, pieces: list[tuple[Sequence, int]]) -> None:
        """Evaluates the next rows of each sequence and samples those that reached their end."""
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        outputs: list[bool] = []
        for sequence, n_rows in pieces:
            start, end = sequence.n_done, sequence.n_done + n_rows
            tokens += sequence.tokens[start:end]
            positions += range(start, end)
            slots += [sequence.slot] * n_rows
            outputs += [False] * (n_rows - 1)
            outputs.append(end == len(sequence.tokens))
        code = self._model.forward(tokens, positions, slots, outputs)
        if code != 0:
            for sequence, _ in pieces:
                self._fail(sequence, EngineFailed(code))
            return
        for sequence, n_rows in pieces:
            sequence.n_done += n_rows
        self._sample([s for s, _ in pieces if s.n_done == len(s.tokens)])

    def _sample(self, sequences: list[Sequence]) -> None:
        """Takes a token for each sequence; they stand in the order of the output rows."""
        greedy = self._model.greedy() if any(s.sampler is None for s in sequences) else []
        for row, sequence in enumerate(sequences):
            token = greedy[row] if sequence.sampler is None else sequence.sampler.sample(row)
            is_end = self._model.vocab.is_end(token)
            reason = sequence.take(token, is_end=is_end, now_ns=self._clock_ns())
            self._tokens.append(TokenOut(sequence, None if is_end else token, reason))
            if reason:
                self._release(sequence)

    def _fail(self, sequence: Sequence, error: LocalrunError) -> None:
        self._failed.append((sequence, error))
        self._release(sequence)

    def _remove(self, sequence_id: int) -> None:
        for sequence in self._running:
            if sequence.id == sequence_id:
                return self._release(sequence)
        for sequence in self._waiting:
            if sequence.id == sequence_id:
                return self._waiting.remove(sequence)
        return None

    def _release(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._model.free(sequence.slot)
        self._slots.give_back(sequence.slot)
        if sequence.sampler is not None:
            sequence.sampler.close()
            sequence.sampler = None

    def _emit_step(self, plan: StepPlan) -> None:
        output = StepOutput(
            plan.admit,
            tuple(self._tokens),
            tuple(self._failed),
            n_running=len(self._running),
        )
        self._tokens.clear()
        self._failed.clear()
        self._emit(output)
