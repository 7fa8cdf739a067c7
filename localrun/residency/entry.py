"""One model in memory, as its owner keeps it, and what residency asks of runners."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from localrun.errors import LocalrunError
from localrun.memory import Plan, Split
from localrun.residency.memory import planned_info
from localrun.residency.policy import Held, State
from localrun.spec import LoadSpec, Resident, RunnerInfo, RunnerStats
from localrun.units import FOREVER


class Runner(Protocol):
    """A loaded model, as far as residency cares."""

    @property
    def info(self) -> RunnerInfo:
        """What it holds."""
        ...

    @property
    def stats(self) -> RunnerStats | None:
        """What it has counted, as of late; None until it has said so."""
        ...

    @property
    def n_running(self) -> int:
        """Sequences that have a slot now."""
        ...

    @property
    def is_lost(self) -> bool:
        """True once the process has ended or is about to."""
        ...

    async def wait_lost(self) -> None:
        """Returns when the process has ended."""
        ...

    async def close(self, error: LocalrunError | None = None) -> None:
        """Ends the process; requests that still run end with `error`. Idempotent."""
        ...


R = TypeVar("R", bound=Runner)
R_co = TypeVar("R_co", bound=Runner, covariant=True)


class EmptyRunner(Protocol[R_co]):
    """A process that holds no model yet. Must be closed unless it has loaded one."""

    async def plan(self, spec: LoadSpec, held: Mapping[str, int]) -> Plan:
        """How `spec` would be loaded now, beside other models' `held` bytes by device name."""
        ...

    async def load(self, spec: LoadSpec, split: Split | None) -> R_co:
        """Loads `spec`; this object is used up."""
        ...

    async def close(self) -> None:
        """Ends the process and returns when it is gone. Idempotent."""
        ...


@dataclass(eq=False)
class Entry(Generic[R]):
    """A model in memory, or on its way in or out. Written by the owner task only.

    `plan` is the latest one of its load, made beside `held` bytes of other models; `changed` is
    set when it need not be true any more. From `is_allocating` on it takes memory. At `cut_off_s`
    answers that still run on a model that was stopped are ended; one that only `makes_room` may
    stay after all.
    """

    spec: LoadSpec
    model: str
    keep_alive_s: float
    state: State = "loading"
    runner: R | None = None
    n_leases: int = 0
    last_used_s: float = 0.0
    cut_off_s: float = FOREVER
    makes_room: bool = False
    loading: "asyncio.Task[None] | None" = None
    plan: Plan | None = None
    is_allocating: bool = False
    held: Mapping[str, int] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def expires_s(self) -> float:
        """When an idle model is to go, on the owner's clock; `FOREVER` while it is in use.

        When one that was stopped is to go, whoever uses it.
        """
        if self.state == "stopping":
            return self.cut_off_s
        if self.state != "ready" or self.n_leases:
            return FOREVER
        return self.last_used_s + self.keep_alive_s

    @property
    def info(self) -> RunnerInfo | None:
        """What it holds, or will hold by its plan; None before there is one."""
        if self.runner is not None:
            return self.runner.info
        return planned_info(self.plan, self.spec) if self.plan else None

    @property
    def is_draining(self) -> bool:
        """True when it is to go, but may stay: answers still run, and nobody wants it to end."""
        is_there = self.runner is not None and not self.runner.is_lost
        return is_there and self.state == "stopping" and self.makes_room and self.n_leases > 0

    @property
    def device_bytes(self) -> Mapping[str, int]:
        """Its memory by device name; nothing while it is only planned."""
        return self.info.device_bytes if self.info and self.is_allocating else {}

    @property
    def n_slots(self) -> int:
        """Sequences at once; 0 until it is loaded."""
        return self.runner.info.n_slots if self.runner else 0

    @property
    def n_without_slot(self) -> int:
        """Leases beyond its slots."""
        return max(0, self.n_leases - self.n_slots)

    def described(self, now_s: float, wall_s: float, n_waiting: int) -> Resident:
        """A copy for `ps`; `n_waiting` requests for it are in the line.

        A model in use expires as if it became idle now, one that is stopping at once.
        """
        remaining_s = self.keep_alive_s
        if self.state == "stopping":
            remaining_s = 0.0
        elif self.expires_s != FOREVER:
            remaining_s = max(0.0, self.expires_s - now_s)
        return Resident(
            key=self.spec.key,
            model=self.model,
            state=self.state,
            expires_at_s=wall_s + remaining_s,
            n_busy=self.runner.n_running if self.runner else 0,
            n_queued=n_waiting + self.n_without_slot,
            info=self.info,
            stats=self.runner.stats if self.runner else None,
        )

    def as_held(self) -> Held:
        """What the policy sees."""
        return Held(
            self.spec,
            self.state,
            self.n_leases,
            self.keep_alive_s,
            self.last_used_s,
            self.device_bytes,
            self.is_draining,
        )


class Lease(Generic[R]):
    """The right to use a ready runner. Close it exactly when the request is over."""

    def __init__(self, runner: R, release: Callable[[], None]) -> None:
        self.runner = runner
        self._release: Callable[[], None] | None = release

    def close(self) -> None:
        """Gives the lease back. Idempotent."""
        if self._release is not None:
            self._release()
            self._release = None
