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
from queue import Empty, SimpleQueue

from localrun.errors import NO_TOKEN, EngineFailed, FormatFailed, LocalrunError
from localrun.ipc.messages import Pace, Share
from localrun.runner.engine.cache import Holder, KvCache
from localrun.runner.engine.context import Context
from localrun.runner.engine.cost_model import CostModel
from localrun.runner.engine.embedder import Embedder, EmbedJob
from localrun.runner.engine.evaluation import NO_CELLS, Evaluator
from localrun.runner.engine.layout import Shape
from localrun.runner.engine.meter import Meter
from localrun.runner.engine.prefix_index import Match
from localrun.runner.engine.sampling import SamplerPool, n_helpers
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
from localrun.runner.engine.self_test import self_test
from localrun.runner.engine.sequence import Sequence
from localrun.runner.engine.threads import Governor
from localrun.runner.engine.traffic import EngineMessage, Remove, Report, StepOutput, TokenOut
from localrun.runner.measure import process_cpu_s, used_cpu_s
from localrun.runner.model import Likelihoods, Model
from localrun.spec import LoadSpec, RunnerStats, Verdict

# One in so many cells stays free when sequences are admitted, as vLLM's watermark.
_RESERVE_PART = 100

# A self-test starts after so long without work, and is given up after so many interruptions.
_TEST_AFTER_S, _MAX_TESTS = 1.0, 3


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
        self.inbox: SimpleQueue[EngineMessage] = SimpleQueue()
        self._model = model
        self._spec = spec
        self._emit = emit
        self._clock_ns = clock_ns
        self._costs = CostModel()
        self._expected = Expectation()
        self._meter = Meter()
        self._arrivals = itertools.count()
        self._waiting = FairLine()
        self._preempted: list[Sequence] = []  # in order of arrival
        self.running: list[Sequence] = []  # in order of arrival
        self._paused: list[Sequence] = []  # whose readers are behind; they have no cells
        self._n_ctx = 0  # the largest window among new arrivals
        self._n_tests = 0
        self._context = Context(model, spec, self._costs, self._meter, clock_ns)
        samplers = SamplerPool(n_helpers(spec.n_threads))
        self._governor = Governor(spec.n_threads, used_cpu_s, process_cpu_s, clock_ns() / 1e9)
        self._evaluator = Evaluator(
            model, self._costs, self._meter, samplers, self._governor, clock_ns
        )
        self._embedder = Embedder(
            model, spec, self._meter, lambda: self._governor.look(clock_ns() / 1e9), clock_ns
        )
        self._report = Report(self._meter, self.gauges, clock_ns)
        self._match: Match[Holder] | None = None  # of the sequence that was looked at last
        self._is_full = False  # nobody who waits fits, until somebody leaves
        self._is_short = False  # a forward found fewer cells than the books say; nobody comes in
        self._is_changed = False  # somebody came: another context may be needed
        self._is_resized = False
        self._target_s = spec.tpot_target_ms / 1e3 if spec.tpot_target_ms else None

    @property
    def shape(self) -> Shape:
        """The context as it is now."""
        return self._context.shape

    @property
    def _cache(self) -> KvCache:
        return self._context.cache

    @property
    def is_idle(self) -> bool:
        """True when nobody runs or waits; who is paused comes back by a message."""
        return not (self.running or self._waiting or self._preempted) and self._embedder.is_idle

    def run(self) -> None:
        """Steps for ever; sleeps in the inbox while there is nothing to do."""
        while True:
            if self._is_test_due:
                self._drain_inbox(block=True, timeout_s=_TEST_AFTER_S)
                if self.is_idle:
                    self.test_itself()
            if not self.step(block=self.is_idle):
                # Nothing may start before a batch is full: until its delay is over, or a message.
                self._drain_inbox(block=True, timeout_s=DYNAMIC_DELAY_S / 5)

    def step(self, *, block: bool = False) -> bool:
        """One round of decisions and what follows from them; False when nothing could be done.

        `block` waits for a message first.
        """
        changed = self._drain_inbox(block=block)
        began_ns = self._clock_ns()
        self._fit_context()
        self._let_in(began_ns)
        plan = self._plan()
        for sequence in plan.preempt:
            self._preempt(sequence)
        forward_ns = self._evaluate(plan)
        has_embedded = self._embed()
        if not plan.is_empty:
            self._expected.saw_step(preempted=bool(plan.preempt))
            self._meter.count("steps_total")
            host_ns = self._clock_ns() - began_ns - forward_ns
            self._meter.count("step_host_seconds_total", host_ns / 1e9)
        if changed or not plan.is_empty or self._report.failed or has_embedded:
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
            block = False
            if isinstance(message, Share):
                self._governor.share(message.n_active, message.siblings)
                continue
            changed = True
            if isinstance(message, Remove):
                self._remove(message)
            elif isinstance(message, EmbedJob):
                self._embedder.add(message)
            elif isinstance(message, Pace):
                self._pace(message)
            else:
                self._arrive(message)
        return changed

    def _arrive(self, sequence: Sequence) -> None:
        sequence.arrival = next(self._arrivals)
        sequence.arrived_ns = self._clock_ns()
        self._n_ctx = max(self._n_ctx, sequence.n_ctx)
        self._is_changed = True
        n_completion = max(1, min(sequence.n_predict, self._expected.n_completion))
        self._waiting.join(sequence, sequence.n_prompt + n_completion)
        self._is_full = False

    def _remove(self, message: Remove) -> None:
        if message.is_cancel:
            self._meter.count("requests_cancelled_total")
        for sequence in self.running:
            if sequence.id == message.id:
                if message.is_cancel:
                    self._cache.cancel(sequence)
                else:
                    self._cache.leave(sequence, keep=True)
                return self._end(sequence)
        for line in (self._preempted, self._paused):
            for sequence in line:
                if sequence.id == message.id:
                    line.remove(sequence)
                    self._cache.forget(sequence)
                    return _close(sequence)
        waiting = self._waiting.find(message.id)
        if waiting is not None:
            self._waiting.leave(waiting)
        self._embedder.remove(message.id)
        return None

    def _pace(self, message: Pace) -> None:
        """A paused sequence yields like a preempted one, and comes back like one."""
        if not message.is_paused:
            for sequence in self._paused:
                if sequence.id == message.id:
                    self._paused.remove(sequence)
                    insort(self._preempted, sequence, key=_by_arrival)
                    return
            return
        for sequence in (*self.running, *self._preempted):
            # A deterministic text must not depend on how fast somebody reads it.
            if sequence.id == message.id and not sequence.sampling.deterministic:
                if sequence.kv_id >= 0:
                    self._yield(sequence)
                else:
                    self._preempted.remove(sequence)
                self._paused.append(sequence)
                self._meter.count("pauses_total")
                return

    # ---- the context

    def _fit_context(self) -> None:
        """Live sequences are preempted for another context, and come back in it."""
        if not self._is_changed:
            return
        self._is_changed = False
        live = (*self.running, *self._preempted, *self._paused)
        needs_split = any(s.sampling.deterministic for s in (*live, *self._waiting))
        n_ctx, self._n_ctx = self._n_ctx, 0
        shape = self._context.wanted(n_ctx, needs_split=needs_split, is_empty=not live)
        if shape is None:
            return
        for sequence in list(self.running):
            self._preempt(sequence)
        self._context.replace(shape)
        self._is_resized = True

    @property
    def _is_test_due(self) -> bool:
        return (
            self._n_tests < _MAX_TESTS
            and self._spec.verdict is None
            and self._spec.engine != "fake"  # its clock is a script
            and self.is_idle
            and self._meter.counts["requests_finished_total"] > 0
            and len(self._context.alternatives()) > 1
        )

    def test_itself(self) -> None:
        """Measures what is fastest here, unless somebody comes; then another time."""
        self._n_tests += 1
        self._cache.save_donors()
        verdict: Verdict | None = None
        combinations = self._context.alternatives()
        for found in self_test(self._model, combinations, self._spec.n_parallel):
            verdict = found
            if not self.inbox.empty():
                break
        self._context.reopen(self.shape)
        if verdict is not None:
            self._n_tests = _MAX_TESTS
            self._emit(StepOutput((), (), (), n_running=0, verdict=verdict))

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
        sequence.cap(self._context.window)
        if sequence.sampling.starts_fresh and not self.running and self._cache.ledger.is_unified:
            # In a pool the place of its cells moves the last bits too: alone, it has the first.
            self._cache.save_donors()
        self._cache.enter(sequence, self._match)
        sequence.n_cached = sequence.n_done
        sequence.admitted_ns = now_ns
        insort(self.running, sequence, key=_by_arrival)
        self._report.admitted.append(sequence)
        if not sequence.sampling.is_greedy or sequence.matcher is not None:
            sequence.sampler = self._model.sampler(
                sequence.sampling, sequence.tokens, sequence.matcher
            )
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
        was_saved = self._yield(sequence)
        insort(self._preempted, sequence, key=_by_arrival)
        self._meter.count("preemptions_swap_total" if was_saved else "preemptions_recompute_total")

    def _yield(self, sequence: Sequence) -> bool:
        """Takes slot and cells; True when its KV was saved."""
        self.running.remove(sequence)
        self._is_full = False
        return self._cache.preempt(sequence)

    def _work_lost_s(self, sequence: Sequence) -> float:
        n_own = self._cache.own_cells(sequence)
        return min(self._costs.swap_s(sequence.n_done), self._costs.recompute_s(n_own))

    # ---- the step

    def _plan(self) -> StepPlan:
        n_batch = self._model.n_batch
        budget = Budget(alone=n_batch, beside=self._rows_beside())
        n_free = self._cache.n_free_for(n_batch + len(self.running))
        plan = plan_step(self.running, budget, n_free, self._cache.own_cells, self._work_lost_s)
        if plan.is_empty and self.running and self._reclaim():
            return self._plan()
        return plan

    def _rows_beside(self) -> int:
        n_prompts = sum(1 for s in self.running if s.n_pending > 1)
        return self._costs.rows_beside(
            self._target_s,
            limit=self._model.n_batch,
            n_prompts=n_prompts,
            n_streams=len(self.running) - n_prompts,
        )

    def _embed(self) -> bool:
        """A forward for vectors, a short one beside running sequences."""
        if self._embedder.is_idle:
            return False
        needs = self._model.info.needs
        # As long as a prompt's chunk would take beside them.
        budget_s = self._rows_beside() * self._costs.row_s if self.running else None
        has_embedded = self._embedder.step(budget_s)
        self._is_resized = self._is_resized or self._model.info.needs != needs
        return has_embedded

    def _reclaim(self) -> bool:
        """Frees cells the hard way; False when only one sequence is left."""
        if self._cache.drop_donors():
            return True
        if len(self.running) > 1:
            self._preempt(self.running[-1])
            return True
        return False

    def _evaluate(self, plan: StepPlan) -> int:
        """Carries out the plan; returns the time in forwards, ns."""
        done = self._evaluator.evaluate(plan, self._cache, merges_rows=self._context.merges_rows)
        now_ns = self._clock_ns()
        for sequence, token in done.tokens:
            self._take(sequence, token, now_ns, done.likelihoods.get(sequence))
        # The books were wrong. Whoever lacked cells is planned again when some were freed.
        can_go_on = any(code == NO_CELLS for _, code in done.failed) and self._reclaim()
        self._is_short = self._is_short or can_go_on
        for sequence, code in done.failed:
            if code != NO_CELLS or not can_go_on:
                self._fail(sequence, _error_of(sequence, code))
        return done.forward_ns

    def _take(
        self, sequence: Sequence, token: int, now_ns: int, likelihoods: Likelihoods | None
    ) -> None:
        if sequence.first_token_ns:
            self._meter.observe("itl_seconds", (now_ns - sequence.last_token_ns) / 1e9)
        else:
            self._is_full = False  # its prompt is there for others to share
            self._meter.observe("ttft_seconds", (now_ns - sequence.arrived_ns) / 1e9)
        is_end = self._model.vocab.is_end(token)
        reason = sequence.take(token, is_end=is_end, now_ns=now_ns)
        out = TokenOut(sequence, None if is_end else token, reason, likelihoods)
        self._report.tokens.append(out)
        if reason:
            self._finish(sequence)
        elif sequence.is_window_full:
            self._cache.shift(sequence)
            self._meter.count("window_shifts_total")

    def _finish(self, sequence: Sequence) -> None:
        self._meter.count("requests_finished_total")
        n = sequence.n_completion
        if n > 1:
            decode_ns = sequence.last_token_ns - sequence.first_token_ns
            self._meter.observe("tpot_seconds", decode_ns / 1e9 / (n - 1))
        self._expected.saw_end(n)
        self._cache.leave(sequence, keep=True)
        self._is_short = False
        self._end(sequence)

    def _fail(self, sequence: Sequence, error: LocalrunError) -> None:
        self._meter.count("requests_failed_total")
        self._report.failed.append((sequence, error))
        self._cache.leave(sequence, keep=False)
        self._end(sequence)

    def _end(self, sequence: Sequence) -> None:
        """It runs no more, and has no cells any more."""
        self.running.remove(sequence)
        self._is_full = False
        _close(sequence)

    # ---- what leaves

    def _emit_step(self) -> None:
        info = self._model.info if self._is_resized else None
        self._is_resized = False
        vectors = self._embedder.take_answers()
        n_running = min(self.shape.n_slots, len(self.running) + self._embedder.n_jobs)
        self._emit(self._report.take(n_running, info, vectors, is_last=self.is_idle))

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
            "paused": len(self._paused),
            "kv_cells": ledger.n_cells,
            "kv_cells_used": ledger.n_used,
            "kv_cells_retained": self._cache.n_retained,
            "kv_cells_free": ledger.n_free,
            "kv_cells_used_max": ledger.n_used_max,
            "host_tier_bytes": self._context.host.n_bytes,
            "threads": self._governor.n_threads,
        }


def _by_arrival(sequence: Sequence) -> int:
    return sequence.arrival


def _error_of(sequence: Sequence, code: int) -> LocalrunError:
    if code == NO_TOKEN:
        return FormatFailed(sequence.matcher.problem if sequence.matcher else "")
    return EngineFailed(code)


def _close(sequence: Sequence) -> None:
    sequence.matcher = None
    if sequence.sampler is not None:
        sequence.sampler.close()
        sequence.sampler = None
