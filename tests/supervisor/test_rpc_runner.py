"""A runner process with a GPU of another machine: it plans, plans again, loads, and names the
server that it lost. An RPC server on loopback is the other machine."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from rpc_server import RpcServer, free_port

from localrun.core import Done, RawPrompt, SamplingParams, TextDelta
from localrun.ipc.messages import (
    DevicesListed,
    ListDevices,
    Load,
    Loaded,
    LoadRefused,
    MakePlan,
    Outbox,
    Planned,
    Progressed,
    Submit,
    ToDaemon,
    ToRunner,
)
from localrun.memory import CPU
from localrun.placement.layers import GPU_MARGIN_BYTES
from localrun.spec import LoadSpec
from localrun.supervisor.process import RunnerProcess

# A hang guard for slow shared machines, not a measurement.
LIMIT_S = 60.0

T = TypeVar("T")


class Runner:
    """A real runner process, spoken to by hand."""

    def __init__(self, process: RunnerProcess) -> None:
        self.process = process
        self._said: asyncio.Queue[ToDaemon] = asyncio.Queue()
        process.connection.receive = self._receive

    def _receive(self, outbox: Outbox) -> None:
        for item in outbox.items:
            self._said.put_nowait(item)

    def send(self, message: ToRunner) -> None:
        self.process.connection.send(message)

    async def next(self, kind: type[T]) -> T:
        """The next message of a kind; a refusal is one in any case."""
        while True:
            item = await asyncio.wait_for(self._said.get(), LIMIT_S)
            assert isinstance(item, kind) or not isinstance(item, LoadRefused), item
            if isinstance(item, kind):
                return item

    async def ask(self, message: ToRunner, kind: type[T]) -> T:
        self.send(message)
        return await self.next(kind)

    async def text(self, prompt: str, n: int) -> str:
        sampling = SamplingParams(temperature=0, num_predict=n)
        self.send(Submit(1, RawPrompt(prompt), sampling, n_ctx=512))
        text = ""
        while True:
            event = (await self.next(Progressed)).event
            if isinstance(event, Done):
                return text
            assert isinstance(event, TextDelta)
            text += event.text


def with_runner(story: Callable[[Runner], Any]) -> None:
    async def run() -> None:
        process = await RunnerProcess.spawn()
        try:
            await story(Runner(process))
        finally:
            process.kill()
            await process.wait()

    asyncio.run(run())


def spec_of(path: Path, *servers: str, **fields: Any) -> LoadSpec:
    fields = {"n_ctx": 512, "n_parallel": 2, "n_threads": 2, **fields}
    return LoadSpec(str(path), "digest", rpc_servers=servers, **fields)


PROMPT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


def test_it_lists_devices_and_servers_that_are_away(rpc_server: RpcServer) -> None:
    gone = f"127.0.0.1:{free_port()}"

    async def story(runner: Runner) -> None:
        listed = await runner.ask(ListDevices((gone, rpc_server.endpoint)), DevicesListed)
        assert [device.name for device in listed.devices] == [CPU, "RPC1"]
        assert listed.unreachable == (gone,)
        assert listed.build

    with_runner(story)


def test_it_plans_again_and_loads_what_it_planned(
    smollm2_path: Path, rpc_server: RpcServer
) -> None:
    async def story(runner: Runner) -> None:
        listed = await runner.ask(ListDevices((rpc_server.endpoint,)), DevicesListed)
        (gpu,) = [device for device in listed.devices if device.kind == "gpu"]
        overhead = gpu.total_bytes - GPU_MARGIN_BYTES - (300 << 20)
        spec = spec_of(smollm2_path, rpc_server.endpoint, gpu_overhead_bytes={"": overhead})
        held = {"RPC0": 200 << 20}
        crowded = (await runner.ask(MakePlan(spec, held), Planned)).plan
        assert (crowded.fit, crowded.fits) == ("crowded", True)
        plan = (await runner.ask(MakePlan(spec), Planned)).plan
        assert (plan.fit, plan.split.n_gpu_layers) == ("now", 31)
        info = (await runner.ask(Load(spec, crowded.split), Loaded)).info
        assert info.device_bytes == {name: need.total_bytes for name, need in crowded.needs.items()}
        assert 0 < info.size_vram_bytes < info.size_bytes
        assert "Paris" in await runner.text(PROMPT, 16)

    with_runner(story)


def test_without_a_split_it_plans_by_itself(smollm2_path: Path, rpc_server: RpcServer) -> None:
    async def story(runner: Runner) -> None:
        spec = spec_of(smollm2_path, rpc_server.endpoint)
        info = (await runner.ask(Load(spec), Loaded)).info
        assert set(info.device_bytes) == {CPU, "RPC0"}
        assert "Paris" in await runner.text(PROMPT, 16)

    with_runner(story)


def test_a_server_that_is_away_costs_its_memory_only(smollm2_path: Path) -> None:
    gone = f"127.0.0.1:{free_port()}"

    async def story(runner: Runner) -> None:
        planned = await runner.ask(MakePlan(spec_of(smollm2_path, gone)), Planned)
        assert planned.unreachable == (gone,)
        assert planned.plan.fit == "now"
        assert gone in planned.plan.reasons[0]

    with_runner(story)


def test_a_plan_that_cannot_be_made_is_refused(smollm2_path: Path, rpc_server: RpcServer) -> None:
    async def story(runner: Runner) -> None:
        spec = spec_of(smollm2_path, rpc_server.endpoint, main_gpu=4)
        refused = await runner.ask(MakePlan(spec), LoadRefused)
        assert "main_gpu is 4" in refused.problem

    with_runner(story)


def test_the_loss_of_a_server_is_the_end_of_the_runner_and_named(
    smollm2_path: Path, start_rpc_server: Callable[[], RpcServer]
) -> None:
    server = start_rpc_server()

    async def story(runner: Runner) -> None:
        await runner.ask(Load(spec_of(smollm2_path, server.endpoint)), Loaded)
        sampling = SamplingParams(temperature=0, num_predict=400)
        runner.send(Submit(1, RawPrompt("Count to a thousand: one, two,"), sampling, n_ctx=512))
        await runner.next(Progressed)
        server.kill()
        how = await asyncio.wait_for(runner.process.wait(), LIMIT_S)
        assert f"the RPC server {server.endpoint} was lost" in how
        assert "SIGABRT" in how

    with_runner(story)


@pytest.mark.parametrize("kv_cache_type", ["f16", "q8_0"])
def test_a_quantised_kv_cache_leaves_room_on_the_gpu(
    smollm2_path: Path, rpc_server: RpcServer, kv_cache_type: str
) -> None:
    async def story(runner: Runner) -> None:
        spec = spec_of(smollm2_path, rpc_server.endpoint, kv_cache_type=kv_cache_type, n_ctx=4096)
        plan = (await runner.ask(MakePlan(spec), Planned)).plan
        bytes_per_cell = plan.needs["RPC0"].kv_bytes / plan.n_cells
        values = 2 * 30 * 3 * 64
        assert bytes_per_cell == values * (2 if kv_cache_type == "f16" else 34 / 32)

    with_runner(story)
