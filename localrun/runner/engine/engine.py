"""The engine: one thread that turns waiting sequences into tokens, a step at a time.

A step is `enter → plan → make way → forward → sample → emit → books`. This thread alone calls the
model. It knows token ids only: templates, text and stop strings live in `runner.text`, which feeds
`inbox` and receives a `StepOutput` of each call that gave tokens, and one of the step's end.

Who stands where is `roster`'s, decisions are `scheduler`'s, cells are `cache`'s; this file carries
out one after the other.
"""

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from localrun.errors import NO_TOKEN, EngineFailed, FormatFailed, LocalrunError
from localrun.ipc.messages import Pace, Share
from localrun.processors import current_cpu, own_cpus
from localrun.runner.engine.cache import KvCache
from localrun.runner.engine.context import Context
from localrun.runner.engine.cost_model import CostModel
from localrun.runner.engine.embedder import Embedder, EmbedJob
from localrun.runner.engine.evaluation import NO_CELLS, Evaluated, Evaluator
from localrun.runner.engine.layout import Shape
from localrun.runner.engine.meter import Meter
from localrun.runner.engine.roster import Roster
from localrun.runner.engine.sampling import SamplerPool, n_helpers
from localrun.runner.engine.scheduler import (
    DYNAMIC_DELAY_S,
    Budget,
    StepPlan,
    plan_decodes,
    plan_step,
)
from localrun.runner.engine.self_test import self_test
from localrun.runner.engine.sequence import Sequence
from localrun.runner.engine.threads import Governor
from localrun.runner.engine.traffic import EngineMessage, Remove, Report, StepOutput, TokenOut
from localrun.runner.measure import process_cpu_s, used_cpu_s
from localrun.runner.model import Model
from localrun.spec import LoadSpec, RunnerStats, Verdict

# A self-test starts after so long without work, and is given up after so many interruptions.
_TEST_AFTER_S, _MAX_TESTS = 1.0, 3


class Engine:
    """Owns the model, and joins those who own its context, its sequences and its vectors."""

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
        self._meter = Meter()
        self._n_ctx = 0  # the largest window among new arrivals
        self._n_tests = 0
        self._context = Context(model, spec, self._costs, self._meter, clock_ns)
        self._roster = Roster(model, self._context, spec.admission, self._meter)
        samplers = SamplerPool(n_helpers(spec.n_threads))
        self._governor = Governor(spec.n_threads, used_cpu_s, process_cpu_s, clock_ns() / 1e9)
        self._evaluator = Evaluator(
            model, self._costs, self._meter, samplers, self._governor, clock_ns
        )
        self._embedder = Embedder(
            model, spec, self._meter, lambda: self._governor.look(clock_ns() / 1e9), clock_ns
        )
        self._report = Report(self.stats, clock_ns)
        self._is_changed = False  # somebody came: another context may be needed
        self._is_resized = False
        self._embeds_at_ns = 0  # beside running sequences, not before
        self._target_s = spec.tpot_target_ms / 1e3 if spec.tpot_target_ms else None

    @property
    def shape(self) -> Shape:
        """The context as it is now."""
        return self._context.shape

    @property
    def _cache(self) -> KvCache:
        return self._context.cache

    @property
    def running(self) -> list[Sequence]:
        """Sequences that have slots, in order of arrival."""
        return self._roster.running

    @property
    def is_idle(self) -> bool:
        """True when there is nothing to do; who is paused comes back by a message."""
        return self._roster.is_idle and self._embedder.is_idle

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
        self._report.admitted += self._roster.let_in(began_ns)
        plan = self._plan()
        for sequence in plan.preempt:
            self._roster.preempt(sequence)
        forward_ns = self._evaluate(plan)
        has_embedded = self._embed()
        if not plan.is_empty:
            self._roster.expected.saw_step(preempted=bool(plan.preempt))
            self._meter.count("steps_total")
            host_ns = self._clock_ns() - began_ns - forward_ns
            self._meter.count("step_host_seconds_total", host_ns / 1e9)
        if changed or has_embedded:
            self._emit_step()
            return True
        if not plan.is_empty and (self._is_resized or self._report.has_news(self._n_busy)):
            self._emit_step()
        return not plan.is_empty

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
                self._roster.pace(message)
            else:
                self._arrive(message)
        return changed

    def _arrive(self, sequence: Sequence) -> None:
        self._n_ctx = max(self._n_ctx, sequence.n_ctx)
        self._is_changed = True
        self._roster.arrive(sequence, self._clock_ns())

    def _remove(self, message: Remove) -> None:
        if message.is_cancel:
            self._meter.count("requests_cancelled_total")
        self._roster.remove(message)
        self._embedder.remove(message.id)

    # ---- the context

    def _fit_context(self) -> None:
        """Live sequences are preempted for another context, and come back in it."""
        if not self._is_changed:
            return
        self._is_changed = False
        n_ctx, self._n_ctx = self._n_ctx, 0
        roster = self._roster
        shape = self._context.wanted(
            n_ctx, needs_split=roster.needs_split, is_empty=not roster.live
        )
        if shape is None:
            return
        for sequence in list(roster.running):
            roster.preempt(sequence)
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

    # ---- the step

    def _plan(self) -> StepPlan:
        n_batch = self._model.n_batch
        n_free = self._cache.n_free_for(n_batch + len(self.running))
        if plan := plan_decodes(self.running, n_free):
            return plan
        beside, ending = self._rows_beside()
        budget = Budget(n_batch, beside, ending)
        plan = plan_step(self.running, budget, n_free, self._cache.own_cells, self._work_lost_s)
        if plan.is_empty and self.running and self._roster.reclaim():
            return self._plan()
        return plan

    def _rows_beside(self) -> tuple[int, int]:
        n_prompts = sum(1 for s in self.running if s.n_pending > 1)
        return self._costs.rows_beside(
            self._target_s,
            limit=self._model.n_batch,
            n_prompts=n_prompts,
            n_streams=len(self.running) - n_prompts,
        )

    def _work_lost_s(self, sequence: Sequence) -> float:
        n_own = self._cache.own_cells(sequence)
        return min(self._costs.swap_s(sequence.n_done), self._costs.recompute_s(n_own))

    def _embed(self) -> bool:
        """A forward for vectors; beside running sequences a short one, and half of the time."""
        began_ns = self._clock_ns()
        if self._embedder.is_idle or (self.running and began_ns < self._embeds_at_ns):
            return False
        needs = self._model.info.needs
        # As long as a prompt's chunk would take beside them.
        budget_s = self._rows_beside()[0] * self._costs.row_s if self.running else None
        has_embedded = self._embedder.step(budget_s)
        self._is_resized = self._is_resized or self._model.info.needs != needs
        now_ns = self._clock_ns()
        self._embeds_at_ns = now_ns + (now_ns - began_ns)
        return has_embedded

    def _evaluate(self, plan: StepPlan) -> int:
        """Carries out the plan; returns the time in forwards, ns."""
        calls = self._evaluator.evaluate(plan, self._cache, merges_rows=self._context.merges_rows)
        failed: list[tuple[Sequence, int]] = []
        at_an_end: list[TokenOut] = []
        forward_ns = 0
        for done in calls:
            forward_ns += done.forward_ns
            failed += done.failed
            if done.tokens:
                at_an_end += self._take(done)
        for out in at_an_end:
            self._settle(out)
        # The books were wrong. Whoever lacked cells is planned again when some were freed.
        can_go_on = any(code == NO_CELLS for _, code in failed) and self._roster.reclaim()
        if can_go_on:
            self._roster.let_nobody_in()
        for sequence, code in failed:
            if code != NO_CELLS or not can_go_on:
                self._report.failed.append((sequence, _error_of(sequence, code)))
                self._roster.fail(sequence)
        return forward_ns

    def _take(self, done: Evaluated) -> list[TokenOut]:
        """Gives each sequence its token, and emits them.

        Not yet those that are the last of their sequences: who reads them may look at the figures
        next, in which they count. They are returned, with those that fill a window.
        """
        now_ns = self._clock_ns()
        at_an_end: list[TokenOut] = []
        for sequence, token in done.tokens:
            if sequence.first_token_ns:
                self._meter.observe("itl_seconds", (now_ns - sequence.last_token_ns) / 1e9)
            else:
                self._meter.observe("ttft_seconds", (now_ns - sequence.arrived_ns) / 1e9)
                # Others may share a prompt that has been computed.
                self._roster.look_again()
            is_end = self._model.vocab.is_end(token)
            reason = sequence.take(token, is_end=is_end, now_ns=now_ns)
            likelihoods = done.likelihoods.get(sequence)
            out = TokenOut(sequence, None if is_end else token, reason, likelihoods)
            if not reason:
                self._report.tokens.append(out)
            if reason or sequence.is_window_full:
                at_an_end.append(out)
        if self._report.tokens:
            self._emit(self._report.take(self._n_busy))
        return at_an_end

    def _settle(self, out: TokenOut) -> None:
        """The sequence is complete, or its window is full."""
        if out.reason:
            self._report.tokens.append(out)
            self._roster.finish(out.sequence)
        else:
            self._cache.shift(out.sequence)
            self._meter.count("window_shifts_total")

    # ---- what leaves

    def _emit_step(self) -> None:
        info = self._model.info if self._is_resized else None
        self._is_resized = False
        vectors = self._embedder.take_answers()
        self._emit(self._report.take(self._n_busy, info, vectors, is_last=self.is_idle))

    @property
    def _n_busy(self) -> int:
        return min(self.shape.n_slots, len(self.running) + self._embedder.n_jobs)

    def stats(self) -> RunnerStats:
        """Everything that is counted, as it is now."""
        return self._meter.stats(self.gauges(), self._cpu)

    @property
    def _cpu(self) -> int | None:
        """See `RunnerStats.cpu`."""
        takes_all = self._governor.n_threads >= len(own_cpus())
        return current_cpu() if takes_all and self._model.facts.is_on_cpu else None

    def gauges(self) -> dict[str, float]:
        """What the engine holds now, by the names in `localrun.metrics`."""
        ledger = self._cache.ledger
        return self._roster.gauges() | {
            "kv_cells": ledger.n_cells,
            "kv_cells_used": ledger.n_used,
            "kv_cells_retained": self._cache.n_retained,
            "kv_cells_free": ledger.n_free,
            "kv_cells_used_max": ledger.n_used_max,
            "host_tier_bytes": self._context.host.n_bytes,
            "threads": self._governor.n_threads,
        }


def _error_of(sequence: Sequence, code: int) -> LocalrunError:
    if code == NO_TOKEN:
        return FormatFailed(sequence.matcher.problem if sequence.matcher else "")
    return EngineFailed(code)
