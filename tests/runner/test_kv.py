"""The ledger: every cell is somebody's or free, counted once, whoever shares it."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from localrun.runner.engine.kv import Ledger

N_IDS, N_CELLS = 5, 60


def ledger_with(*lengths: int, n_cells: int = N_CELLS, window: int | None = None) -> Ledger:
    ledger = Ledger(N_IDS, n_cells, window)
    for seq_id, n in enumerate(lengths):
        ledger.grow(seq_id, n)
    return ledger


def test_an_empty_ledger() -> None:
    ledger = ledger_with()
    assert (ledger.n_used, ledger.n_free, ledger.n_used_max) == (0, N_CELLS, 0)
    assert (ledger.length(0), ledger.own(0), ledger.room(0)) == (0, 0, N_CELLS)
    assert ledger.held_only_by(range(N_IDS)) == 0


def test_a_fork_uses_no_cells() -> None:
    ledger = ledger_with(20)
    ledger.fork(0, 1, 15)
    ledger.grow(1, 4)
    assert ledger.n_used == 24
    assert (ledger.length(0), ledger.own(0)) == (20, 5)
    assert (ledger.length(1), ledger.own(1)) == (19, 4)


def test_a_shared_cell_is_free_when_its_last_owner_leaves() -> None:
    ledger = ledger_with(20)
    ledger.fork(0, 1, 15)
    ledger.trim(0, 0)
    assert (ledger.n_used, ledger.own(1)) == (15, 15)
    ledger.trim(1, 0)
    assert (ledger.n_used, ledger.n_used_max) == (0, 20)


def test_a_fork_of_a_fork_cuts_for_all_who_share() -> None:
    ledger = ledger_with(20)
    for target, n in [(1, 20), (2, 12), (3, 7)]:
        ledger.fork(target - 1, target, n)
    assert ledger.n_used == 20
    assert [ledger.own(seq_id) for seq_id in range(4)] == [0, 0, 0, 0]
    ledger.trim(1, 9)
    assert ledger.own(0) == 8  # cells 12 to 19; 9 to 11 are also the third one's
    assert ledger.held_only_by([0, 1]) == 8
    assert ledger.held_only_by([0, 1, 2]) == 13
    assert ledger.held_only_by([0, 1, 2, 3]) == 20


@pytest.mark.parametrize(("n", "length"), [(99, 20), (20, 20), (19, 19), (0, 0)])
def test_trim_keeps_what_stands_in_front(n: int, length: int) -> None:
    ledger = ledger_with(20)
    ledger.trim(0, n)
    assert (ledger.length(0), ledger.n_used) == (length, length)


def test_a_pool_takes_its_last_cell_and_no_more() -> None:
    ledger = ledger_with(30, 29)
    ledger.grow(2, 1)
    assert ledger.n_free == 0
    with pytest.raises(ValueError, match="room for 0"):
        ledger.grow(0, 1)
    ledger.trim(1, 28)
    ledger.grow(0, 1)


def test_a_window_of_its_own_bounds_a_sequence() -> None:
    ledger = ledger_with(10, 3, window=12)
    assert (ledger.room(0), ledger.room(1), ledger.room(2)) == (2, 9, 12)
    with pytest.raises(ValueError, match="room for 2"):
        ledger.grow(0, 3)
    with pytest.raises(ValueError, match="cannot share"):
        ledger.fork(0, 2, 5)


@pytest.mark.parametrize(("source", "target", "n"), [(0, 1, 5), (0, 2, 21), (3, 2, 1)])
def test_only_what_is_there_is_shared_and_only_with_an_empty_sequence(
    source: int, target: int, n: int
) -> None:
    with pytest.raises(ValueError, match="cannot share"):
        ledger_with(20, 1).fork(source, target, n)


IDS = st.integers(0, N_IDS - 1)


class LedgerBesideCells(RuleBasedStateMachine):
    """The same done to a list of cells for each sequence, where a cell is an object of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(N_IDS, N_CELLS)
        self.cells: list[list[object]] = [[] for _ in range(N_IDS)]
        self.n_used_max = 0

    def used(self) -> set[object]:
        return {cell for cells in self.cells for cell in cells}

    @rule(seq_id=IDS, n=st.integers(0, 25))
    def grow(self, seq_id: int, n: int) -> None:
        if len(self.used()) + n > N_CELLS:
            with pytest.raises(ValueError, match="room"):
                self.ledger.grow(seq_id, n)
            return
        self.ledger.grow(seq_id, n)
        self.cells[seq_id] += [object() for _ in range(n)]
        self.n_used_max = max(self.n_used_max, len(self.used()))

    @precondition(lambda self: any(self.cells))
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        full = [seq_id for seq_id in range(N_IDS) if self.cells[seq_id]]
        source = data.draw(st.sampled_from(full), "source")
        target = data.draw(IDS, "target")
        n = data.draw(st.integers(1, len(self.cells[source])), "n")
        if self.cells[target]:
            with pytest.raises(ValueError, match="cannot share"):
                self.ledger.fork(source, target, n)
            return
        self.ledger.fork(source, target, n)
        self.cells[target] = self.cells[source][:n]

    @rule(seq_id=IDS, n=st.just(0) | st.integers(0, 40))
    def trim(self, seq_id: int, n: int) -> None:
        self.ledger.trim(seq_id, n)
        del self.cells[seq_id][n:]

    @rule(seq_ids=st.sets(IDS))
    def ask_what_some_hold(self, seq_ids: set[int]) -> None:
        of_others = {c for i in range(N_IDS) if i not in seq_ids for c in self.cells[i]}
        assert self.ledger.held_only_by(seq_ids) == len(self.used() - of_others)

    @invariant()
    def counts_agree(self) -> None:
        ledger = self.ledger
        assert ledger.n_used == len(self.used())
        assert ledger.n_used + ledger.n_free == N_CELLS
        assert ledger.n_used_max == self.n_used_max
        for seq_id, cells in enumerate(self.cells):
            assert ledger.length(seq_id) == len(cells)
            assert ledger.room(seq_id) == ledger.n_free
            others = {c for i, theirs in enumerate(self.cells) if i != seq_id for c in theirs}
            assert ledger.own(seq_id) == len(set(cells) - others)


LedgerBesideCells.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
TestLedgerBesideCells = LedgerBesideCells.TestCase
