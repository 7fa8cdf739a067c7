"""The owner of the loaded models where memory is short: who goes, who waits, who is refused."""

import asyncio
import logging
import math
from typing import Any

import pytest
from owner_world import World, run

from localrun.errors import (
    LoadFailed,
    NotEnoughMemory,
)


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


def test_whoever_becomes_idle_first_makes_room_in_memory() -> None:
    async def story() -> None:
        world = crowded_world()
        long, short = await world.lease("a"), await world.lease("b")
        wanted = world.ask("c")
        await world.settle()
        assert world.loaded() == {"a": "stopping", "b": "ready", "c": "loading"}
        await world.release(short)
        await wanted
        assert world.loaded() == {"a": "ready", "c": "ready"}
        assert long.runner.ended_by is None

    run(story())
