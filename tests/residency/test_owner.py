"""The owner of the loaded models, driven by a manual clock and runners that check it."""

import asyncio
import math

import pytest
from owner_world import World, run

from localrun.errors import LoadFailed, QueueFull
from localrun.spec import LoadOptions


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


def test_whoever_becomes_idle_first_makes_room() -> None:
    async def story() -> None:
        world = World(max_loaded=2)
        long, short = await world.lease("a"), await world.lease("b")
        wanted = world.ask("c")
        await world.settle()
        assert world.loaded() == {"a": "stopping", "b": "ready"}
        newcomer = world.ask("a")
        await world.release(short)
        assert (await newcomer).runner is long.runner
        await wanted
        assert world.loaded() == {"a": "ready", "c": "ready"}
        assert world.launched == ["a", "b", "c"]

    run(story())


def test_one_that_somebody_stops_goes_whoever_is_idle() -> None:
    async def story() -> None:
        world = World(max_loaded=2)
        long, short = await world.lease("a"), await world.lease("b")
        wanted = world.ask("c")
        await world.settle()
        world.residency.unload("a")
        await world.release(short)
        await world.settle()
        assert world.loaded() == {"a": "stopping", "b": "ready"}
        await world.release(long)
        await wanted
        assert world.loaded() == {"b": "ready", "c": "ready"}

    run(story())
