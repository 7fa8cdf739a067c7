"""Which models are in memory: the decisions. Pure: no clock, no process, no queue.

What to do for a request (`decide`):

    the wanted model is …   and …                        then
    ready                   covers the wanted load       Use
    ready                   does not cover it            Evict it (it drains), load again
    loading, stopping       -                            Wait
    absent                  another one is loading       Wait: a plan holds while nothing changes
    absent                  there is room                Start
    absent                  a model is on its way out    Wait
    absent                  no room                      Evict one (it drains)

A model that drains to make room stays after all when another one has become idle meanwhile: that
one is evicted, and Spares the first.

"Room" is the count `max_loaded`. What to do with a model that has been started, has an empty runner
and a plan (`admit`):

    the plan says …   and …                                           then
    now               -                                               Load
    never             -                                               Refuse
    crowded           it was made for others than are here now        Wait, plan again
    crowded           a model on its way out holds what is missing    Wait, plan again
    crowded           a ready model holds what is missing             Evict it (it drains)
    crowded           none does, and it fits                          Load
    crowded           none does, and it does not fit                  Refuse

What is missing is memory of GPUs, a better place for some layers, unless RAM is short: then any.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from localrun.memory import CPU, Plan
from localrun.spec import LoadSpec
from localrun.units import FOREVER

State = Literal["loading", "ready", "stopping"]


@dataclass(frozen=True, slots=True)
class Held:
    """A model in memory as the policy sees it; `last_used_s` is any increasing clock."""

    spec: LoadSpec
    state: State
    n_leases: int = 0
    keep_alive_s: float = 0.0
    last_used_s: float = 0.0
    device_bytes: Mapping[str, int] = field(default_factory=dict)
    is_draining: bool = False  # stopping, only to make room, and answers still run


@dataclass(frozen=True, slots=True)
class Use:
    """Lease the ready runner."""


@dataclass(frozen=True, slots=True)
class Start:
    """Bring the wanted model in now: an empty runner, then plans."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until something else has changed."""


@dataclass(frozen=True, slots=True)
class Evict:
    """Let the model with `key` go: no new leases, unload when the last one ends.

    The draining model `spares`, if one is named, stays instead.
    """

    key: str
    spares: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """Load by the plan."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """There will never be enough memory."""


Decision = Use | Start | Wait | Evict
Admission = Load | Wait | Evict | Refuse


def decide(wanted: LoadSpec, held: Sequence[Held], max_loaded: int) -> Decision:
    """What to do for a request that wants `wanted`; see the first table."""
    same = next((model for model in held if model.spec.key == wanted.key), None)
    if same is not None:
        if same.state != "ready":
            return Wait()
        return Use() if same.spec.covers(wanted) else Evict(same.spec.key)
    if any(model.state == "loading" for model in held):
        return Wait()
    if len(held) < max_loaded:
        return Start()
    return _making_room(held) or Wait()


def admit(plan: Plan, others: Sequence[Held], *, is_current: bool) -> Admission:
    """What to do with a model that has this plan; see the second table.

    `others` are all other models; `is_current` when the plan was made beside just these, and their
    predecessors' memory is back.
    """
    if plan.fit == "now":
        return Load()
    if plan.fit == "never":
        return Refuse()
    if not is_current:
        return Wait()
    holders = [model for model in others if _holds_what_is_missing(model, plan)]
    if decision := _making_room(holders):
        return decision
    return Load() if plan.fits else Refuse()


def _making_room(held: Sequence[Held]) -> Evict | Wait | None:
    """How one of `held` makes room; None when none can."""
    going = [model for model in held if model.state == "stopping"]
    if any(not model.is_draining for model in going):
        return Wait()
    victim = choose_victim(held)
    if not going:
        return Evict(victim.spec.key) if victim else None
    if victim and victim.n_leases == 0:
        return Evict(victim.spec.key, spares=going[0].spec.key)
    return Wait()


def _holds_what_is_missing(model: Held, plan: Plan) -> bool:
    need = plan.needs.get(CPU)
    is_ram_short = need is not None and need.total_bytes > plan.available.get(CPU, 0)
    return any(n and (is_ram_short or name != CPU) for name, n in model.device_bytes.items())


def choose_victim(held: Iterable[Held]) -> Held | None:
    """The ready model that is missed least: idle ones first, those kept for ever last, then LRU.

    A busy one may be chosen: it takes no new leases, so a steady stream of requests for it
    cannot keep another model out for ever.
    """
    ready = [model for model in held if model.state == "ready"]
    return min(
        ready,
        key=lambda model: (
            model.n_leases > 0,
            model.keep_alive_s == FOREVER,
            model.last_used_s,
        ),
        default=None,
    )
