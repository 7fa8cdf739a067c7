"""Where each sequence stands, from its arrival to its end: waiting, running, preempted or paused.

Whose turn it is, `scheduler` says, and what cells there are, `cache`; this file moves sequences
from one place to another, and remembers what makes another look worth while. It knows neither
rows nor forwards.
"""

import itertools
from bisect import insort

from localrun.ipc.messages import Pace
from localrun.runner.engine.cache import Holder, KvCache
from localrun.runner.engine.context import Context
from localrun.runner.engine.meter import Meter
from localrun.runner.engine.prefix_index import Match
from localrun.runner.engine.scheduler import Expectation, FairLine, batch_may_start, next_to_enter
from localrun.runner.engine.sequence import Sequence
from localrun.runner.engine.traffic import Remove
from localrun.runner.model import Model
from localrun.spec import Admission

# One in so many cells stays free when sequences are admitted, as vLLM's watermark.
_RESERVE_PART = 100


class Roster:
    """Owns every sequence, with its slot, its cells and its sampler. Engine thread only."""

    def __init__(self, model: Model, context: Context, admission: Admission, meter: Meter) -> None:
        self._model = model
        self._context = context
        self._admission = admission
        self._meter = meter
        self.expected = Expectation()
        self._arrivals = itertools.count()
        self._waiting = FairLine()
        self._preempted: list[Sequence] = []  # in order of arrival
        self.running: list[Sequence] = []  # in order of arrival
        self._paused: list[Sequence] = []  # whose readers are behind; they have no cells
        self._match: Match[Holder] | None = None  # of the sequence that was looked at last
        self._is_full = False  # nobody who waits fits, until somebody leaves
        self._is_short = False  # see `let_nobody_in`

    @property
    def _cache(self) -> KvCache:
        return self._context.cache

    @property
    def is_idle(self) -> bool:
        """True when nobody runs or waits; who is paused comes back by a message."""
        return not (self.running or self._waiting or self._preempted)

    @property
    def live(self) -> tuple[Sequence, ...]:
        """Everybody who has been admitted and has not ended."""
        return (*self.running, *self._preempted, *self._paused)

    @property
    def needs_split(self) -> bool:
        """True while some sequence must not share its cells."""
        return any(s.sampling.deterministic for s in (*self.live, *self._waiting))

    def gauges(self) -> dict[str, float]:
        """How many stand where, by the names in `localrun.metrics`."""
        return {
            "waiting": len(self._waiting),
            "running": len(self.running),
            "preempted": len(self._preempted),
            "paused": len(self._paused),
        }

    # ---- what readers want

    def arrive(self, sequence: Sequence, now_ns: int) -> None:
        """It takes its place among those who wait."""
        sequence.arrival = next(self._arrivals)
        sequence.arrived_ns = now_ns
        n_completion = max(1, min(sequence.n_predict, self.expected.n_completion))
        self._waiting.join(sequence, sequence.n_prompt + n_completion)
        self._is_full = False

    def remove(self, message: Remove) -> None:
        """It is over for its reader, wherever it stands; one that is not here is no error."""
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
        return None

    def pace(self, message: Pace) -> None:
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

    # ---- who enters

    def let_in(self, now_ns: int) -> list[Sequence]:
        """Gives slots to those whose turn it is; returns who has one for the first time."""
        admitted: list[Sequence] = []
        if self._is_short and self.running:
            return admitted
        self._is_short = False
        while len(self.running) < self._context.shape.n_slots:
            if self._preempted:
                # Before anybody new: it came before them, and its reader sees it pause.
                if not self._resume(self._preempted[0]):
                    break
            elif self._is_full or not self._waiting or not self._batch_may_start(now_ns):
                break
            else:
                sequence = next_to_enter(self._waiting, self._must_wait_for_prefix, self._fits)
                if sequence is None:
                    self._is_full = True
                    break
                self._enter(sequence, now_ns)
                admitted.append(sequence)
        return admitted

    def look_again(self) -> None:
        """Who did not fit may do so now: a prompt has been computed that it might share."""
        self._is_full = False

    def let_nobody_in(self) -> None:
        """Until somebody has finished: a forward has found fewer cells than the books say.

        Whoever yielded would come back at once and fill the cells again.
        """
        self._is_short = True

    def _batch_may_start(self, now_ns: int) -> bool:
        if self._admission == "continuous":
            return True
        n_before = sum(1 for s in self.running if s.admitted_ns != now_ns)
        oldest_ns = min(s.arrived_ns for s in (*self._waiting, *self.running))
        return batch_may_start(
            self._admission,
            n_waiting=len(self._waiting) + len(self.running),
            n_running=n_before,
            n_slots=self._context.shape.n_slots,
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
        n_cells = sequence.n_pending + self.expected.growth(sequence)
        # What is shared with a running sequence is there already; what a donor has is there too,
        # but among the cells that count as free.
        if match is not None and not match.is_idle:
            n_cells -= match.n
        return self._has_room(n_cells)

    def _has_room(self, n_cells: int) -> bool:
        if not self.running or not self._cache.ledger.is_unified:
            return True
        promised = sum(s.n_pending + self.expected.growth(s) for s in self.running)
        # Every running sequence takes a cell in the next step, the new one included.
        reserve = max(len(self.running) + 1, self._context.shape.n_cells // _RESERVE_PART)
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
        if not sequence.sampling.is_greedy or sequence.matcher is not None:
            sequence.sampler = self._model.sampler(
                sequence.sampling, sequence.tokens, sequence.matcher
            )
        self._meter.count("prompt_tokens_total", sequence.n_prompt)
        self._meter.count("prefix_hit_tokens_total", sequence.n_cached)
        self._meter.observe("queue_seconds", (now_ns - sequence.arrived_ns) / 1e9)

    def _resume(self, sequence: Sequence) -> bool:
        if not self._has_room(len(sequence.tokens) + self.expected.growth(sequence)):
            return False
        self._preempted.remove(sequence)
        if sequence.saved is not None:
            self._cache.resume(sequence)
        else:
            self._cache.enter(sequence, self._cache.find(sequence))
        insort(self.running, sequence, key=_by_arrival)
        return True

    # ---- who yields

    def preempt(self, sequence: Sequence) -> None:
        """Takes slot and cells of a running sequence; it comes back before anybody new."""
        was_saved = self._yield(sequence)
        insort(self._preempted, sequence, key=_by_arrival)
        self._meter.count("preemptions_swap_total" if was_saved else "preemptions_recompute_total")

    def reclaim(self) -> bool:
        """Frees cells the hard way; False when only one sequence is left."""
        if self._cache.drop_donors():
            return True
        if len(self.running) > 1:
            self.preempt(self.running[-1])
            return True
        return False

    def _yield(self, sequence: Sequence) -> bool:
        """Takes slot and cells; True when its KV was saved."""
        self.running.remove(sequence)
        self._is_full = False
        return self._cache.preempt(sequence)

    # ---- who ends

    def finish(self, sequence: Sequence) -> None:
        """A running sequence is complete; its cells stay for who comes with its prefix."""
        self._meter.count("requests_finished_total")
        n = sequence.n_completion
        if n > 1:
            decode_ns = sequence.last_token_ns - sequence.first_token_ns
            self._meter.observe("tpot_seconds", decode_ns / 1e9 / (n - 1))
        self.expected.saw_end(n)
        self._cache.leave(sequence, keep=True)
        self._is_short = False
        self._end(sequence)

    def fail(self, sequence: Sequence) -> None:
        """A running sequence cannot go on; nothing of it is kept."""
        self._meter.count("requests_failed_total")
        self._cache.leave(sequence, keep=False)
        self._end(sequence)

    def _end(self, sequence: Sequence) -> None:
        """It runs no more, and has no cells any more."""
        self.running.remove(sequence)
        self._is_full = False
        _close(sequence)


def _by_arrival(sequence: Sequence) -> int:
    return sequence.arrival


def _close(sequence: Sequence) -> None:
    sequence.matcher = None
    if sequence.sampler is not None:
        sequence.sampler.close()
        sequence.sampler = None
