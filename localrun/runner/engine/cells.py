"""The cells of one context: the model's and those in the books, which change together.

Everything is by sequence id: this file knows no sequences, nor why one of them comes or goes.
"""

from collections.abc import Callable, Iterable

from localrun.runner.engine.cost_model import CostModel
from localrun.runner.engine.kv import Ledger
from localrun.runner.engine.layout import Shape
from localrun.runner.model import Model, State


class Cells:
    """Owns the ledger and the ids that nobody has. Engine thread only."""

    def __init__(
        self, model: Model, shape: Shape, costs: CostModel, clock_ns: Callable[[], int]
    ) -> None:
        self._model = model
        self._costs = costs
        self._clock_ns = clock_ns
        self.ledger = Ledger(
            shape.n_ids, shape.n_cells, shape.n_ctx if shape.layout == "split" else None
        )
        self.free_ids = set(range(shape.n_ids))

    def free(self, kv_id: int) -> None:
        """Empties the id, which anybody may have from now on."""
        self._model.trim(kv_id, 0)
        self.ledger.trim(kv_id, 0)
        self.free_ids.add(kv_id)

    def fork(self, source: int, target: int, n: int) -> None:
        """The empty `target` shares the first `n` cells of `source`. Unified layout only."""
        self._model.copy(source, target, n)
        self.ledger.fork(source, target, n)

    def trim(self, kv_id: int, n: int) -> int:
        """Keeps the first `n` cells, or none where the model cannot cut exactly; says how many."""
        if n < self.ledger.length(kv_id) and not self._model.trim(kv_id, n):
            n = 0
            self._model.trim(kv_id, 0)
        self.ledger.trim(kv_id, n)
        return self.ledger.length(kv_id)

    def rewind(self, kv_id: int, n: int) -> int:
        """After a forward that failed: `n` cells as before, or none; says how many."""
        self.trim(kv_id, n)
        if self._model.n_positions(kv_id) != n:
            self._model.trim(kv_id, 0)
            self.ledger.trim(kv_id, 0)
        return self.ledger.length(kv_id)

    def wrote(self, kv_id: int, n_rows: int) -> None:
        """A forward has given cells to `n_rows` more tokens."""
        self.ledger.grow(kv_id, n_rows)

    def n_positions(self, kv_id: int) -> int:
        """How many cells the id has by the model's own count."""
        return self._model.n_positions(kv_id)

    def state_bytes(self, kv_id: int) -> int:
        """What `save` would return, in bytes."""
        return self._model.state_bytes(kv_id)

    def save(self, kv_id: int) -> State:
        """A copy of what the id holds, for ordinary memory."""
        began_ns = self._clock_ns()
        data = self._model.save(kv_id)
        self._costs.saw_save(self.ledger.length(kv_id), (self._clock_ns() - began_ns) / 1e9)
        return data

    def restore(self, kv_id: int, data: State, n_saved: int) -> bool:
        """Puts a state of `n_saved` tokens under an empty id.

        False without room for them, and when it is of another kind of context.
        """
        if n_saved > self.ledger.room(kv_id):
            return False
        began_ns = self._clock_ns()
        if not self._model.restore(kv_id, data):
            return False
        self._costs.saw_restore(n_saved, (self._clock_ns() - began_ns) / 1e9)
        self.ledger.grow(kv_id, n_saved)
        return True


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
