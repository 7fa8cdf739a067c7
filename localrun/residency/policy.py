"""Which models are in memory: the decision. Pure: no clock, no process, no queue.

    the wanted model is …            and …                       then
    ready                            covers the wanted load      Use
    ready                            does not cover it           Evict it (it drains), load again
    loading                          -                           Wait
    stopping                         -                           Wait
    absent                           there is room               Start
    absent                           a model is on its way out   Wait
    absent                           no room                     Evict one (it drains)

"Room" is the count `max_loaded`; sizes in bytes are not looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from localrun.core import LoadSpec
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


@dataclass(frozen=True, slots=True)
class Use:
    """Lease the ready runner."""


@dataclass(frozen=True, slots=True)
class Start:
    """Load the wanted model now."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do for this request until something else has ended."""


@dataclass(frozen=True, slots=True)
class Evict:
    """Let the model with `key` go: no new leases, unload when the last one ends."""

    key: str


Decision = Use | Start | Wait | Evict


def decide(wanted: LoadSpec, held: Sequence[Held], max_loaded: int) -> Decision:
    """What to do for a request that wants `wanted`; see the table above."""
    same = next((model for model in held if model.spec.key == wanted.key), None)
    if same is not None:
        if same.state != "ready":
            return Wait()
        return Use() if same.spec.covers(wanted) else Evict(same.spec.key)
    if len(held) < max_loaded:
        return Start()
    if any(model.state == "stopping" for model in held):
        return Wait()
    victim = choose_victim(held)
    return Evict(victim.spec.key) if victim else Wait()


def choose_victim(held: Sequence[Held]) -> Held | None:
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
