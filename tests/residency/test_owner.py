"""The owner of the loaded models, driven by a manual clock and runners that check it."""

import asyncio
import math
from collections.abc import Coroutine
from typing import Any

import pytest

from localrun.core import LoadOptions, LoadSpec, RunnerInfo, RunnerStats
from localrun.errors import LoadFailed, LocalrunError, QueueFull, ShuttingDown
from localrun.residency.owner import Lease, Residency


class FakeRunner:
    """Fails the test when it is closed while somebody holds a lease on it."""

    def __init__(self, spec: LoadSpec, world: "World") -> None:
        self.spec = spec
        self.info = RunnerInfo(spec.n_ctx, spec.n_parallel)
        self.stats: RunnerStats | None = None
        self.n_running = 0
        self.n_leases = 0
        self.is_lost = False
        self._world = world
        self._lost = asyncio.Event()

    async def wait_lost(self) -> None:
        await self._lost.wait()

    async def close(self) -> None:
        assert self.n_leases == 0, "closed while in use"
        self.die()

    def die(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._lost.set()
            self._world.alive.remove(self)


class World:
    """Residency with its effects replaced; `gate` holds loads back until a test lets them go."""

    def __init__(self, **changes: Any) -> None:
        self.now_s = 0.0
        self.alive: list[FakeRunner] = []
        self.launched: list[str] = []
        self.failures: dict[str, LocalrunError] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        settings = {"max_loaded": 2, "max_queue": 3, "keep_alive_s": 60.0, **changes}
        self.residency: Residency[FakeRunner] = Residency(
            self.launch, clock_s=lambda: self.now_s, wall_s=lambda: self.now_s, **settings
        )
        self._owner = asyncio.create_task(self.residency.run())

    async def launch(self, spec: LoadSpec) -> FakeRunner:
        self.launched.append(spec.weights_digest)
        await self.gate.wait()
        if failure := self.failures.get(spec.weights_digest):
            raise failure
        runner = FakeRunner(spec, self)
        self.alive.append(runner)
        return runner

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


def test_the_first_request_loads_and_the_second_shares() -> None:
    async def story() -> None:
        world = World()
        first, second = await asyncio.gather(world.lease("a"), world.lease("a"))
        assert first.runner is second.runner
        assert world.launched == ["a"]

    run(story())


def test_an_idle_model_goes_when_its_time_is_up_and_not_before() -> None:
    async def story() -> None:
        world = World()
        lease = await world.lease("a")
        await world.pass_time(1000)
        assert world.loaded() == {"a": "ready"}  # in use: the time has not begun
        await world.release(lease)
        await world.pass_time(59)
        assert world.loaded() == {"a": "ready"}
        await world.pass_time(2)
        assert world.loaded() == {}
        assert world.alive == []

    run(story())


def test_the_owner_wakes_up_by_itself_when_a_time_is_up() -> None:
    async def story() -> None:
        world = World()
        lease = await world.lease("a", keep_alive_s=0.01)
        await world.release(lease)
        world.now_s += 1  # its timer of 10 ms runs on the real clock
        while world.loaded():
            await asyncio.sleep(0.001)

    run(story())


def test_keep_alive_sticks_to_the_loaded_model() -> None:
    async def story() -> None:
        world = World()
        await world.release(await world.lease("a", keep_alive_s=math.inf))
        await world.release(await world.lease("a"))
        await world.pass_time(10**6)
        assert world.loaded() == {"a": "ready"}
        await world.release(await world.lease("a", keep_alive_s=0))
        assert world.loaded() == {}

    run(story())


def test_no_room_evicts_the_idle_one_used_longest_ago() -> None:
    async def story() -> None:
        world = World()
        for name in ("a", "b"):
            await world.release(await world.lease(name))
            world.now_s += 1
        await world.lease("c")
        assert set(world.loaded()) == {"b", "c"}

    run(story())


def test_all_busy_drains_one_and_steady_traffic_to_it_cannot_keep_others_out() -> None:
    async def story() -> None:
        world = World(max_loaded=1)
        first = await world.lease("a")
        wanted = world.ask("b")
        await world.settle()
        late = world.ask("a")  # comes after `b`, so it waits for `b`'s turn to be over
        await world.settle()
        assert world.loaded() == {"a": "stopping"}
        await world.release(first)
        lease = await wanted
        assert not late.done()
        await world.release(lease)
        assert (await late).runner.spec.weights_digest == "a"

    run(story())


def test_another_load_option_waits_for_the_running_ones_and_loads_again() -> None:
    async def story() -> None:
        world = World()
        plain = await world.lease("a")
        other = world.ask("a", n_batch=7, asked=LoadOptions(num_batch=7))
        await world.settle()
        assert not other.done()
        await world.release(plain)
        assert (await other).runner.spec.n_batch == 7

    run(story())


def test_a_larger_window_gets_the_runner_that_is_there() -> None:
    async def story() -> None:
        world = World()
        small = await world.lease("a")
        large = await world.lease("a", n_ctx=500)
        assert large.runner is small.runner

    run(story())


def test_a_failed_load_is_told_to_all_who_waited_and_tried_again_later() -> None:
    async def story() -> None:
        world = World()
        world.failures["a"] = LoadFailed("no")
        results = await asyncio.gather(world.lease("a"), world.lease("a"), return_exceptions=True)
        assert [type(result) for result in results] == [LoadFailed, LoadFailed]
        world.failures.clear()
        await world.lease("a")
        assert world.launched == ["a", "a"]

    run(story())


def test_a_client_that_leaves_while_its_model_loads_harms_nobody() -> None:
    async def story() -> None:
        world = World()
        world.gate.clear()
        leaves, stays = world.ask("a"), world.ask("a")
        await world.settle()
        leaves.cancel()
        await world.settle()
        world.gate.set()
        lease = await stays
        await world.release(lease)
        await world.pass_time(100)
        assert world.alive == []  # the one who left holds nothing

    run(story())


def test_a_client_that_leaves_the_line_never_causes_a_load() -> None:
    async def story() -> None:
        world = World(max_loaded=1)
        lease = await world.lease("a")
        leaves = world.ask("b")
        await world.settle()
        leaves.cancel()
        await world.settle()
        await world.release(lease)
        await world.settle()
        assert world.launched == ["a"]

    run(story())


def test_a_dead_runner_is_replaced_by_the_next_request() -> None:
    async def story() -> None:
        world = World()
        lease = await world.lease("a")
        lease.runner.die()
        again = await world.lease("a")
        assert again.runner is not lease.runner
        await world.release(lease)  # the old lease changes nothing about the new runner
        assert world.loaded() == {"a": "ready"}

    run(story())


def test_requests_without_a_slot_are_bounded_and_those_with_one_are_not() -> None:
    async def story() -> None:
        world = World(max_queue=3)
        leases = [await world.lease("a") for _ in range(2 + 3)]  # two slots, three wait
        with pytest.raises(QueueFull) as refused:
            await world.lease("a")
        assert refused.value.retry_after_s >= 1
        await world.release(leases.pop())
        await world.lease("a")

    run(story())


def test_a_burst_is_bounded_too() -> None:
    async def story() -> None:
        world = World(max_queue=3)
        await world.release(await world.lease("a"))
        results = await asyncio.gather(
            *(world.lease("a") for _ in range(50)), return_exceptions=True
        )
        assert sum(isinstance(result, QueueFull) for result in results) == 50 - 2 - 3

    run(story())


def test_waiting_for_a_load_counts_against_the_same_bound() -> None:
    async def story() -> None:
        world = World(max_queue=3)
        world.gate.clear()
        waiting = [world.ask("a") for _ in range(3)]
        await world.settle()
        with pytest.raises(QueueFull):
            await world.lease("a")
        world.gate.set()
        await asyncio.gather(*waiting)

    run(story())


def test_unload_during_a_load_waits_for_it_and_serves_who_waits() -> None:
    async def story() -> None:
        world = World()
        world.gate.clear()
        wanted = world.ask("a")
        await world.settle()
        world.residency.unload("a")
        await world.settle()
        assert world.loaded() == {"a": "stopping"}
        world.gate.set()
        assert (await wanted).runner.spec.weights_digest == "a"

    run(story())


def test_shutdown_refuses_those_who_wait_and_ends_every_runner() -> None:
    async def story() -> None:
        world = World(max_loaded=1)
        await world.release(await world.lease("a", keep_alive_s=math.inf))
        world.gate.clear()
        wanted = world.ask("b")
        await world.settle()
        world.residency.refuse_waiting()
        with pytest.raises(ShuttingDown):
            await wanted
        with pytest.raises(ShuttingDown):
            await world.lease("a")
        await world.residency.close()
        assert world.alive == []

    run(story())


def test_a_snapshot_says_who_has_a_slot_and_who_waits() -> None:
    async def story() -> None:
        world = World()
        leases = [await world.lease("a") for _ in range(3)]
        leases[0].runner.n_running = 2
        (model,) = world.residency.resident()
        assert (model.n_busy, model.n_queued, model.state) == (2, 1, "ready")
        assert model.expires_at_s == 60

    run(story())
