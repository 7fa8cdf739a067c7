"""The daemon's side of one runner: loads the model, then carries many requests over one socket."""

import asyncio
import itertools
import logging
import math
from collections.abc import AsyncIterator

import msgspec

from localrun.core import Done, Event, LoadSpec, Prompt, RunnerInfo, SamplingParams
from localrun.errors import (
    BadRequest,
    LoadFailed,
    LocalrunError,
    Phase,
    RunnerLost,
    TemplateTimeout,
    from_fields,
)
from localrun.ipc.framing import FrameDecoder, FrameTooLarge, encode_frame
from localrun.ipc.messages import (
    Admitted,
    Cancel,
    Failed,
    Load,
    Loaded,
    LoadRefused,
    Outbox,
    Progress,
    Progressed,
    Rendering,
    Submit,
    ToDaemon,
    ToRunner,
    Waiting,
    decode_for_daemon,
    encode,
)
from localrun.supervisor.process import RunnerProcess

_log = logging.getLogger(__name__)

_READ_BYTES = 64 * 1024

# Rendering a conversation takes milliseconds; what is still at it after this never ends.
TEMPLATE_TIMEOUT_S = 10.0


class RequestStream:
    """What a runner says about one request. One reader; `close` cancels what still runs."""

    def __init__(self, request_id: int, client: "RunnerClient") -> None:
        self.id = request_id
        self.phase: Phase = "waiting"
        self._client = client
        self._queue: asyncio.Queue[Event | LocalrunError] = asyncio.Queue()
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_over = False

    async def accepted(self) -> None:
        """Returns when the prompt is rendered and fits. Raises what the runner refused it with."""
        await asyncio.shield(self._accepted)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        if self._is_over:
            raise StopAsyncIteration
        event = await self._queue.get()
        if isinstance(event, LocalrunError):
            self._is_over = True
            raise event
        self._is_over = isinstance(event, Done)
        return event

    def close(self) -> None:
        """Nobody reads on: cancels the request if it still runs. Idempotent."""
        self._is_over = True
        self._client.forget(self.id)

    # ---- called by the client

    def put(self, event: Event) -> None:
        """Hands on a piece of the answer or its end."""
        self._queue.put_nowait(event)

    def accept(self) -> None:
        """The prompt is in the queue of the engine."""
        self.phase = "waiting"
        if not self._accepted.done():
            self._accepted.set_result(None)

    def fail(self, error: LocalrunError) -> None:
        """Ends the stream with `error`, before or after it was accepted."""
        if not self._accepted.done():
            self._accepted.set_exception(error)
            # Whoever waits gets it; if the reader has left, nobody has to.
            self._accepted.exception()
        self._queue.put_nowait(error)


class RunnerClient:
    """A loaded runner. Create with `launch`; ends with `close` or with the death of the process."""

    def __init__(
        self, process: RunnerProcess, info: RunnerInfo, frames: "_Frames", stall_timeout_s: float
    ) -> None:
        self.info = info
        self.n_running = 0
        self._stall_timeout_s = stall_timeout_s
        self._heard_at_s = 0.0
        self._process = process
        self._frames = frames
        self._ids = itertools.count(1)
        self._streams: dict[int, RequestStream] = {}
        self._render_timers: dict[int, asyncio.TimerHandle] = {}
        self._overdue: int | None = None  # the request whose template ran past its limit
        self._reading = asyncio.create_task(self._read())
        self._watching = asyncio.create_task(self._watch())

    @classmethod
    async def launch(cls, spec: LoadSpec, *, stall_timeout_s: float) -> "RunnerClient":
        """Starts a runner and loads `spec`.

        `stall_timeout_s` is how long the load, and later every step, may go without a sign of
        life, not how long the whole may take.
        Raises LoadFailed. A cancelled launch ends the process.
        """
        try:
            process = await RunnerProcess.spawn()
        except OSError as error:
            raise LoadFailed(f"no process could be started: {error.strerror}") from None
        frames = _Frames(process.reader)
        try:
            _send(process, Load(spec))
            info = await _await_loaded(frames, stall_timeout_s)
        except _NotLoaded as error:
            problem = error.problem
            if error.is_death:
                problem = f"{problem}; {await process.wait()}"
            else:
                process.kill()
                await process.wait()
            raise LoadFailed(problem, _quotable(process.log_tail, spec)) from None
        except BaseException:
            process.kill()
            raise
        return cls(process, info, frames, stall_timeout_s)

    @property
    def pid(self) -> int:
        """The runner's process id."""
        return self._process.pid

    @property
    def is_lost(self) -> bool:
        """True once the process has ended."""
        return self._reading.done()

    def submit(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        n_ctx: int,
        template: str | None = None,
        return_context: bool = False,
    ) -> RequestStream:
        """Sends a request. Raises BadRequest when it is too large to be sent."""
        if not self._streams:
            self._heard_at_s = asyncio.get_running_loop().time()
        stream = RequestStream(next(self._ids), self)
        message = Submit(stream.id, prompt, sampling, n_ctx, template, return_context)
        if self.is_lost:
            stream.fail(RunnerLost("waiting", "it had ended before the request reached it"))
            return stream
        try:
            _send(self._process, message)
        except FrameTooLarge as error:
            raise BadRequest("", f"the request is too large: {error}") from None
        self._streams[stream.id] = stream
        return stream

    def forget(self, request_id: int) -> None:
        """Cancels the request unless it is over."""
        if self._streams.pop(request_id, None) and not self.is_lost:
            _send(self._process, Cancel(request_id))

    async def wait_lost(self) -> None:
        """Returns when the process has ended, for whatever reason, and every stream knows."""
        await asyncio.shield(self._reading)

    async def close(self) -> None:
        """Ends the process. Streams that still run fail with RunnerLost. Idempotent."""
        await self._process.close()
        await asyncio.shield(self._reading)

    # ---- what the runner says

    async def _read(self) -> None:
        """Hands out what the runner says until it has ended; then every stream learns how."""
        loop = asyncio.get_running_loop()
        try:
            async for outbox in self._frames:
                self.n_running = outbox.n_running
                self._heard_at_s = loop.time()
                for item in outbox.items:
                    self._handle(item)
        except (FrameTooLarge, msgspec.DecodeError) as error:
            _log.error("runner %d broke the protocol: %s", self.pid, error)
        finally:
            self._process.kill()
            self._fail_streams(await self._process.wait())

    def _fail_streams(self, how: str) -> None:
        self._watching.cancel()
        for timer in self._render_timers.values():
            timer.cancel()
        if self._streams:
            _log.warning(
                "runner %d is gone with %d requests: %s", self.pid, len(self._streams), how
            )
            for line in self._process.log_tail:
                _log.warning("runner %d: %s", self.pid, line)
        if self._overdue is not None:
            how = "it had to be ended because a chat template did not come back"
        for stream in self._streams.values():
            is_culprit = stream.id == self._overdue
            stream.fail(
                TemplateTimeout(TEMPLATE_TIMEOUT_S) if is_culprit else RunnerLost(stream.phase, how)
            )
        self._streams.clear()

    async def _watch(self) -> None:
        """Ends a runner that has requests and shows no sign of life: it would hang them for ever.

        A wedged driver and a stopped process look the same from here.
        """
        loop = asyncio.get_running_loop()
        if self._stall_timeout_s == math.inf:
            return
        while True:
            silent_s = loop.time() - self._heard_at_s if self._streams else 0.0
            if silent_s >= self._stall_timeout_s:
                _log.error("runner %d: no sign of life for %g s", self.pid, silent_s)
                self._process.kill()
                return
            await asyncio.sleep(self._stall_timeout_s - silent_s)

    def _handle(self, item: ToDaemon) -> None:
        if isinstance(item, Progress | Loaded | LoadRefused):
            _log.error("runner %d sent %s after loading", self.pid, type(item).__name__)
            return
        # The deadline of a template holds whether or not somebody still waits for its result.
        if isinstance(item, Rendering):
            self._start_render_timer(item.id)
        elif isinstance(item, Waiting | Failed):
            self._stop_render_timer(item.id)
        if stream := self._streams.get(item.id):
            self._hand_on(item, stream)

    def _hand_on(self, item: ToDaemon, stream: RequestStream) -> None:
        match item:
            case Rendering():
                stream.phase = "rendering"
            case Waiting():
                stream.accept()
            case Admitted():
                stream.phase = "prefill"
            case Progressed(event=event):
                stream.phase = "decode"
                if isinstance(event, Done):
                    del self._streams[stream.id]
                stream.put(event)
            case Failed(kind=kind, fields=fields):
                del self._streams[stream.id]
                stream.fail(from_fields(kind, fields))

    def _start_render_timer(self, request_id: int) -> None:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(TEMPLATE_TIMEOUT_S, self._render_overdue, request_id)
        self._render_timers[request_id] = timer

    def _stop_render_timer(self, request_id: int) -> None:
        if timer := self._render_timers.pop(request_id, None):
            timer.cancel()

    def _render_overdue(self, request_id: int) -> None:
        self._overdue = request_id
        self._process.kill()


class _NotLoaded(Exception):
    def __init__(self, problem: str, *, is_death: bool = False) -> None:
        super().__init__(problem)
        self.problem = problem
        self.is_death = is_death


async def _await_loaded(frames: "_Frames", stall_timeout_s: float) -> RunnerInfo:
    while True:
        try:
            outbox = await asyncio.wait_for(anext(frames), stall_timeout_s)
        except TimeoutError:
            raise _NotLoaded(f"no progress for {stall_timeout_s:g} s") from None
        except StopAsyncIteration:
            raise _NotLoaded("the runner ended while loading", is_death=True) from None
        for item in outbox.items:
            match item:
                case Loaded(info=info):
                    return info
                case LoadRefused(problem=problem):
                    raise _NotLoaded(problem)
                case Progress():
                    pass


class _Frames:
    """The runner's frames until the end of the stream."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._decoder = FrameDecoder()
        self._ready: list[Outbox] = []

    def __aiter__(self) -> "_Frames":
        return self

    async def __anext__(self) -> Outbox:
        while not self._ready:
            try:
                data = await self._reader.read(_READ_BYTES)
            except ConnectionError:
                data = b""
            if not data:
                raise StopAsyncIteration
            self._ready = [decode_for_daemon(payload) for payload in self._decoder.feed(data)]
        return self._ready.pop(0)


def _send(process: RunnerProcess, message: ToRunner) -> None:
    """Queues a message; a write to a dead runner is noticed by the reader."""
    process.writer.write(encode_frame(encode(message)))


def _quotable(lines: tuple[str, ...], spec: LoadSpec) -> tuple[str, ...]:
    """Log lines without the path of the weights, which is nobody's business but ours."""
    return tuple(line.replace(spec.weights_path, "the file") for line in lines if line.strip())
