"""The KV cache at work: which sequence has which cells, and how a new one gets a prefix that
somebody else has computed.

What is kept of ended sequences is `donors`', the choice among prefixes `prefix_index`'s; this file
gives sequences their ids, and joins cells, donors and host tier.
"""

from collections.abc import Callable, Iterator

from localrun.runner.engine.cells import Cells, densest_id
from localrun.runner.engine.cost_model import CostModel
from localrun.runner.engine.donors import Donor, Donors
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

# How often a sequence that decodes is compared with the model's count; each time takes 2 to 13 µs.
_COMPARED_EVERY = 16

Holder = Sequence | Donor | Saved


class KvCache:
    """Owns which sequence runs under which id of the context. Engine thread only."""

    def __init__(
        self,
        model: Model,
        shape: Shape,
        host: HostTier,
        costs: CostModel,
        meter: Meter,
        clock_ns: Callable[[], int],
    ) -> None:
        self._shares_prefixes = model.facts.shares_prefixes
        self._host = host
        self._costs = costs
        self._cells = Cells(model, shape, costs, clock_ns)
        self._donors = Donors(self._cells, host, costs, meter)
        self._running: dict[int, Sequence] = {}

    # ---- what can be had

    @property
    def ledger(self) -> Ledger:
        """The books of the cells."""
        return self._cells.ledger

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
        return self._donors.n_retained

    def own_cells(self, sequence: Sequence) -> int:
        """Cells that preempting the sequence would free."""
        return self.ledger.own(sequence.kv_id)

    def find(self, sequence: Sequence) -> Match[Holder] | None:
        """Whose prefix the sequence can start from."""
        if sequence.sampling.starts_fresh:
            return None
        candidates = self._candidates(sequence.scope)
        match = longest_match(sequence.tokens, candidates, exact=not self._shares_prefixes)
        if match is None or match.n >= _MIN_COPIED or self._adopts(match):
            return match
        is_shared_in_place = self.ledger.is_unified and not isinstance(match.holder, Saved)
        return match if is_shared_in_place else None

    def find_leader(self, sequence: Sequence, n_cached: int) -> tuple[Sequence | None, int]:
        """Who computes a longer prefix of the sequence right now, and how many tokens of it."""
        leader, n_best = None, n_cached + _MIN_AWAITED - 1
        if sequence.sampling.starts_fresh or not self._shares_prefixes:
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
        for donor in self._donors:
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
            self._cells.fork(holder.kv_id, sequence.kv_id, match.n)
            sequence.n_done = match.n

    def _enter_remains(self, sequence: Sequence) -> None:
        """Takes an id, and of the donor that has to go from it what both have in common.

        Where sharing copies this is the one way to share little: most often the beginning that a
        template gives to every prompt.
        """
        kv_id = self._choose_id(None)
        donor = self._donors.at(kv_id)
        if donor is None or donor.scope != sequence.scope or sequence.sampling.starts_fresh:
            self._settle(sequence, self._take_id(None))
            return
        n = common_prefix(sequence.tokens, donor.tokens, len(sequence.tokens) - 1)
        self._donors.keep_state(donor)
        self._take_over(sequence, donor, n)

    def _take_over(self, sequence: Sequence, donor: Donor, n: int) -> None:
        """The sequence goes on in the donor's cells, after the first `n`."""
        self._donors.hand_over(donor)
        self._settle(sequence, donor.kv_id)
        sequence.n_done = self._cells.trim(donor.kv_id, n)

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
        has_other_id = len(self._cells.free_ids) + len(self._donors) > 1
        return match.n * 2 >= len(donor.tokens) or not has_other_id

    def _state_for_copy(self, holder: Holder) -> tuple[State, int] | None:
        """State and token count, where a prefix has to be copied through ordinary memory."""
        if isinstance(holder, Saved):
            return holder.data, len(holder.tokens)
        if self.ledger.is_unified:
            return None
        # Kept, so that whoever forks next needs no other copy.
        n = self.ledger.length(holder.kv_id)
        data = self._cells.save(holder.kv_id)
        self._host.put(holder.tokens[:n], holder.scope, data)
        return data, n

    def _settle(self, sequence: Sequence, kv_id: int) -> None:
        sequence.kv_id = kv_id
        sequence.n_done = 0
        self._running[kv_id] = sequence

    def _restore(self, sequence: Sequence, data: State, n_saved: int, n_wanted: int) -> bool:
        kv_id = sequence.kv_id
        if not self.make_room(n_saved) or not self._cells.restore(kv_id, data, n_saved):
            return False
        sequence.n_done = self._cells.trim(kv_id, n_wanted)
        return True

    # ---- while it runs

    def shift(self, sequence: Sequence) -> None:
        """Makes room in the full window of a sequence; its head keeps its cells."""
        n = min(sequence.drop_middle(), sequence.n_done)
        sequence.n_done = self._cells.trim(sequence.kv_id, n)

    def rewind(self, sequence: Sequence) -> None:
        """After a forward that failed: back to what the books say, or to the start."""
        sequence.n_done = self._cells.rewind(sequence.kv_id, sequence.n_done)

    def wrote(self, sequence: Sequence, n_rows: int) -> bool:
        """`n_rows` more tokens have cells. False when the model is seen to count otherwise."""
        self._cells.wrote(sequence.kv_id, n_rows)
        sequence.n_done += n_rows
        if n_rows == 1 and sequence.n_done % _COMPARED_EVERY:
            return True
        return self._cells.n_positions(sequence.kv_id) == sequence.n_done

    # ---- out

    def leave(self, sequence: Sequence, *, keep: bool, min_retained: int = _MIN_RETAINED) -> None:
        """The sequence is over. With `keep` its cells stay for whoever comes with its prefix."""
        kv_id = sequence.kv_id
        del self._running[kv_id]
        sequence.kv_id = -1
        n = self.ledger.length(kv_id)
        if keep and n >= min_retained:
            self._donors.keep(kv_id, sequence.tokens[:n], sequence.scope)
        else:
            self._cells.free(kv_id)

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
        if is_cheaper and self._host.make_room(self._cells.state_bytes(kv_id)):
            data = self._cells.save(kv_id)
            sequence.saved = self._host.put(sequence.tokens[:n], sequence.scope, data, pin=True)
        self._cells.free(kv_id)
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
        return not self.ledger.is_unified or self._donors.make_room(n_cells)

    def drop_donors(self) -> bool:
        """Frees everything that nobody runs on; False when there is nothing."""
        return self._donors.drop_all()

    def save_donors(self) -> None:
        """Moves all donors to the host tier, as far as it holds them."""
        self._donors.save_all()

    def _use(self, holder: Holder) -> None:
        if isinstance(holder, Donor):
            self._donors.touch(holder)
        elif isinstance(holder, Saved):
            self._host.touch(holder)

    # ---- ids

    def _take_id(self, keep: Holder | None) -> int:
        """An id for a sequence that starts empty; donors other than `keep` may have to go."""
        kv_id = self._choose_id(keep)
        donor = self._donors.at(kv_id)
        if donor is not None:
            self._donors.evict(donor)
        self._cells.free_ids.discard(kv_id)
        return kv_id

    def _choose_id(self, keep: Holder | None) -> int:
        idle = [donor for donor in self._donors if donor is not keep]
        free_ids = self._cells.free_ids
        if self.ledger.is_unified:
            if free_ids:
                return min(free_ids)
            return min(idle, key=lambda donor: donor.used_at).kv_id
        ages = dict.fromkeys(free_ids, 0) | {donor.kv_id: donor.used_at for donor in idle}
        return densest_id(self._running, ages)
