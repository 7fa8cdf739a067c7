"""The arithmetic of memory that models hold, ask for and give back. Pure; bytes by device name."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from localrun.errors import NotEnoughMemory
from localrun.memory import CPU, Plan
from localrun.spec import LoadSpec, RunnerInfo

# How long a device may take to show memory as free after the process that had it has ended.
# Source: Ollama.
RETURN_LIMIT_S = 5.0

# A device counts as having its memory back with this share of what the model said it held: its
# figures leave out what the driver itself needs and keeps. Source: Ollama.
_RETURNED_SHARE = 0.75


def total(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sum of all `parts`."""
    sums: dict[str, int] = {}
    for part in parts:
        for name, n_bytes in part.items():
            sums[name] = sums.get(name, 0) + n_bytes
    return sums


def planned_info(plan: Plan, spec: LoadSpec) -> RunnerInfo:
    """What a model that is being loaded will hold, if all goes by `plan`."""
    return RunnerInfo(
        plan.n_ctx or spec.n_ctx, spec.n_parallel, n_cells=plan.n_cells, needs=plan.needs
    )


def not_enough(plan: Plan, held: Mapping[str, int]) -> NotEnoughMemory:
    """The error for a model that does not fit even without the `held` bytes of other models."""
    needed = {name: need.total_bytes for name, need in plan.needs.items() if need.total_bytes}
    free = total((plan.available, held))
    return NotEnoughMemory(needed, {name: free.get(name, 0) for name in needed})


@dataclass(frozen=True, slots=True)
class Returning:
    """Memory of models that have ended, which their devices may not show as free yet.

    RAM is none of it: the system has it back before a process is reaped. `before` is what a plan
    found available while the models were still there, None if there was no such plan.
    """

    held: Mapping[str, int]
    before: Mapping[str, int] | None
    until_s: float

    def is_over(self, available: Mapping[str, int], now_s: float) -> bool:
        """True when most of it is `available`, or when it has had its time."""
        if now_s >= self.until_s:
            return True
        before = self.before
        return before is not None and all(
            available.get(name, 0) - before.get(name, 0) >= _RETURNED_SHARE * n_bytes
            for name, n_bytes in self.held.items()
        )


def returning(
    earlier: Returning | None,
    freed: Mapping[str, int],
    before: Mapping[str, int] | None,
    now_s: float,
) -> Returning | None:
    """`earlier` together with what a model that has just ended had `freed`; None for no memory."""
    outside_ram = {name: n_bytes for name, n_bytes in freed.items() if name != CPU and n_bytes}
    if not outside_ram:
        return earlier
    until_s = now_s + RETURN_LIMIT_S
    if earlier is None or now_s >= earlier.until_s:
        return Returning(outside_ram, before, until_s)
    return Returning(total((earlier.held, outside_ram)), earlier.before, until_s)
