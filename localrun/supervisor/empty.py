"""A runner that holds no model yet: it says how one would fit, and loads it."""

import asyncio
import functools
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from localrun.errors import LoadFailed
from localrun.ipc.messages import (
    Load,
    Loaded,
    LoadRefused,
    MakePlan,
    Outbox,
    Planned,
)
from localrun.memory import Plan, Split
from localrun.spec import LoadSpec, Verdict
from localrun.supervisor.client import RunnerClient
from localrun.supervisor.process import RunnerProcess

_log = logging.getLogger(__name__)

Answer = Planned | Loaded
A = TypeVar("A", Planned, Loaded)


class EmptyRunner:
    """A fresh process. Create with `spawn`; ends with `close`, a failure, or as a `RunnerClient`.

    Every question may take `stall_timeout_s` without a sign of life, however long in all. One
    question at a time. A failed one ends the process and raises LoadFailed; a cancelled one leaves
    the process in no usable state: close it.
    """

    def __init__(
        self,
        process: RunnerProcess,
        stall_timeout_s: float,
        on_tested: Callable[[LoadSpec, Verdict], object] = lambda _spec, _verdict: None,
        on_loaded: Callable[[RunnerClient], object] = lambda _runner: None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._process = process
        self._stall_timeout_s = stall_timeout_s
        self._on_tested = on_tested
        self._on_loaded = on_loaded
        self._clock_s = clock_s
        self._heard_at_s = 0.0
        self._answer: asyncio.Future[Answer] | None = None
        process.connection.receive = self._receive

    @classmethod
    async def spawn(
        cls,
        *,
        stall_timeout_s: float,
        on_tested: Callable[[LoadSpec, Verdict], object] = lambda _spec, _verdict: None,
        on_loaded: Callable[[RunnerClient], object] = lambda _runner: None,
    ) -> "EmptyRunner":
        """Starts a process.

        `on_tested` gets what a self-test of the loaded model finds, `on_loaded` the runner once
        the model is there. Raises LoadFailed.
        """
        try:
            process = await RunnerProcess.spawn()
        except OSError as error:
            raise LoadFailed(f"no process could be started: {error.strerror}") from None
        return cls(process, stall_timeout_s, on_tested, on_loaded)

    async def plan(self, spec: LoadSpec, held: Mapping[str, int]) -> Plan:
        """How `spec` would be loaded now, beside other models' `held` bytes by device name.

        Raises LoadFailed.
        """
        answer = await self._ask(MakePlan(spec, dict(held)), Planned)
        if answer.unreachable:
            _log.warning("RPC servers that do not answer: %s", ", ".join(answer.unreachable))
        return answer.plan

    async def load(self, spec: LoadSpec, split: Split | None = None) -> RunnerClient:
        """Loads `spec` with this split; this object is used up. Raises LoadFailed."""
        answer = await self._ask(Load(spec, split), Loaded)
        on_tested = functools.partial(self._on_tested, spec)
        runner = RunnerClient(self._process, answer.info, self._stall_timeout_s, on_tested)
        self._on_loaded(runner)
        return runner

    async def close(self) -> None:
        """Kills the process and reaps it: nothing in it is worth waiting for. Idempotent."""
        self._process.kill()
        await self._process.wait()

    async def _ask(self, question: MakePlan | Load, kind: type[A]) -> A:
        try:
            answer = await self._answer_to(question)
            if isinstance(answer, kind):
                return answer
            problem = f"it answered with {type(answer).__name__}"
        except _Refused as error:
            problem = error.problem
        except _Ended:
            how = await self._process.wait()
            problem = f"the runner ended while loading; {how}"
        await self.close()
        raise LoadFailed(problem, _quotable(self._process.log_tail, question.spec))

    async def _answer_to(self, question: MakePlan | Load) -> Answer:
        """Raises _Refused, _Ended."""
        connection = self._process.connection
        self._answer = asyncio.get_running_loop().create_future()
        self._heard_at_s = self._clock_s()
        connection.send(question)
        ends = (self._answer, connection.closed)
        timeout_s = self._stall_timeout_s
        while timeout_s > 0:
            limit_s = None if timeout_s == math.inf else timeout_s
            done, _ = await asyncio.wait(ends, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if self._answer in done:
                return self._answer.result()
            if done:
                self._process.kill()
                raise _Ended
            timeout_s = self._heard_at_s + self._stall_timeout_s - self._clock_s()
        raise _Refused(f"no progress for {self._stall_timeout_s:g} s")

    def _receive(self, outbox: Outbox) -> None:
        self._heard_at_s = self._clock_s()
        if self._answer is None or self._answer.done():
            return
        for item in outbox.items:
            match item:
                case Planned() | Loaded():
                    self._answer.set_result(item)
                case LoadRefused(problem=problem):
                    self._answer.set_exception(_Refused(problem))


class _Refused(Exception):
    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class _Ended(Exception):
    """The process hung up before it answered."""


def _quotable(lines: tuple[str, ...], spec: LoadSpec) -> tuple[str, ...]:
    """Log lines without the paths of the weights, which are nobody's business but ours."""
    text = "\n".join(line for line in lines if line.strip())
    for path in (*spec.weights_paths, *spec.adapter_paths):
        text = text.replace(path, "the file")
    return tuple(text.splitlines())
