"""Who looks at the machine's devices, when, and what becomes of it."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from localrun.ipc.messages import DevicesListed
from localrun.memory import Device
from localrun.supervisor.devices import DeviceList, DevicesUnknown, list_devices

GPU = Device("CUDA0", "gpu", 1, 2)


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 30))


class Machine:
    """Counts how often it was looked at; `gate` holds the answer back."""

    def __init__(self, *, fails: bool = False) -> None:
        self.n_looks = 0
        self.fails = fails
        self.gate = asyncio.Event()
        self.gate.set()
        self.listed: list[tuple[Device, ...]] = []

    async def look(self) -> DevicesListed:
        self.n_looks += 1
        await self.gate.wait()
        if self.fails:
            raise DevicesUnknown("a driver may hang")
        return DevicesListed((GPU,))

    def devices(self, *, has_gpus: bool = True) -> DeviceList:
        return DeviceList(self.look, has_gpus=has_gpus, on_listed=self.listed.append)


def test_the_first_who_needs_them_looks_and_all_others_get_the_same() -> None:
    async def story() -> None:
        machine = Machine()
        devices = machine.devices()
        assert machine.n_looks == 0
        found = await asyncio.gather(devices.get(), devices.get())
        assert [*found, await devices.get()] == [(GPU,)] * 3
        assert (machine.n_looks, machine.listed) == (1, [(GPU,)])

    run(story())


def test_where_there_cannot_be_a_gpu_nobody_waits_for_a_look() -> None:
    async def story() -> None:
        machine = Machine()
        devices = machine.devices(has_gpus=False)
        assert await devices.get() == ()
        assert machine.n_looks == 0
        assert (await devices.renew()).devices == (GPU,)
        assert await devices.get() == (GPU,)

    run(story())


def test_a_look_that_fails_means_no_gpus_until_one_succeeds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        machine = Machine(fails=True)
        devices = machine.devices()
        assert await devices.get() == ()
        assert await devices.get() == ()
        assert machine.n_looks == 1
        assert "a driver may hang" in caplog.text
        with pytest.raises(DevicesUnknown):
            await devices.renew()
        machine.fails = False
        await devices.renew()
        assert await devices.get() == (GPU,)

    run(story())


def test_whoever_leaves_does_not_end_the_look_of_the_others() -> None:
    async def story() -> None:
        machine = Machine()
        machine.gate.clear()
        devices = machine.devices()
        leaver, stayer = asyncio.create_task(devices.get()), asyncio.create_task(devices.get())
        await asyncio.sleep(0)
        leaver.cancel()
        await asyncio.sleep(0)
        machine.gate.set()
        assert await stayer == (GPU,)
        assert machine.n_looks == 1

    run(story())


def rpc(name: str, endpoint: str, free_bytes: int = 100) -> Device:
    return Device(name, "gpu", free_bytes, 200, "", endpoint)


def test_a_server_that_serves_a_model_of_ours_is_not_away() -> None:
    """It has one client at a time, and answers nobody else meanwhile."""
    first, second, idle = rpc("RPC0", "a:1"), rpc("RPC1", "a:1"), rpc("RPC2", "b:1")
    held: dict[str, int] = {}
    away: tuple[str, ...] = ()

    async def look() -> DevicesListed:
        return DevicesListed(
            tuple(d for d in (first, second, idle) if d.endpoint not in away), away
        )

    async def story() -> None:
        nonlocal away
        devices = DeviceList(look, has_gpus=True, held=lambda: held)
        assert await devices.get() == (first, second, idle)
        held["RPC0"], away = 30, ("a:1",)
        for _ in range(2):
            listed = await devices.renew()
            assert listed.unreachable == ()
            assert {d.name: d.free_bytes for d in listed.devices} == {
                "RPC0": 70,
                "RPC1": 100,
                "RPC2": 100,
            }
        held.clear()
        assert (await devices.renew()).unreachable == ("a:1",)
        assert await devices.get() == (idle,)

    run(story())


def test_a_runner_answers_and_ends() -> None:
    async def story() -> None:
        listed = await list_devices()
        assert listed.unreachable == ()

    run(story())
