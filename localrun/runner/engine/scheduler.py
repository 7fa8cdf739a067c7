"""Which sequences run in the next step, and with how many rows. Pure.

Iteration-level batching as in Orca (OSDI 2022): the decision is made anew for every step, so a
finished sequence leaves and a waiting one enters between two forwards. Prompts are evaluated in
chunks beside the decodes, as in Sarathi-Serve (OSDI 2024), so that a long prompt never stops the
streams next to it.

Admission and budget are decided here and nowhere else.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

from localrun.runner.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Budget:
    """Prefill rows of one step: `alone` when nothing decodes, `beside` next to running streams."""

    alone: int
    beside: int


class StepPlan(NamedTuple):
    """One step: who enters, who decodes one row, and which prompts advance by how many rows."""

    admit: tuple[Sequence, ...]
    decode: tuple[Sequence, ...]
    prefill: tuple[tuple[Sequence, int], ...]

    @property
    def is_empty(self) -> bool:
        """True when there is nothing to evaluate."""
        return not self.decode and not self.prefill


def plan_step(
    waiting: Iterable[Sequence], running: Seq[Sequence], n_free_slots: int, budget: Budget
) -> StepPlan:
    """First come, first served: free slots go to the oldest, prefill rows to the oldest prompt.

    `waiting` and `running` are in order of arrival. A prompt that reaches its end this step
    leaves the rest of the budget to the next one.
    """
    admit = tuple(sequence for sequence, _ in zip(waiting, range(n_free_slots), strict=False))
    decode = tuple(sequence for sequence in running if not sequence.is_prefill)
    n_left = budget.beside if decode else budget.alone
    prefill: list[tuple[Sequence, int]] = []
    for sequence in (*running, *admit):
        if n_left == 0:
            break
        n_rows = min(sequence.n_prefill, n_left)
        if n_rows:
            prefill.append((sequence, n_rows))
            n_left -= n_rows
    return StepPlan(admit, decode, tuple(prefill))
