"""The KV cache at work: which sequence has which cells, what is kept of those that ended, and how
a new one gets a prefix that somebody else has computed.

The books are `kv.Ledger`, the choice is `prefix_index.longest_match`; this file carries it out on
the model and in the host tier. Ended sequences stay as donors while nobody needs their cells.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from localrun.runner.engine.cost_model import CostModel
from localrun.runner.engine.host_tier import HostTier, Saved
from localrun.runner.engine.kv import Ledger
from localrun.runner.engine.layout import Shape
from localrun.runner.engine.meter import Meter
from localrun.runner.engine.prefix_index import Candidate, Match, common_prefix, longest_match
from localrun.runner.engine.sequence import Sequence
from localrun.runner.model import Model, State

# Prefixes shorter than this are not worth a donor, or waiting for somebody else to compute them.
_MIN_RETAINED = 16
_MIN_AWAITED = 32

# A sequence whose reader left is kept only if it was much work.
_MIN_RETAINED_CANCELLED = 256

# In the split layout a copy moves memory; below this many tokens evaluating them is as fast.
_MIN_COPIED = 64

# Part of a unified pool that idle donors may hold: attention walks over their cells too. Those
# that the host tier can take cheaply leave earlier: beside as many cells of running sequences, and
# a chat's worth, they cost every step more than it takes to bring one of them back.
_IDLE_SHARE = 0.25
_IDLE_CELLS = 1024
_CHEAP = 8


@dataclass(slots=True, eq=False)
class Donor:
    """A sequence that has ended and whose cells are kept under `kv_id` for its prefix."""

    kv_id: int
    tokens: list[int]
    scope: str
    used_at: int


Holder = Sequence | Donor | Saved


class KvCache:
    """Owns the context's cells and ids. Engine thread only."""

    def __init__(
        self,
        model: Model,
        shape: Shape,
        host: HostTier,
        costs: CostModel,
        meter: Meter,
        clock_ns: Callable[[], int],
    ) -> None:
        self._model = model
        self._clock_ns = clock_ns
        self._host = host
        self._meter = meter
        self._costs = costs
        self.ledger = Ledger(
            shape.n_ids, shape.n_cells, shape.n_ctx if shape.layout == "split" else None
        )
        self._free_ids = set(range(shape.n_ids))
        self._donors: dict[int, Donor] = {}
        self._running: dict[int, Sequence] = {}
        self._uses = itertools.count(1)

    # ---- what can be had

    @property
    def n_free(self) -> float:
        """Cells that can be had without hurting a running sequence; infinite in `split`."""
        if not self.ledger.is_unified:
            return float("inf")
        return self.ledger.n_free + self.n_retained

    def n_free_for(self, n_cells: int) -> float:
        """`n_free`, without looking at the donors when `n_cells` are free anyway."""
        return n_cells if self.ledger.n_free >= n_cells else self.n_free

    @property
    def n_retained(self) -> int:
        """Cells that only donors hold."""
        return self.ledger.held_only_by(self._donors)

    def own_cells(self, sequence: Sequence) -> int:
        """Cells that preempting the sequence would free."""
        return self.ledger.own(sequence.kv_id)

    def find(self, sequence: Sequence) -> Match[Holder] | None:
        """Whose prefix the sequence can start from."""
        if sequence.sampling.starts_fresh:
            return None
        candidates = self._candidates(sequence.scope)
        exact = not self._model.facts.shares_prefixes
        match = longest_match(sequence.tokens, candidates, exact=exact)
        if match is None or match.n >= _MIN_COPIED or self._adopts(match):
            return match
        is_shared_in_place = self.ledger.is_unified and not isinstance(match.holder, Saved)
        return match if is_shared_in_place else None

    def find_leader(self, sequence: Sequence, n_cached: int) -> tuple[Sequence | None, int]:
        """Who computes a longer prefix of the sequence right now, and how many tokens of it."""
        leader, n_best = None, n_cached + _MIN_AWAITED - 1
        if sequence.sampling.starts_fresh or not self._model.facts.shares_prefixes:
            return None, 0
        for other in self._running.values():
            if other.n_pending > 1 and other.scope == sequence.scope:
                limit = min(len(sequence.tokens) - 1, len(other.tokens))
                n = common_prefix(sequence.tokens, other.tokens, limit)
                if n > max(n_best, other.n_done):
                    leader, n_best = other, n
        return leader, n_best

    def _candidates(self, scope: str) -> Iterator[Candidate[Holder]]:
        """Everybody in the scope. Among equal ones the first is the cheapest to share with."""
        for donor in self._donors.values():
            if donor.scope == scope:
                yield Candidate(donor.tokens, len(donor.tokens), donor, is_idle=True)
        if self.ledger.is_unified:
            yield from self._running_candidates(scope)
            yield from self._saved_candidates(scope)
        else:
            yield from self._saved_candidates(scope)
            yield from self._running_candidates(scope)

    def _running_candidates(self, scope: str) -> Iterator[Candidate[Holder]]:
        for running in self._running.values():
            if running.scope == scope and running.n_done:
                yield Candidate(running.tokens, running.n_done, running)

    def _saved_candidates(self, scope: str) -> Iterator[Candidate[Holder]]:
        for saved in self._host.unpinned():
            if saved.scope == scope:
                # Restoring makes a copy, so it is like one that nobody else uses.
                yield Candidate(saved.tokens, len(saved.tokens), saved, is_idle=True)

    # ---- in

    def enter(self, sequence: Sequence, match: Match[Holder] | None) -> None:
        """Gives the sequence an id, and the prefix of `match`."""
        if match is None:
            self._enter_remains(sequence)
            return
        holder = match.holder
        self._use(holder)
        if isinstance(holder, Donor) and self._adopts(match):
            self._take_over(sequence, holder, match.n)
            return
        state = self._state_for_copy(holder)
        self._settle(sequence, self._take_id(holder))
        if state is not None:
            was_restored = self._restore(sequence, *state, match.n)
            if not was_restored and isinstance(holder, Saved):
                self._host.drop(holder)  # of another kind of context
        elif not isinstance(holder, Saved):
            self._fork(holder.kv_id, sequence, match.n)

    def _enter_remains(self, sequence: Sequence) -> None:
        """Takes an id, and of the donor that has to go from it what both have in common.

        Where sharing copies this is the one way to share little: most often the beginning that a
        template gives to every prompt.
        """
        kv_id = self._choose_id(None)
        donor = self._donors.get(kv_id)
        if donor is None or donor.scope != sequence.scope or sequence.sampling.starts_fresh:
            self._settle(sequence, self._take_id(None))
            return
        n = common_prefix(sequence.tokens, donor.tokens, len(sequence.tokens) - 1)
        self._keep_state(donor)
        self._take_over(sequence, donor, n)

    def _take_over(self, sequence: Sequence, donor: Donor, n: int) -> None:
        """The sequence goes on in the donor's cells, after the first `n`."""
        del self._donors[donor.kv_id]
        self._settle(sequence, donor.kv_id)
        self._trim(sequence, n)
        sequence.n_done = self.ledger.length(donor.kv_id)

    def resume(self, sequence: Sequence) -> None:
        """Brings back a preempted sequence whose KV was saved; else it has to be recomputed."""
        saved = sequence.saved
        assert saved is not None
        sequence.saved = None
        self._host.drop(saved)
        self._settle(sequence, self._take_id(None))
        self._restore(sequence, saved.data, len(saved.tokens), len(saved.tokens))

    def _adopts(self, match: Match[Holder]) -> bool:
        """Whether to go on in the donor's own cells, which loses what stands behind the prefix.

        A fork leaves the donor whole and costs nothing where cells have owners.
        """
        donor = match.holder
        if not isinstance(donor, Donor):
            return False
        if match.is_whole or self.ledger.is_unified:
            return match.is_whole
        has_other_id = len(self._free_ids) + len(self._donors) > 1
        return match.n * 2 >= len(donor.tokens) or not has_other_id

    def _state_for_copy(self, holder: Holder) -> tuple[State, int] | None:
        """State and token count, where a prefix has to be copied through ordinary memory."""
        if isinstance(holder, Saved):
            return holder.data, len(holder.tokens)
        if self.ledger.is_unified:
            return None
        # Kept, so that whoever forks next needs no other copy.
        n = self.ledger.length(holder.kv_id)
        data = self._save(holder.kv_id)
        self._host.put(holder.tokens[:n], holder.scope, data)
        return data, n

    def _settle(self, sequence: Sequence, kv_id: int) -> None:
        sequence.kv_id = kv_id
        sequence.n_done = 0
        self._running[kv_id] = sequence

    def _fork(self, source: int, sequence: Sequence, n: int) -> None:
        self._model.copy(source, sequence.kv_id, n)
        self.ledger.fork(source, sequence.kv_id, n)
        sequence.n_done = n

    def _restore(self, sequence: Sequence, data: State, n_saved: int, n_wanted: int) -> bool:
        if not self.make_room(n_saved) or n_saved > self.ledger.room(sequence.kv_id):
            return False
        began_ns = self._clock_ns()
        if not self._model.restore(sequence.kv_id, data):
            return False
        self._costs.saw_restore(n_saved, (self._clock_ns() - began_ns) / 1e9)
        self.ledger.grow(sequence.kv_id, n_saved)
        self._trim(sequence, n_wanted)
        sequence.n_done = self.ledger.length(sequence.kv_id)
        return True

    def _trim(self, sequence: Sequence, n: int) -> None:
        """Keeps the first `n` cells, or none where the model cannot cut exactly."""
        if n < self.ledger.length(sequence.kv_id) and not self._model.trim(sequence.kv_id, n):
            n = 0
            self._model.trim(sequence.kv_id, 0)
        self.ledger.trim(sequence.kv_id, n)

    def shift(self, sequence: Sequence) -> None:
        """Makes room in the full window of a sequence; its head keeps its cells."""
        self._trim(sequence, min(sequence.drop_middle(), sequence.n_done))
        sequence.n_done = self.ledger.length(sequence.kv_id)

    def rewind(self, sequence: Sequence) -> None:
        """After a forward that failed: back to what the books say, or to the start."""
        n = sequence.n_done
        self._trim(sequence, n)
        if self._model.n_positions(sequence.kv_id) != n:
            self._model.trim(sequence.kv_id, 0)
            self.ledger.trim(sequence.kv_id, 0)
        sequence.n_done = self.ledger.length(sequence.kv_id)

    # ---- out

    def leave(self, sequence: Sequence, *, keep: bool, min_retained: int = _MIN_RETAINED) -> None:
        """The sequence is over. With `keep` its cells stay for whoever comes with its prefix."""
        kv_id = sequence.kv_id
        del self._running[kv_id]
        sequence.kv_id = -1
        n = self.ledger.length(kv_id)
        if not keep or n < min_retained:
            self._free(kv_id)
            return
        tokens = sequence.tokens[:n]
        self._donors[kv_id] = Donor(kv_id, tokens, sequence.scope, next(self._uses))
        self._bound_idle()

    def cancel(self, sequence: Sequence) -> None:
        """The reader of a running sequence has left."""
        self.leave(sequence, keep=True, min_retained=_MIN_RETAINED_CANCELLED)

    def preempt(self, sequence: Sequence) -> bool:
        """Takes the sequence's cells; True when its KV was saved, False when it is lost.

        Saving pays when it is cheaper than evaluating again what nobody else holds, and when most
        of the state is the sequence's own: a shared prefix is still there when it comes back.
        """
        kv_id = sequence.kv_id
        n, n_own = self.ledger.length(kv_id), self.ledger.own(kv_id)
        del self._running[kv_id]
        is_cheaper = self._costs.swap_s(n) < self._costs.recompute_s(n_own) and n_own * 2 >= n
        if is_cheaper and self._host.make_room(self._model.state_bytes(kv_id)):
            data = self._save(kv_id)
            sequence.saved = self._host.put(sequence.tokens[:n], sequence.scope, data, pin=True)
        self._free(kv_id)
        sequence.kv_id = -1
        sequence.n_done = 0
        return sequence.saved is not None

    def forget(self, sequence: Sequence) -> None:
        """The reader of a preempted sequence has left."""
        if sequence.saved is not None:
            self._host.drop(sequence.saved)
            sequence.saved = None

    # ---- cells

    def make_room(self, n_cells: int) -> bool:
        """Drops donors, least recently used first, until so many cells are free."""
        if not self.ledger.is_unified:
            return True
        while self.ledger.n_free < n_cells and self._donors:
            self._drop(self._oldest_donor())
        return self.ledger.n_free >= n_cells

    def drop_donors(self) -> bool:
        """Frees everything that nobody runs on; False when there is nothing."""
        donors = list(self._donors.values())
        for donor in donors:
            self._drop(donor)
        return bool(donors)

    def save_donors(self) -> None:
        """Moves all donors to the host tier, as far as it holds them."""
        for donor in sorted(self._donors.values(), key=lambda donor: donor.used_at):
            self._evict(donor)

    def wrote(self, sequence: Sequence, n_rows: int) -> bool:
        """`n_rows` more tokens have cells. False when the model counts otherwise."""
        self.ledger.grow(sequence.kv_id, n_rows)
        sequence.n_done += n_rows
        return self._model.n_positions(sequence.kv_id) == sequence.n_done

    def _bound_idle(self) -> None:
        if not self.ledger.is_unified:
            return
        limit = int(self.ledger.n_cells * _IDLE_SHARE)
        while len(self._donors) > 1:
            oldest, n_idle = self._oldest_donor(), self.n_retained
            is_crowded = n_idle > self.ledger.n_used - n_idle + _IDLE_CELLS
            if n_idle <= limit and not (is_crowded and self._saves_cheaply(oldest)):
                return
            self._evict(oldest)

    def _saves_cheaply(self, donor: Donor) -> bool:
        """Whether it can be brought back at a small part of its price."""
        n = len(donor.tokens)
        is_cheap = self._costs.swap_s(n) * _CHEAP < self._costs.recompute_s(n)
        return is_cheap and self._host.could_hold(self._model.state_bytes(donor.kv_id))

    def _oldest_donor(self) -> Donor:
        return min(self._donors.values(), key=lambda donor: donor.used_at)

    def _evict(self, donor: Donor) -> None:
        """Drops a donor from the cells, and keeps its state if that costs less than it saves."""
        self._keep_state(donor)
        self._drop(donor)

    def _keep_state(self, donor: Donor) -> None:
        n = len(donor.tokens)
        pays = self._costs.swap_s(n) * 2 < self._costs.recompute_s(n)
        if pays and self._host.make_room(self._model.state_bytes(donor.kv_id)):
            self._host.put(donor.tokens, donor.scope, self._save(donor.kv_id))

    def _drop(self, donor: Donor) -> None:
        del self._donors[donor.kv_id]
        self._free(donor.kv_id)
        self._meter.count("donors_dropped_total")

    def _free(self, kv_id: int) -> None:
        self._model.trim(kv_id, 0)
        self.ledger.trim(kv_id, 0)
        self._free_ids.add(kv_id)

    def _save(self, kv_id: int) -> State:
        began_ns = self._clock_ns()
        data = self._model.save(kv_id)
        self._costs.saw_save(self.ledger.length(kv_id), (self._clock_ns() - began_ns) / 1e9)
        return data

    def _use(self, holder: Holder) -> None:
        if isinstance(holder, Donor):
            holder.used_at = next(self._uses)
        elif isinstance(holder, Saved):
            self._host.touch(holder)

    # ---- ids

    def _take_id(self, keep: Holder | None) -> int:
        """An id for a sequence that starts empty; donors other than `keep` may have to go."""
        kv_id = self._choose_id(keep)
        donor = self._donors.get(kv_id)
        if donor is not None:
            self._evict(donor)
        self._free_ids.discard(kv_id)
        return kv_id

    def _choose_id(self, keep: Holder | None) -> int:
        idle = [donor for donor in self._donors.values() if donor is not keep]
        if self.ledger.is_unified:
            if self._free_ids:
                return min(self._free_ids)
            return min(idle, key=lambda donor: donor.used_at).kv_id
        ages = dict.fromkeys(self._free_ids, 0) | {donor.kv_id: donor.used_at for donor in idle}
        return densest_id(self._running, ages)


def densest_id(running: Iterable[int], ages: dict[int, int]) -> int:
    """The id among `ages` (id → last use, 0 for empty) that keeps the running ids consecutive.

    One compute graph covers consecutive ids only: a gap makes every step slower (44 against 67 ms
    for 8 sequences). Among equals the one that is longest out of use, then the lowest.
    """
    taken = sorted(running)
    if not taken:
        return min(ages, key=lambda kv_id: (ages[kv_id], kv_id))
    low, high = taken[0], taken[-1]

    def key(kv_id: int) -> tuple[int, int, int]:
        distance = max(0, low - kv_id, kv_id - high)
        return distance, ages[kv_id], kv_id

    return min(ages, key=key)
