"""Residency with a manual clock, scripted memory and runners that check how they are used."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from localrun.errors import (
    LocalrunError,
)
from localrun.memory import Need, Plan, Split
from localrun.residency.clock import Time
from localrun.residency.entry import Lease
from localrun.residency.owner import Residency
from localrun.spec import LoadSpec, RunnerInfo, RunnerStats


class FakeRunner:
    """Fails the test when it is closed while somebody holds a lease on it."""

    def __init__(self, spec: LoadSpec, world: "World") -> None:
        self.spec = spec
        self.device_bytes = world.needs.get(spec.weights_digest, {})
        self.info = RunnerInfo(spec.n_ctx, spec.n_parallel, needs=as_needs(self.device_bytes))
        self.stats: RunnerStats | None = None
        self.n_running = 0
        self.n_leases = 0
        self.is_lost = False
        self.ended_by: LocalrunError | None = None
        self._world = world
        self._lost = asyncio.Event()

    async def wait_lost(self) -> None:
        await self._lost.wait()

    async def close(self, error: LocalrunError | None = None) -> None:
        assert self.n_leases == 0 or error is not None, "closed while in use"
        self.ended_by = error
        self.is_lost = True
        await self._world.dying.wait()
        self.die()

    def die(self) -> None:
        self.is_lost = True
        if self in self._world.alive:
            self._lost.set()
            self._world.alive.remove(self)
            if self._world.n_pauses_slow:
                self._world.slow_bytes = {**self.device_bytes, "CPU": 0}


class FakeEmptyRunner:
    """Plans by the memory that is free in its world, and what each model needs there."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._loaded: FakeRunner | None = None

    async def plan(self, spec: LoadSpec, held: Mapping[str, int]) -> Plan:
        assert not self._world.is_planning, "two plans at a time"
        self._world.is_planning = True
        await asyncio.sleep(0)
        self._world.is_planning = False
        self._world.held.append(dict(held))
        needs = self._world.needs.get(spec.weights_digest, {})
        free = self._world.free()
        alone = {name: n_bytes + held.get(name, 0) for name, n_bytes in free.items()}
        return Plan(
            "now" if fits(needs, free) else "crowded" if fits(needs, alone) else "never",
            Split(),
            as_needs(needs),
            free,
        )

    async def load(self, spec: LoadSpec, split: Split | None) -> FakeRunner:
        world = self._world
        world.launched.append(spec.weights_digest)
        await world.gate.wait()
        if failure := world.failures.get(spec.weights_digest):
            raise failure
        self._loaded = FakeRunner(spec, world)
        world.alive.append(self._loaded)
        assert all(n_bytes >= 0 for n_bytes in world.free().values()), "more than there is"
        return self._loaded

    async def close(self) -> None:
        assert self._loaded is None
        self._world.n_given_up += 1


def as_needs(device_bytes: Mapping[str, int]) -> dict[str, Need]:
    return {name: Need(n_bytes) for name, n_bytes in device_bytes.items()}


def fits(needs: Mapping[str, int], free: Mapping[str, int]) -> bool:
    return all(n_bytes <= free.get(name, 0) for name, n_bytes in needs.items())


class World:
    """Residency with its effects replaced; `gate` holds loads back until a test lets them go.

    `dying` holds back the ends of runners. `machine` is memory by device; with `n_pauses_slow`, a
    GPU shows the memory of an ended runner, `slow_bytes`, as free only after so many pauses.
    """

    def __init__(self, **changes: Any) -> None:
        self.now_s = 0.0
        self.alive: list[FakeRunner] = []
        self.launched: list[str] = []
        self.held: list[dict[str, int]] = []
        self.failures: dict[str, LocalrunError] = {}
        self.machine: dict[str, int] = {}
        self.needs: dict[str, dict[str, int]] = {}
        self.slow_bytes: dict[str, int] = {}
        self.n_pauses = 0
        self.n_pauses_slow = 0.0
        self.n_given_up = 0
        self.is_planning = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.dying = asyncio.Event()
        self.dying.set()
        settings = {"max_loaded": 2, "max_queue": 3, "keep_alive_s": 60.0, **changes}
        self.residency: Residency[FakeRunner] = Residency(
            self.spawn, time=Time(lambda: self.now_s, lambda: self.now_s, self.pause), **settings
        )
        self._owner = asyncio.create_task(self.residency.run())

    async def spawn(self) -> FakeEmptyRunner:
        return FakeEmptyRunner(self)

    async def pause(self, seconds: float) -> None:
        self.now_s += seconds
        self.n_pauses += 1
        if self.n_pauses_slow and self.n_pauses % self.n_pauses_slow == 0:
            self.slow_bytes.clear()
        await asyncio.sleep(0)

    def free(self) -> dict[str, int]:
        taken = [runner.device_bytes for runner in self.alive] + [self.slow_bytes]
        return {
            name: n_bytes - sum(part.get(name, 0) for part in taken)
            for name, n_bytes in self.machine.items()
        }

    async def lease(
        self, name: str, keep_alive_s: float | None = None, n_ctx: int = 100, **wishes: Any
    ) -> Lease[FakeRunner]:
        spec = LoadSpec(f"/{name}", name, n_ctx=n_ctx, n_parallel=2, n_threads=1, **wishes)
        lease = await self.residency.lease(spec, name, keep_alive_s)
        lease.runner.n_leases += 1
        return lease

    def ask(self, name: str, **wishes: Any) -> "asyncio.Task[Lease[FakeRunner]]":
        return asyncio.create_task(self.lease(name, **wishes))

    async def release(self, lease: Lease[FakeRunner]) -> None:
        lease.runner.n_leases -= 1
        lease.close()
        await self.settle()

    async def pass_time(self, seconds: float) -> None:
        """Moves the clock and wakes the owner, as its timer would."""
        self.now_s += seconds
        self.residency.unload("nobody")
        await self.settle()

    async def settle(self) -> None:
        """Lets everything that can happen now happen."""
        for _ in range(30):
            await asyncio.sleep(0)

    def loaded(self) -> dict[str, str]:
        return {model.model: model.state for model in self.residency.resident()}


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 10))
