"""The owner of the loaded models, driven by a manual clock and runners that check it."""

import asyncio
import logging
import math
from collections.abc import Coroutine, Mapping
from typing import Any

import pytest

from localrun.core import LoadOptions, LoadSpec, RunnerInfo, RunnerStats
from localrun.errors import (
    LoadFailed,
    LocalrunError,
    NotEnoughMemory,
    QueueFull,
    ShuttingDown,
)
from localrun.memory import Need, Plan, Split
from localrun.residency.clock import Time
from localrun.residency.entry import Lease
from localrun.residency.owner import Residency


class FakeRunner:
    """Fails the test when it is closed while somebody holds a lease on it."""

    def __init__(self, spec: LoadSpec, world: "World") -> None:
        self.spec = spec
        self.device_bytes = world.needs.get(spec.weights_digest, {})
        self.info = RunnerInfo(spec.n_ctx, spec.n_parallel, device_bytes=self.device_bytes)
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
            {name: Need(n_bytes) for name, n_bytes in needs.items()},
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


def test_a_pin_outlives_a_crash_and_a_load_for_other_options_but_not_a_stop() -> None:
    async def story() -> None:
        world = World()
        lease = await world.lease("a", keep_alive_s=math.inf)
        lease.runner.die()
        await world.release(lease)
        await world.release(await world.lease("a"))
        await world.release(await world.lease("a", n_batch=7, asked=LoadOptions(num_batch=7)))
        assert world.launched == ["a", "a", "a"]
        await world.pass_time(10**6)
        assert world.loaded() == {"a": "ready"}
        world.residency.unload("a")
        await world.settle()
        await world.release(await world.lease("a"))
        await world.pass_time(61)
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


def test_a_stop_during_a_load_ends_it_and_tells_those_who_wait() -> None:
    async def story() -> None:
        world = World()
        world.gate.clear()
        wanted = world.ask("a")
        await world.settle()
        world.residency.unload("a")
        world.residency.unload("a")
        with pytest.raises(LoadFailed, match="stopped"):
            await wanted
        await world.settle()
        assert (world.loaded(), world.n_given_up) == ({}, 1)
        world.gate.set()
        assert (await world.lease("a")).runner.spec.weights_digest == "a"

    run(story())


def test_a_stop_that_comes_with_the_request_leaves_nothing_stuck() -> None:
    async def story() -> None:
        world = World()
        wanted = world.ask("a")
        await asyncio.sleep(0)
        world.residency.unload("a")  # before the load has made its first step
        with pytest.raises(LoadFailed):
            await wanted
        await world.settle()
        assert (world.loaded(), world.launched) == ({}, [])
        await world.lease("a")

    run(story())


def test_a_stop_that_comes_as_the_load_ends_lets_those_who_waited_finish() -> None:
    async def story() -> None:
        world = World()
        world.gate.clear()
        wanted = world.ask("a")
        await world.settle()
        world.gate.set()
        while not world.alive:  # it is loaded, but the owner does not know yet
            await asyncio.sleep(0)
        world.residency.unload("a")
        lease = await wanted
        assert world.loaded() == {"a": "stopping"}
        await world.release(lease)
        assert (world.loaded(), world.alive, world.launched) == ({}, [], ["a"])

    run(story())


def test_a_request_that_comes_while_a_load_is_being_stopped_loads_anew() -> None:
    async def story() -> None:
        world = World()
        world.gate.clear()
        first = world.ask("a")
        await world.settle()
        world.residency.unload("a")
        second = world.ask("a")
        await world.settle()
        assert isinstance(first.exception(), LoadFailed)
        world.gate.set()
        assert (await second).runner.spec.weights_digest == "a"
        assert world.launched == ["a", "a"]

    run(story())


def test_a_load_that_nobody_waits_for_any_more_is_kept() -> None:
    async def story() -> None:
        world = World()
        world.gate.clear()
        leaves = world.ask("a")
        await world.settle()
        leaves.cancel()
        await world.settle()
        world.gate.set()
        await world.settle()
        assert world.loaded() == {"a": "ready"}
        await world.release(await world.lease("a"))
        assert world.launched == ["a"]
        await world.pass_time(61)
        assert world.loaded() == {}

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


def test_what_is_loading_shows_its_plan_and_what_is_stopping_its_end() -> None:
    async def story() -> None:
        world = World()
        world.machine, world.needs = {"CPU": 10, "CUDA0": 10}, {"a": {"CPU": 2, "CUDA0": 5}}
        world.gate.clear()
        wanted = world.ask("a", keep_alive_s=math.inf)
        await world.settle()
        (model,) = world.residency.resident()
        assert (model.state, model.n_queued, model.expires_at_s) == ("loading", 1, math.inf)
        assert model.info is not None
        assert (model.info.size_bytes, model.info.size_vram_bytes) == (7, 5)
        world.gate.set()
        await wanted
        world.residency.unload("a")
        await world.settle()
        (model,) = world.residency.resident()
        assert (model.state, model.expires_at_s) == ("stopping", world.now_s)

    run(story())


# ---- one after the other


def test_one_model_is_loaded_at_a_time_and_ready_ones_answer_meanwhile() -> None:
    async def story() -> None:
        world = World(max_loaded=3)
        await world.release(await world.lease("a"))
        world.gate.clear()
        second, third = world.ask("b"), world.ask("c")
        await world.settle()
        assert world.loaded() == {"a": "ready", "b": "loading"}
        await world.release(await world.lease("a"))
        world.gate.set()
        await asyncio.gather(second, third)
        assert world.launched == ["a", "b", "c"]

    run(story())


def test_a_load_waits_until_the_one_before_it_is_really_gone() -> None:
    async def story() -> None:
        world = World(max_loaded=1)
        await world.release(await world.lease("a"))
        world.dying.clear()
        wanted = world.ask("b")
        await world.settle()
        assert world.loaded() == {"a": "stopping"}
        world.dying.set()
        await wanted
        assert world.launched == ["a", "b"]

    run(story())


# ---- memory


def crowded_world(**changes: Any) -> World:
    """RAM of 10; `a`, `b` and `c` need 4 each, `large` 9, `giant` 11."""
    world = World(max_loaded=9, **changes)
    world.machine = {"CPU": 10}
    world.needs = {name: {"CPU": n} for name, n in zip("abc", (4, 4, 4), strict=True)}
    world.needs |= {"large": {"CPU": 9}, "giant": {"CPU": 11}}
    return world


def test_models_stay_side_by_side_as_long_as_memory_holds_them() -> None:
    async def story() -> None:
        world = crowded_world()
        for name in ("a", "b"):
            await world.release(await world.lease(name))
            world.now_s += 1
        assert world.held == [{}, {"CPU": 4}]
        assert set(world.loaded()) == {"a", "b"}
        await world.lease("c")
        assert set(world.loaded()) == {"b", "c"}

    run(story())


def test_as_many_go_as_it_takes_one_at_a_time_and_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        world = crowded_world()
        world.needs["tiny"] = {}
        await world.release(await world.lease("a", keep_alive_s=math.inf))
        await world.release(await world.lease("tiny"))
        world.now_s += 1
        await world.release(await world.lease("b"))
        with caplog.at_level(logging.INFO):
            await world.lease("large")
        assert set(world.loaded()) == {"tiny", "large"}
        order = [r.message for r in caplog.records if "unloading" in r.message]
        assert order == ["unloading b", "unloading a"]  # what was to stay for ever goes last
        assert any(r.levelname == "WARNING" and "for ever" in r.message for r in caplog.records)

    run(story())


def test_a_model_that_never_fits_is_refused_at_once_and_nobody_has_to_go() -> None:
    async def story() -> None:
        world = crowded_world()
        await world.release(await world.lease("a"))
        with pytest.raises(NotEnoughMemory) as refused:
            await world.lease("giant")
        assert (refused.value.needed, refused.value.available) == ({"CPU": 11}, {"CPU": 10})
        assert world.loaded() == {"a": "ready"}
        assert world.n_given_up == 1
        assert world.launched == ["a"]

    run(story())


def test_who_asks_for_less_is_not_refused_with_who_asked_for_too_much() -> None:
    async def story() -> None:
        world = crowded_world()
        too_much = world.ask("giant")
        less = world.ask("giant", n_ctx=10)
        await asyncio.gather(too_much, return_exceptions=True)
        assert isinstance(too_much.exception(), NotEnoughMemory)
        assert not less.done()
        world.needs["giant"] = {"CPU": 5}
        await less

    run(story())


def test_an_idle_model_goes_before_a_busy_one_and_a_busy_one_ends_its_answers() -> None:
    async def story() -> None:
        world = crowded_world()
        busy = await world.lease("a")
        world.now_s += 1
        await world.release(await world.lease("b"))
        lease = await world.lease("c")
        assert world.loaded() == {"a": "ready", "c": "ready"}
        wanted = world.ask("large")
        await world.settle()
        assert world.loaded() == {"a": "stopping", "c": "ready", "large": "loading"}
        late = world.ask("a")
        await world.settle()
        await world.release(busy)
        assert world.loaded() == {"c": "stopping", "large": "loading"}
        await world.release(lease)
        await world.release(await wanted)
        await late
        assert world.loaded() == {"a": "ready"}

    run(story())


def test_traffic_to_a_loaded_model_goes_on_but_cannot_keep_a_large_one_out() -> None:
    async def story() -> None:
        world = crowded_world(max_queue=99)
        served: list[str] = []

        async def ask_again_and_again(name: str) -> None:
            for _ in range(20):
                lease = await world.lease(name)
                served.append(name)
                await asyncio.sleep(0)
                await world.release(lease)

        async def ask_once(name: str) -> None:
            lease = await world.lease(name)
            served.append(name)
            await world.release(lease)

        crowd = [asyncio.create_task(ask_again_and_again("a")) for _ in range(3)]
        while not served:
            await asyncio.sleep(0)
        await asyncio.gather(ask_once("large"), *crowd)
        assert served.count("a") == 60
        assert served.index("large") < 30

    run(story())


def test_a_model_that_leaves_by_itself_makes_room_too() -> None:
    async def story() -> None:
        world = crowded_world()
        first, second = await world.lease("a"), await world.lease("b")
        wanted = world.ask("c")  # drains `a`, which was used first
        await world.settle()
        second.runner.n_leases -= 1
        second.runner.die()
        await wanted
        assert world.loaded() == {"a": "stopping", "c": "ready"}
        await world.release(first)

    run(story())


def test_a_failed_load_leaves_its_room_to_the_next() -> None:
    async def story() -> None:
        world = crowded_world()
        world.failures["large"] = LoadFailed("no")
        with pytest.raises(LoadFailed):
            await world.lease("large")
        assert (world.loaded(), world.n_given_up) == ({}, 1)
        await world.lease("a")
        await world.lease("b")
        assert world.held[-2:] == [{}, {"CPU": 4}]

    run(story())


def gpu_world(n_pauses_slow: float = 0) -> World:
    """One GPU of 10 beside RAM; `a` and `b` need 8 of it."""
    world = World(max_loaded=9)
    world.n_pauses_slow = n_pauses_slow
    world.machine = {"CPU": 100, "CUDA0": 10}
    world.needs = {"a": {"CUDA0": 8}, "b": {"CUDA0": 8}}
    return world


def test_a_load_waits_until_a_gpu_shows_the_memory_of_the_evicted_model_as_free() -> None:
    async def story() -> None:
        world = gpu_world(n_pauses_slow=4)
        await world.release(await world.lease("a"))
        await world.lease("b")
        assert world.n_pauses == 4
        assert world.now_s < 5

    run(story())


def test_a_second_model_goes_as_soon_as_the_memory_of_the_first_is_back() -> None:
    async def story() -> None:
        world = gpu_world(n_pauses_slow=4)
        world.needs |= {"a": {"CUDA0": 3}, "c": {"CUDA0": 3}}
        for name in ("a", "c"):
            await world.release(await world.lease(name))
        await world.lease("b")
        assert world.n_pauses == 4 + 4
        assert set(world.loaded()) == {"b"}

    run(story())


def test_memory_that_never_comes_back_is_waited_for_a_bounded_time_only() -> None:
    async def story() -> None:
        world = gpu_world(n_pauses_slow=math.inf)
        await world.release(await world.lease("a"))
        with pytest.raises(NotEnoughMemory):
            await world.lease("b")
        assert 5 <= world.now_s < 6
        assert world.loaded() == {}

    run(story())


def test_memory_of_a_model_that_was_stopped_just_before_is_waited_for_too() -> None:
    async def story() -> None:
        world = gpu_world(n_pauses_slow=3)
        await world.release(await world.lease("a"))
        world.residency.unload("a")
        await world.settle()
        assert world.loaded() == {}
        await world.lease("b")
        assert world.n_pauses == 3

    run(story())


def test_a_model_without_gpu_memory_need_not_go_for_a_better_place_on_a_gpu() -> None:
    async def story() -> None:
        world = gpu_world()
        world.needs["in ram"] = {"CPU": 50}
        await world.release(await world.lease("in ram"))
        await world.release(await world.lease("a"))
        await world.lease("b")
        assert set(world.loaded()) == {"in ram", "b"}

    run(story())


# ---- time


def test_the_owner_looks_again_now_and_then_since_timers_stand_still_in_sleep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("localrun.residency.owner._RECHECK_S", 0.01)

    async def story() -> None:
        world = World()
        await world.release(await world.lease("a", keep_alive_s=3600))
        world.now_s += 3601  # while the machine slept; no event tells
        while world.loaded():
            await asyncio.sleep(0.001)

    run(story())
