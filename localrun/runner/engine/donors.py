"""What is kept of sequences that have ended, as long as nobody needs their cells.

A donor goes for good, or to the host tier where bringing it back costs less than computing it
again. Who shares with whom is `cache`'s business.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from localrun.runner.engine.cells import Cells
from localrun.runner.engine.cost_model import CostModel
from localrun.runner.engine.host_tier import HostTier
from localrun.runner.engine.meter import Meter

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


class Donors:
    """Owns the donors of one context. Engine thread only."""

    def __init__(self, cells: Cells, host: HostTier, costs: CostModel, meter: Meter) -> None:
        self._cells = cells
        self._host = host
        self._costs = costs
        self._meter = meter
        self._by_id: dict[int, Donor] = {}
        self._uses = itertools.count(1)

    def __iter__(self) -> Iterator[Donor]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def at(self, kv_id: int) -> Donor | None:
        """The donor under that id, if there is one."""
        return self._by_id.get(kv_id)

    @property
    def n_retained(self) -> int:
        """Cells that only donors hold."""
        return self._cells.ledger.held_only_by(self._by_id)

    # ---- in

    def keep(self, kv_id: int, tokens: list[int], scope: str) -> None:
        """What has ended under `kv_id` becomes a donor; an older one may have to go for it."""
        self._by_id[kv_id] = Donor(kv_id, tokens, scope, next(self._uses))
        if self._cells.ledger.is_unified:
            self._bound()

    def touch(self, donor: Donor) -> None:
        """It has just been used."""
        donor.used_at = next(self._uses)

    # ---- out

    def hand_over(self, donor: Donor) -> None:
        """Somebody goes on in its cells: it is a donor no more, and nothing is freed."""
        del self._by_id[donor.kv_id]

    def make_room(self, n_cells: int) -> bool:
        """Drops the least recently used until so many cells are free; False if they never are."""
        ledger = self._cells.ledger
        while ledger.n_free < n_cells and self._by_id:
            self._drop(self._oldest())
        return ledger.n_free >= n_cells

    def drop_all(self) -> bool:
        """Frees everything that nobody runs on; False when there is nothing."""
        donors = list(self)
        for donor in donors:
            self._drop(donor)
        return bool(donors)

    def save_all(self) -> None:
        """Moves all to the host tier, as far as it holds them."""
        for donor in sorted(self, key=lambda donor: donor.used_at):
            self.evict(donor)

    def evict(self, donor: Donor) -> None:
        """Drops a donor from the cells, and keeps its state if that costs less than it saves."""
        self.keep_state(donor)
        self._drop(donor)

    def keep_state(self, donor: Donor) -> None:
        """Copies it to the host tier, if that costs less than it saves."""
        n = len(donor.tokens)
        pays = self._costs.swap_s(n) * 2 < self._costs.recompute_s(n)
        if pays and self._host.make_room(self._cells.state_bytes(donor.kv_id)):
            self._host.put(donor.tokens, donor.scope, self._cells.save(donor.kv_id))

    def _bound(self) -> None:
        ledger = self._cells.ledger
        limit = int(ledger.n_cells * _IDLE_SHARE)
        while len(self) > 1:
            oldest, n_idle = self._oldest(), self.n_retained
            is_crowded = n_idle > ledger.n_used - n_idle + _IDLE_CELLS
            if n_idle <= limit and not (is_crowded and self._saves_cheaply(oldest)):
                return
            self.evict(oldest)

    def _saves_cheaply(self, donor: Donor) -> bool:
        """Whether it can be brought back at a small part of its price."""
        n = len(donor.tokens)
        is_cheap = self._costs.swap_s(n) * _CHEAP < self._costs.recompute_s(n)
        return is_cheap and self._host.could_hold(self._cells.state_bytes(donor.kv_id))

    def _oldest(self) -> Donor:
        return min(self, key=lambda donor: donor.used_at)

    def _drop(self, donor: Donor) -> None:
        del self._by_id[donor.kv_id]
        self._cells.free(donor.kv_id)
        self._meter.count("donors_dropped_total")
