"""The daemon's side of one loaded runner: carries many requests over one socket."""

import asyncio
import itertools
import logging
import math
from collections.abc import Callable

import msgspec

from localrun.core import Done, Event, Question, Reply
from localrun.errors import (
    BadRequest,
    LocalrunError,
    Phase,
    RunnerLost,
    TemplateTimeout,
    from_fields,
)
from localrun.ipc.framing import FrameTooLarge
from localrun.ipc.messages import (
    Admitted,
    Answered,
    Ask,
    Cancel,
    DevicesListed,
    Failed,
    Loaded,
    LoadRefused,
    Outbox,
    Pace,
    Planned,
    Progress,
    Progressed,
    Rendered,
    Rendering,
    Resized,
    Share,
    Submit,
    Tested,
    ToDaemon,
    Waiting,
)
from localrun.spec import RunnerInfo, RunnerStats, Verdict
from localrun.supervisor.process import RunnerProcess
from localrun.supervisor.stream import RequestStream

_log = logging.getLogger(__name__)

# Rendering a conversation takes milliseconds; what is still at it after this never ends.
TEMPLATE_TIMEOUT_S = 10.0


class RunnerClient:
    """A loaded runner, made by `EmptyRunner.load`; ends with `close` or with its process."""

    def __init__(
        self,
        process: RunnerProcess,
        info: RunnerInfo,
        stall_timeout_s: float,
        on_tested: Callable[[Verdict], object] = lambda _verdict: None,
    ) -> None:
        self.info = info
        self.stats: RunnerStats | None = None
        self.n_running = 0
        # Called whenever `is_active` or `cpu` may have changed, and at the end. May be replaced.
        self.on_activity: Callable[[], object] = lambda: None
        self._on_tested = on_tested
        self._stall_timeout_s = stall_timeout_s
        self._heard_at_s = 0.0
        self._process = process
        self._connection = process.connection
        self._connection.receive = self._receive
        self._loop = asyncio.get_running_loop()
        self._ids = itertools.count(1)
        self._streams: dict[int, RequestStream] = {}
        self._answers: dict[int, asyncio.Future[Reply]] = {}
        self._render_timers: dict[int, asyncio.TimerHandle] = {}
        self._ended_by: LocalrunError | None = None
        self._overdue: int | None = None  # the request whose template ran past its limit
        self._ending = asyncio.create_task(self._end())
        self._watching = asyncio.create_task(self._watch())

    @property
    def pid(self) -> int:
        """The runner's process id."""
        return self._process.pid

    @property
    def is_lost(self) -> bool:
        """True once the process has ended, or is about to."""
        return self._connection.closed.done()

    @property
    def is_active(self) -> bool:
        """True while it has requests."""
        return bool(self._streams or self._answers)

    @property
    def cpu(self) -> int | None:
        """Where its engine computes, as it said last; see `RunnerStats.cpu`."""
        return self.stats.cpu if self.stats else None

    def share(self, n_active: int, siblings: tuple[int, ...]) -> None:
        """Tells it who else computes; see `Share`."""
        self._connection.send(Share(n_active, siblings))

    def submit(self, request: Submit) -> RequestStream:
        """Sends a request, under an id of its own. Raises BadRequest when it is too large."""
        stream = RequestStream(next(self._ids), self._forget, self._pace)
        if self.is_lost:
            stream.fail(RunnerLost("waiting", "it had ended before the request reached it"))
            return stream
        message = msgspec.structs.replace(request, id=stream.id)
        if not self._streams:
            self._heard_at_s = self._loop.time()
        self._streams[stream.id] = stream
        # Before it, so that already its first step has the right number of threads.
        self.on_activity()
        try:
            self._connection.send(message)
        except FrameTooLarge as error:
            del self._streams[stream.id]
            self.on_activity()
            raise BadRequest("", f"the request is too large: {error}") from None
        return stream

    async def ask(self, question: Question) -> Reply:
        """The answer to a question about text. Raises BadRequest, RunnerLost, EngineFailed …

        A caller that is cancelled ends the work.
        """
        if self.is_lost:
            raise RunnerLost("waiting", "it had ended before the request reached it")
        request_id = next(self._ids)
        answer: asyncio.Future[Reply] = self._loop.create_future()
        if not self._streams and not self._answers:
            self._heard_at_s = self._loop.time()
        self._answers[request_id] = answer
        self.on_activity()
        try:
            self._connection.send(Ask(request_id, question))
            return await answer
        except FrameTooLarge as error:
            raise BadRequest("", f"the request is too large: {error}") from None
        except asyncio.CancelledError:
            if not self.is_lost:
                self._connection.send(Cancel(request_id))
            raise
        finally:
            del self._answers[request_id]
            self.on_activity()

    def _forget(self, request_id: int) -> None:
        if self._streams.pop(request_id, None) and not self.is_lost:
            self._connection.send(Cancel(request_id))
            self.on_activity()

    def _pace(self, request_id: int, is_paused: bool) -> None:
        if request_id in self._streams and not self.is_lost:
            self._heard_at_s = self._loop.time()
            self._connection.send(Pace(request_id, is_paused))

    async def wait_lost(self) -> None:
        """Returns when the process has ended, for whatever reason, and every stream knows."""
        await asyncio.shield(self._ending)

    async def close(self, error: LocalrunError | None = None) -> None:
        """Ends the process, and what still runs with `error`, else RunnerLost. Idempotent."""
        self._ended_by = self._ended_by or error
        await self._process.close()
        await asyncio.shield(self._ending)

    # ---- what the runner says

    def _receive(self, outbox: Outbox) -> None:
        self.n_running = outbox.n_running
        if outbox.stats is not None:
            has_moved = outbox.stats.cpu != self.cpu
            self.stats = outbox.stats
            if has_moved:
                self.on_activity()
        self._heard_at_s = self._loop.time()
        for item in outbox.items:
            self._handle(item)
        if not self._streams:
            self.on_activity()

    def _handle(self, item: ToDaemon) -> None:
        if isinstance(item, Progressed):
            # First, since this is every token.
            if stream := self._streams.get(item.id):
                self._progress(item.event, stream)
            return
        match item:
            case Resized(info=info):
                self.info = info
                _log.info("runner %d: its window is %d tokens now", self.pid, info.n_ctx)
            case Tested(verdict=verdict):
                self._on_tested(verdict)
            case Answered(id=request_id, reply=reply):
                self._stop_render_timer(request_id)
                self._settle(request_id, reply)
            case Failed(id=request_id, kind=kind, fields=fields) if request_id in self._answers:
                self._stop_render_timer(request_id)
                self._settle(request_id, from_fields(kind, fields))
            case Progress() | DevicesListed() | Planned() | Loaded() | LoadRefused():
                _log.error("runner %d sent %s after loading", self.pid, type(item).__name__)
            case _:
                self._follow(item)

    def _settle(self, request_id: int, reply: Reply | LocalrunError) -> None:
        answer = self._answers.get(request_id)
        if answer is None or answer.done():  # who asked has left
            return
        if isinstance(reply, LocalrunError):
            answer.set_exception(reply)
        else:
            answer.set_result(reply)

    def _follow(self, item: Rendering | Rendered | Waiting | Admitted | Failed) -> None:
        # The deadline of a template holds whether or not somebody still waits for its result.
        if isinstance(item, Rendering):
            self._start_render_timer(item.id)
        elif isinstance(item, Rendered | Waiting | Failed):
            self._stop_render_timer(item.id)
        if stream := self._streams.get(item.id):
            self._hand_on(item, stream)

    def _progress(self, event: Event, stream: RequestStream) -> None:
        stream.phase = "decode"
        if isinstance(event, Done):
            del self._streams[stream.id]
        stream.put(event)

    def _hand_on(self, item: ToDaemon, stream: RequestStream) -> None:
        match item:
            case Rendering():
                stream.phase = "rendering"
            case Waiting(n_prompt=n_prompt, loosened=loosened):
                stream.accept(n_prompt, loosened)
            case Admitted():
                stream.phase = "prefill"
            case Failed(kind=kind, fields=fields):
                del self._streams[stream.id]
                stream.fail(from_fields(kind, fields))

    # ---- its end

    async def _end(self) -> None:
        """Waits for the end of the process; then every stream learns of it."""
        await self._connection.closed
        self._process.kill()
        how = await self._process.wait()
        self._watching.cancel()
        for timer in self._render_timers.values():
            timer.cancel()
        if self._streams and self._ended_by is None:
            _log.warning(
                "runner %d is gone with %d requests: %s", self.pid, len(self._streams), how
            )
            for line in self._process.log_tail:
                _log.warning("runner %d: %s", self.pid, line)
        if self._overdue is not None:
            how = "it had to be ended because a chat template did not come back"
        # The culprit hears of it first: it, and no other choice of its answer, says what happens.
        for stream in sorted(self._streams.values(), key=lambda s: s.id != self._overdue):
            stream.fail(self._fate(stream.id, stream.phase, how))
        self._streams.clear()
        for request_id in self._answers:
            self._settle(request_id, self._fate(request_id, "waiting", how))
        self.on_activity()

    def _fate(self, request_id: int, phase: Phase, how: str) -> LocalrunError:
        """What a request ends with whose runner has ended."""
        if request_id == self._overdue:
            return TemplateTimeout(TEMPLATE_TIMEOUT_S)
        return self._ended_by or RunnerLost(phase, how)

    async def _watch(self) -> None:
        """Ends a runner that has requests and shows no sign of life: it would hang them for ever.

        A wedged driver and a stopped process look the same from here.
        """
        if self._stall_timeout_s == math.inf:
            return
        while True:
            # One that has nothing but paused requests rightly says nothing.
            is_working = bool(self._answers) or any(
                not stream.is_paused for stream in self._streams.values()
            )
            silent_s = self._loop.time() - self._heard_at_s if is_working else 0.0
            if silent_s >= self._stall_timeout_s:
                _log.error("runner %d: no sign of life for %g s", self.pid, silent_s)
                self._process.kill()
                return
            await asyncio.sleep(self._stall_timeout_s - silent_s)

    def _start_render_timer(self, request_id: int) -> None:
        timer = self._loop.call_later(TEMPLATE_TIMEOUT_S, self._render_overdue, request_id)
        self._render_timers[request_id] = timer

    def _stop_render_timer(self, request_id: int) -> None:
        if timer := self._render_timers.pop(request_id, None):
            timer.cancel()

    def _render_overdue(self, request_id: int) -> None:
        self._overdue = request_id
        self._process.kill()
