"""From a fresh process to a loaded one: plans, then the load, or its failure."""

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from localrun.errors import LoadFailed
from localrun.ipc import messages
from localrun.ipc.messages import (
    Load,
    Loaded,
    LoadRefused,
    MakePlan,
    Outbox,
    Planned,
    Progress,
    ToDaemon,
    ToRunner,
)
from localrun.memory import Need, Plan, Split
from localrun.spec import LoadSpec, RunnerInfo, Verdict
from localrun.supervisor.empty import EmptyRunner

SPEC = LoadSpec("/secret/place/m.gguf", "sha256:m", n_ctx=512, n_parallel=2, n_threads=1)
SPLIT = Split(3, ("CUDA0",), (3,))
PLAN = Plan("crowded", SPLIT, {"CUDA0": Need(5)}, {"CUDA0": 4})
INFO = RunnerInfo(512, 2)

Reply = Callable[["ScriptedProcess"], None]


class ScriptedProcess:
    """Stands for the process and its connection at once; plays a reply to each question."""

    pid = 7
    log_tail = ("cannot read /secret/place/m.gguf", "")

    def __init__(self, *replies: Reply) -> None:
        self.connection = self
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sent: list[ToRunner] = []
        self.receive: Any = None
        self.n_kills = 0
        self._replies = list(replies)

    def send(self, message: ToRunner) -> None:
        self.sent.append(message)
        if self._replies:
            asyncio.get_running_loop().call_soon(self._replies.pop(0), self)

    def kill(self) -> None:
        self.n_kills += 1
        self.die()

    def die(self) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    async def wait(self) -> str:
        await asyncio.shield(self.closed)
        return "it was ended by SIGKILL"

    async def close(self) -> None:
        self.kill()


def says(*items: ToDaemon) -> Reply:
    return lambda process: process.receive(Outbox(items))


def with_runner(
    story: Callable[[EmptyRunner, Any], Coroutine[Any, Any, None]],
    *replies: Reply,
    stall_timeout_s: float = 60.0,
) -> list[tuple[LoadSpec, Verdict]]:
    """Runs `story(runner, process)`; returns the verdicts that were reported."""
    verdicts: list[tuple[LoadSpec, Verdict]] = []

    async def run() -> None:
        process: Any = ScriptedProcess(*replies)
        runner = EmptyRunner(process, stall_timeout_s, lambda *found: verdicts.append(found))
        await story(runner, process)
        await runner.close()

    asyncio.run(asyncio.wait_for(run(), 30))
    return verdicts


def test_plans_are_made_until_one_is_carried_out() -> None:
    async def story(runner: EmptyRunner, process: Any) -> None:
        assert await runner.plan(SPEC, {"CUDA0": 9}) == PLAN
        assert await runner.plan(SPEC, {}) == PLAN
        client = await runner.load(SPEC, SPLIT)
        assert client.info == INFO
        assert process.sent == [MakePlan(SPEC, {"CUDA0": 9}), MakePlan(SPEC), Load(SPEC, SPLIT)]
        assert process.n_kills == 0
        await client.close()

    assert with_runner(story, says(Planned(PLAN)), says(Planned(PLAN)), says(Loaded(INFO))) == []


def test_a_verdict_is_handed_on_with_what_was_loaded() -> None:
    verdict = Verdict("split", flash_attention=True)

    async def story(runner: EmptyRunner, process: Any) -> None:
        client = await runner.load(SPEC)
        process.receive(Outbox((messages.Tested(verdict),)))
        await client.close()

    assert with_runner(story, says(Loaded(INFO))) == [(SPEC, verdict)]


@pytest.mark.parametrize("is_load", [False, True])
@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (says(LoadRefused("the scales are missing")), "the scales are missing"),
        (ScriptedProcess.die, "ended while loading; it was ended by SIGKILL"),
        (says(Progress(0.5)), "no progress for 0.05 s"),
    ],
)
def test_a_failure_says_why_and_leaves_no_process(
    is_load: bool, reply: Reply, problem: str
) -> None:
    async def story(runner: EmptyRunner, process: Any) -> None:
        with pytest.raises(LoadFailed) as failed:
            await (runner.load(SPEC, SPLIT) if is_load else runner.plan(SPEC, {}))
        assert problem in failed.value.problem
        assert failed.value.log_tail == ("cannot read the file",)
        assert process.closed.done()

    with_runner(story, reply, stall_timeout_s=0.05)


def test_a_slow_load_that_goes_on_is_not_given_up() -> None:
    async def story() -> None:
        now_s = 0.0
        process: Any = ScriptedProcess()
        runner = EmptyRunner(process, 0.01, clock_s=lambda: now_s)
        loading = asyncio.create_task(runner.load(SPEC))
        for _ in range(10):
            await asyncio.sleep(0.01)
            assert not loading.done()
            process.receive(Outbox((Progress(0.1),)))
            now_s += 0.009
        now_s += 0.01
        with pytest.raises(LoadFailed, match="no progress"):
            await loading

    asyncio.run(asyncio.wait_for(story(), 30))


def test_without_a_limit_it_waits() -> None:
    async def story(runner: EmptyRunner, process: Any) -> None:
        client = await runner.load(SPEC)
        await client.close()

    with_runner(story, says(Loaded(INFO)), stall_timeout_s=math.inf)


def test_a_cancelled_question_leaves_it_to_the_caller_to_close() -> None:
    async def story(runner: EmptyRunner, process: Any) -> None:
        loading = asyncio.create_task(runner.load(SPEC))
        await asyncio.sleep(0)
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        await runner.close()
        await runner.close()
        says(Loaded(INFO))(process)  # too late to matter
        assert process.closed.done()

    with_runner(story)
