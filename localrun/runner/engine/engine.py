"""The engine: one thread that turns waiting sequences into tokens, a step at a time.

A step is `enter → plan → make way → forward → sample → emit`. This thread alone calls the model.
It knows token ids only: templates, text and stop strings live in `runner.text`, which feeds
`inbox` and receives one `StepOutput` a step.

Decisions are `scheduler`'s, cells are `cache`'s; this file carries out one after the other.
"""

import itertools
import time
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import NamedTuple

from localrun.core import DoneReason, LoadSpec, RunnerInfo, RunnerStats, Verdict
from localrun.errors import EngineFailed, LocalrunError
from localrun.runner.engine.cache import Holder, KvCache
from localrun.runner.engine.cost_model import CostModel
from localrun.runner.engine.host_tier import HostTier
from localrun.runner.engine.layout import Shape, choose_shape
from localrun.runner.engine.meter import Meter
from localrun.runner.engine.prefix_index import Match
from localrun.runner.engine.scheduler import (
    DYNAMIC_DELAY_S,
    Budget,
    Expectation,
    FairLine,
    StepPlan,
    batch_may_start,
    next_to_enter,
    plan_step,
)
from localrun.runner.engine.sequence import Sequence
from localrun.runner.model import LoadRefused, Model

# llama.cpp's code for a forward that found too few cells, and ours for one without numbers.
_NO_CELLS = 1
BROKEN_LOGITS = -100

# One in so many cells stays free when sequences are admitted, as vLLM's watermark.
_RESERVE_PART = 100

# How often the counters travel while sequences run.
_STATS_INTERVAL_NS = 500_000_000


@dataclass(frozen=True, slots=True)
class Remove:
    """The sequence is over for its reader: it left, or its text reached a stop string."""

    id: int
    is_cancel: bool = True


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
    stats: RunnerStats | None = None
    info: RunnerInfo | None = None
    verdict: Verdict | None = None


class Engine:
    """Owns the model, its context, and every sequence from arrival to end."""

    def __init__(
        self,
        model: Model,
        spec: LoadSpec,
        emit: Callable[[StepOutput], None],
        *,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.inbox: SimpleQueue[Sequence | Remove] = SimpleQueue()
        self._model = model
        self._spec = spec
        self._emit = emit
        self._clock_ns = clock_ns
        self._costs = CostModel()
        self._expected = Expectation()
        self._host = HostTier(model.host_tier_bytes)
        self._meter = Meter()
        self._arrivals = itertools.count()
        self._waiting = FairLine()
        self._preempted: list[Sequence] = []  # in order of arrival
        self.running: list[Sequence] = []  # in order of arrival
        self._n_ctx = spec.n_ctx  # the largest window that anybody has asked for
        self.shape = self._choose_shape()
        model.open(self.shape)
        self._cache = KvCache(model, self.shape, self._host, self._costs, self._meter)
        self._admitted: list[Sequence] = []
        self._tokens: list[TokenOut] = []
        self._failed: list[tuple[Sequence, LocalrunError]] = []
        self._match: Match[Holder] | None = None  # of the sequence that was looked at last
        self._is_full = False  # nobody who waits fits, until somebody leaves
        self._is_short = False  # a forward found fewer cells than the books say; nobody comes in
        self._is_resized = False
        self._merges_rows = spec.verdict is not None and spec.verdict.merges_rows
        self._target_s = spec.tpot_target_ms / 1e3 if spec.tpot_target_ms else None
        self._stats_sent_ns = 0
        self._forward_ns = 0

    @property
    def is_idle(self) -> bool:
        """True when nobody runs or waits."""
        return not (self.running or self._waiting or self._preempted)

    def run(self) -> None:
        """Steps for ever; sleeps in the inbox while there is nothing to do."""
        while True:
            if not self.step(block=self.is_idle):
                # Nothing may start before a batch is full: until its delay is over, or a message.
                self._drain_inbox(block=True, timeout_s=DYNAMIC_DELAY_S / 5)

    def step(self, *, block: bool = False) -> bool:
        """One round of decisions and what follows from them; False when nothing could be done.

        `block` waits for a message first.
        """
        changed = self._drain_inbox(block=block)
        began_ns = self._clock_ns()
        self._forward_ns = 0
        self._fit_context()
        self._let_in(began_ns)
        plan = self._plan()
        for sequence in plan.preempt:
            self._preempt(sequence)
        self._evaluate(plan)
        if not plan.is_empty:
            self._expected.saw_step(preempted=bool(plan.preempt))
            self._meter.count("steps_total")
            host_ns = self._clock_ns() - began_ns - self._forward_ns
            self._meter.count("step_host_seconds_total", host_ns / 1e9)
        if changed or not plan.is_empty or self._failed:
            self._emit_step()
            return True
        return False

    # ---- what arrives

    def _drain_inbox(self, *, block: bool, timeout_s: float | None = None) -> bool:
        changed = False
        while block or not self.inbox.empty():
            try:
                message = self.inbox.get(timeout=timeout_s)
            except Empty:
                return changed
            block, changed = False, True
            if isinstance(message, Remove):
                self._remove(message)
            else:
                self._arrive(message)
        return changed

    def _arrive(self, sequence: Sequence) -> None:
        sequence.arrival = next(self._arrivals)
        sequence.arrived_ns = self._clock_ns()
        self._n_ctx = max(self._n_ctx, sequence.n_ctx)
        self._waiting.join(sequence)
        self._is_full = False

    def _remove(self, message: Remove) -> None:
        if message.is_cancel:
            self._meter.count("requests_cancelled_total")
        for sequence in self.running:
            if sequence.id == message.id:
                self.running.remove(sequence)
                self._is_full = False
                if message.is_cancel:
                    self._cache.cancel(sequence)
                else:
                    self._cache.leave(sequence, keep=True)
                return _close(sequence)
        for sequence in self._preempted:
            if sequence.id == message.id:
                self._preempted.remove(sequence)
                self._cache.forget(sequence)
                return _close(sequence)
        waiting = self._waiting.find(message.id)
        if waiting is not None:
            self._waiting.leave(waiting)
        return None

    # ---- the context

    def _choose_shape(self) -> Shape:
        needs_split = any(
            s.sampling.deterministic for s in (*self.running, *self._preempted, *self._waiting)
        )
        return choose_shape(
            self._spec,
            self._model.facts,
            self._model.free_bytes(),
            n_ctx=self._n_ctx,
            needs_split=needs_split,
        )

    def _fit_context(self) -> None:
        """Makes another context around the weights when a sequence needs one.

        A larger window and a deterministic sequence cannot wait; live sequences are preempted and
        come back in the new context. Everything else waits until nobody runs.
        """
        is_too_small = self._n_ctx > self.shape.n_ctx and not self._holds(self._n_ctx)
        must_split = self.shape.layout == "unified" and any(
            s.sampling.deterministic for s in self._waiting
        )
        if not is_too_small and not must_split:
            return
        shape = self._choose_shape()
        if (shape.n_ctx, shape.layout) == (self.shape.n_ctx, self.shape.layout):
            self._n_ctx = self.shape.n_ctx  # memory has no more
            return
        self.reshape(shape)

    def _holds(self, n_ctx: int) -> bool:
        """A unified pool holds any window that is not larger than itself, unless rope forbids."""
        original = self._model.facts.n_ctx_original
        return self.shape.layout == "unified" and n_ctx <= self.shape.n_cells and not original

    def reshape(self, shape: Shape) -> None:
        """Gives the model another context; what lives goes through the host tier."""
        for sequence in list(self.running):
            self._preempt(sequence)
        self._cache.save_donors()
        before = self.shape
        try:
            self._model.open(shape)
            self.shape = shape
        except LoadRefused:
            self._model.open(before)
            self._n_ctx = before.n_ctx
        self._cache = KvCache(self._model, self.shape, self._host, self._costs, self._meter)
        self._meter.count("context_rebuilds_total")
        self._is_resized = True

    # ---- who enters

    def _let_in(self, now_ns: int) -> None:
        if self._is_short and self.running:
            return  # whoever yielded would come back at once and fill the cells again
        self._is_short = False
        while len(self.running) < self.shape.n_slots:
            if self._preempted:
                # Before anybody new: it came before them, and its reader sees it pause.
                if not self._resume(self._preempted[0]):
                    return
            elif self._is_full or not self._waiting or not self._batch_may_start(now_ns):
                return
            else:
                sequence = next_to_enter(self._waiting, self._must_wait_for_prefix, self._fits)
                if sequence is None:
                    self._is_full = True
                    return
                self._enter(sequence, now_ns)

    def _batch_may_start(self, now_ns: int) -> bool:
        if self._spec.admission == "continuous":
            return True
        n_before = sum(1 for s in self.running if s.admitted_ns != now_ns)
        oldest_ns = min(s.arrived_ns for s in (*self._waiting, *self.running))
        return batch_may_start(
            self._spec.admission,
            n_waiting=len(self._waiting) + len(self.running),
            n_running=n_before,
            n_slots=self.shape.n_slots,
            waited_s=(now_ns - oldest_ns) / 1e9,
        )

    def _must_wait_for_prefix(self, sequence: Sequence) -> bool:
        if not sequence.is_held:
            self._match = self._cache.find(sequence)
            n_cached = self._match.n if self._match else 0
            sequence.leader, sequence.n_awaited = self._cache.find_leader(sequence, n_cached)
        return sequence.is_held

    def _fits(self, sequence: Sequence) -> bool:
        """Whether its cells are there, and those that all running ones are expected to need."""
        match = self._match
        n_cells = sequence.n_pending + self._expected.growth(sequence)
        # What is shared with a running sequence is there already; what a donor has is there too,
        # but among the cells that count as free.
        if match is not None and not match.is_idle:
            n_cells -= match.n
        return self._has_room(n_cells)

    def _has_room(self, n_cells: int) -> bool:
        if not self.running or not self._cache.ledger.is_unified:
            return True
        promised = sum(s.n_pending + self._expected.growth(s) for s in self.running)
        # Every running sequence takes a cell in the next step, the new one included.
        reserve = max(len(self.running) + 1, self.shape.n_cells // _RESERVE_PART)
        return self._cache.n_free - promised - reserve >= n_cells

    def _enter(self, sequence: Sequence, now_ns: int) -> None:
        self._waiting.leave(sequence)
        sequence.cap(self.shape.n_ctx if not self._cache.ledger.is_unified else self._n_ctx)
        self._cache.enter(sequence, self._match)
        sequence.n_cached = sequence.n_done
        sequence.admitted_ns = now_ns
        insort(self.running, sequence, key=_by_arrival)
        self._admitted.append(sequence)
        if not sequence.sampling.is_greedy:
            sequence.sampler = self._model.sampler(sequence.sampling, sequence.tokens)
        self._meter.count("prompt_tokens_total", sequence.n_prompt)
        self._meter.count("prefix_hit_tokens_total", sequence.n_cached)
        self._meter.observe("queue_seconds", (now_ns - sequence.arrived_ns) / 1e9)

    def _resume(self, sequence: Sequence) -> bool:
        if not self._has_room(len(sequence.tokens) + self._expected.growth(sequence)):
            return False
        self._preempted.remove(sequence)
        if sequence.saved is not None:
            self._cache.resume(sequence)
        else:
            self._cache.enter(sequence, self._cache.find(sequence))
        insort(self.running, sequence, key=_by_arrival)
        return True

    # ---- who yields

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        was_saved = self._cache.preempt(sequence)
        insort(self._preempted, sequence, key=_by_arrival)
        self._is_full = False
        self._meter.count("preemptions_swap_total" if was_saved else "preemptions_recompute_total")

    def _work_lost_s(self, sequence: Sequence) -> float:
        n_own = self._cache.own_cells(sequence)
        return min(self._costs.swap_s(sequence.n_done), self._costs.recompute_s(n_own))

    # ---- the step

    def _plan(self) -> StepPlan:
        n_batch = self._model.n_batch
        beside = self._costs.rows_beside(self._target_s, limit=n_batch)
        budget = Budget(alone=n_batch, beside=beside)
        n_free = self._cache.n_free_for(n_batch + len(self.running))
        plan = plan_step(self.running, budget, n_free, self._cache.own_cells, self._work_lost_s)
        if plan.is_empty and self.running and self._reclaim():
            return self._plan()
        return plan

    def _reclaim(self) -> bool:
        """Frees cells the hard way; False when only one sequence is left."""
        if self._cache.drop_donors():
            return True
        if len(self.running) > 1:
            self._preempt(self.running[-1])
            return True
        return False

    def _evaluate(self, plan: StepPlan) -> None:
        shared = [(s, 1) for s in plan.decode if not s.sampling.deterministic]
        own = [(s, 1) for s in plan.decode if s.sampling.deterministic]
        prefill = list(plan.prefill)
        if self._merges_rows and shared and prefill:
            n_rows = len(shared) + sum(n for _, n in prefill)
            if n_rows <= self._model.n_batch and not any(
                s.sampling.deterministic for s, _ in prefill
            ):
                shared, prefill = shared + prefill, []
        # Decodes first and in a call of their own: one graph covers equally long pieces only, so
        # a call that mixes them with a prompt falls apart into several and costs the streams more.
        if shared:
            # llama.cpp cuts a batch at gaps and steps back in the ids, so the rows go by id.
            shared.sort(key=_by_kv_id)
            self._forward(shared)
        for piece in (*own, *prefill):
            self._forward([piece])

    def _forward(self, pieces: list[tuple[Sequence, int]]) -> None:
        """Evaluates the next rows of each sequence and samples those that reached their end."""
        # Somebody may have had to yield since the plan was made.
        pieces = [(s, n) for s, n in pieces if s.kv_id >= 0 and s.n_pending >= n]
        if not pieces or not self._cache.make_room(sum(n for _, n in pieces)):
            return
        tokens: list[int] = []
        positions: list[int] = []
        kv_ids: list[int] = []
        outputs: list[bool] = []
        for sequence, n_rows in pieces:
            start, end = sequence.n_done, sequence.n_done + n_rows
            tokens += sequence.tokens[start:end]
            positions += range(start, end)
            kv_ids += [sequence.kv_id] * n_rows
            outputs += [False] * (n_rows - 1)
            outputs.append(end == len(sequence.tokens))
        began_ns = self._clock_ns()
        code = self._model.forward(tokens, positions, kv_ids, outputs)
        elapsed_ns = self._clock_ns() - began_ns
        self._forward_ns += elapsed_ns
        if code != 0:
            self._after_failure(pieces, code)
            return
        self._learn(pieces, elapsed_ns / 1e9)
        ready = []
        for sequence, n_rows in pieces:
            if not self._cache.wrote(sequence, n_rows):
                self._meter.count("ledger_drift_total")
                self._cache.rewind(sequence)
            elif sequence.n_pending == 0:
                ready.append(sequence)
        if ready:
            self._sample(ready)

    def _learn(self, pieces: list[tuple[Sequence, int]], elapsed_s: float) -> None:
        n_rows = sum(n for _, n in pieces)
        n_prefill = sum(n for _, n in pieces if n > 1)
        meter = self._meter
        if n_prefill:
            n_decode = n_rows - n_prefill
            others_s = self._costs.decode_s if n_decode else 0.0
            self._costs.saw_prefill(n_prefill, max(elapsed_s / 2, elapsed_s - others_s))
            meter.count("prefill_tokens_total", n_prefill)
            meter.observe("prefill_seconds", elapsed_s)
        else:
            self._costs.saw_decode(elapsed_s)
            meter.observe("decode_seconds", elapsed_s)
        meter.count("decode_tokens_total", n_rows - n_prefill)
        for sequence, n in pieces:
            n_again = min(sequence.n_evaluated, sequence.n_done + n) - sequence.n_done
            if n_again > 0:
                meter.count("recomputed_tokens_total", n_again)
            sequence.n_evaluated = max(sequence.n_evaluated, sequence.n_done + n)

    def _after_failure(self, pieces: list[tuple[Sequence, int]], code: int) -> None:
        """Nobody pays for another one's failure: what failed together is tried one by one."""
        self._meter.count("forward_errors_total")
        for sequence, _ in pieces:
            self._cache.rewind(sequence)
        if code == _NO_CELLS and self._reclaim():
            self._is_short = True
            return  # the next step plans again
        if len(pieces) == 1:
            self._fail(pieces[0][0], EngineFailed(code))
            return
        for piece in pieces:
            self._forward([piece])

    def _sample(self, sequences: list[Sequence]) -> None:
        """Takes a token for each sequence; they stand in the order of the output rows."""
        likeliest = self._model.greedy()
        now_ns = self._clock_ns()
        for row, sequence in enumerate(sequences):
            token = likeliest[row]
            if token < 0:
                self._fail(sequence, EngineFailed(BROKEN_LOGITS))
                continue
            if sequence.sampler is not None:
                token = sequence.sampler.sample(row)
            self._take(sequence, token, now_ns)

    def _take(self, sequence: Sequence, token: int, now_ns: int) -> None:
        if sequence.first_token_ns:
            self._meter.observe("itl_seconds", (now_ns - sequence.last_token_ns) / 1e9)
        else:
            self._is_full = False  # its prompt is there for others to share
            self._meter.observe("ttft_seconds", (now_ns - sequence.arrived_ns) / 1e9)
        is_end = self._model.vocab.is_end(token)
        reason = sequence.take(token, is_end=is_end, now_ns=now_ns)
        self._tokens.append(TokenOut(sequence, None if is_end else token, reason))
        if reason:
            self._finish(sequence)

    def _finish(self, sequence: Sequence) -> None:
        self._meter.count("requests_finished_total")
        n = sequence.n_completion
        if n > 1:
            decode_ns = sequence.last_token_ns - sequence.first_token_ns
            self._meter.observe("tpot_seconds", decode_ns / 1e9 / (n - 1))
        self._expected.saw_end(n)
        self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._cache.leave(sequence, keep=True)
        self._is_full = self._is_short = False
        _close(sequence)

    def _fail(self, sequence: Sequence, error: LocalrunError) -> None:
        self._meter.count("requests_failed_total")
        self._failed.append((sequence, error))
        self.running.remove(sequence)
        self._cache.leave(sequence, keep=False)
        self._is_full = False
        _close(sequence)

    # ---- what leaves

    def _emit_step(self) -> None:
        output = StepOutput(
            tuple(self._admitted),
            tuple(self._tokens),
            tuple(self._failed),
            n_running=len(self.running),
            stats=self._stats_if_due(),
            info=self._model.info if self._is_resized else None,
        )
        self._is_resized = False
        self._admitted.clear()
        self._tokens.clear()
        self._failed.clear()
        self._emit(output)

    def _stats_if_due(self) -> RunnerStats | None:
        now_ns = self._clock_ns()
        if now_ns - self._stats_sent_ns < _STATS_INTERVAL_NS and not self.is_idle:
            return None
        self._stats_sent_ns = now_ns
        return self.stats()

    def stats(self) -> RunnerStats:
        """Everything that is counted, as it is now."""
        return self._meter.stats(self.gauges())

    def gauges(self) -> dict[str, float]:
        """What the engine holds now, by the names in `localrun.metrics`."""
        ledger = self._cache.ledger
        return {
            "waiting": len(self._waiting),
            "running": len(self.running),
            "preempted": len(self._preempted),
            "kv_cells": ledger.n_cells,
            "kv_cells_used": ledger.n_used,
            "kv_cells_retained": self._cache.n_retained,
            "kv_cells_free": ledger.n_free,
            "kv_cells_used_max": ledger.n_used_max,
            "host_tier_bytes": self._host.n_bytes,
        }


def _by_arrival(sequence: Sequence) -> int:
    return sequence.arrival


def _by_kv_id(piece: tuple[Sequence, int]) -> int:
    return piece[0].kv_id


def _close(sequence: Sequence) -> None:
    if sequence.sampler is not None:
        sequence.sampler.close()
        sequence.sampler = None
