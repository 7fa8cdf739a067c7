"""Models that are stopped, whatever they are doing, and the end of all of them."""

import asyncio
import math

import pytest
from owner_world import World, run

from localrun.errors import LoadFailed, ModelStopped, ShuttingDown
from localrun.residency.owner import STOP_GRACE_S


def test_answers_that_outlast_a_stop_are_ended_with_it() -> None:
    async def story() -> None:
        world = World()
        lease = await world.lease("a")
        world.residency.unload("a")
        await world.settle()
        await world.pass_time(STOP_GRACE_S - 1)
        world.residency.unload("a")  # gives no more time
        await world.settle()
        assert world.loaded() == {"a": "stopping"}
        assert lease.runner.ended_by is None
        again = world.ask("a")
        await world.pass_time(1)
        assert isinstance(lease.runner.ended_by, ModelStopped)
        await world.release(lease)
        assert world.launched == ["a", "a"]
        await world.release(await again)
        assert world.loaded() == {"a": "ready"}

    run(story())


def test_answers_on_a_model_that_makes_room_may_take_their_time() -> None:
    async def story() -> None:
        world = World(max_loaded=1)
        lease = await world.lease("a")
        other = world.ask("b")
        await world.pass_time(10 * STOP_GRACE_S)
        assert world.loaded() == {"a": "stopping"}
        assert lease.runner.ended_by is None
        await world.release(lease)
        await world.release(await other)

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
