"""Which models are in memory: the one owner of that state.

A single task handles events, one at a time and without awaiting anything in between; loads and
unloads run in tasks of their own and come back as events. What others see is a copy. A model
that must go is `stopping`: it takes no new leases, ends when its last one does, and requests for
it wait for the next load.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from localrun.core import LoadSpec, Resident, RunnerInfo, RunnerStats
from localrun.errors import LoadFailed, LocalrunError, ShuttingDown
from localrun.residency.keep_alive import effective_s, next_expiry_s
from localrun.residency.policy import Evict, Held, Start, State, Use, decide
from localrun.residency.queue import Limit, Waiter, WaitingLine
from localrun.units import FOREVER

_log = logging.getLogger(__name__)


class Runner(Protocol):
    """A loaded model, as far as residency cares."""

    @property
    def info(self) -> RunnerInfo:
        """What it holds."""
        ...

    @property
    def stats(self) -> RunnerStats | None:
        """What it has counted, as of late; None until it has said so."""
        ...

    @property
    def n_running(self) -> int:
        """Sequences that have a slot now."""
        ...

    @property
    def is_lost(self) -> bool:
        """True once the process has ended."""
        ...

    async def wait_lost(self) -> None:
        """Returns when the process has ended."""
        ...

    async def close(self) -> None:
        """Ends the process. Idempotent."""
        ...


R = TypeVar("R", bound=Runner)


@dataclass(eq=False)
class _Entry(Generic[R]):
    """A model in memory, or on its way in or out. Written by the owner task only."""

    spec: LoadSpec
    model: str
    keep_alive_s: float
    state: State = "loading"
    runner: R | None = None
    n_leases: int = 0
    last_used_s: float = 0.0

    @property
    def expires_s(self) -> float:
        """When an idle model is to go, on the owner's clock; `FOREVER` while it is in use."""
        if self.state != "ready" or self.n_leases:
            return FOREVER
        return self.last_used_s + self.keep_alive_s

    @property
    def n_slots(self) -> int:
        return self.runner.info.n_slots if self.runner else 0

    @property
    def n_without_slot(self) -> int:
        return max(0, self.n_leases - self.n_slots)

    def held(self) -> Held:
        """What the policy sees."""
        return Held(self.spec, self.state, self.n_leases, self.keep_alive_s, self.last_used_s)


class Lease(Generic[R]):
    """The right to use a ready runner. Close it exactly when the request is over."""

    def __init__(self, runner: R, release: Callable[[], None]) -> None:
        self.runner = runner
        self._release: Callable[[], None] | None = release

    def close(self) -> None:
        """Gives the lease back. Idempotent."""
        if self._release is not None:
            self._release()
            self._release = None


class Residency(Generic[R]):
    """Leases of loaded models. `run` is the owner task; the other methods are called by anyone."""

    def __init__(
        self,
        launch: Callable[[LoadSpec], Awaitable[R]],
        *,
        max_loaded: int,
        max_queue: int,
        keep_alive_s: float,
        clock_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._launch = launch
        self._max_loaded = max_loaded
        self._default_keep_alive_s = keep_alive_s
        self._clock_s = clock_s
        self._wall_s = wall_s
        self._limit = Limit(max_queue)
        self._events: asyncio.Queue[Callable[[], None]] = asyncio.Queue()
        self._entries: dict[str, _Entry[R]] = {}
        self._line: WaitingLine[Lease[R]] = WaitingLine()
        self._effects: set[asyncio.Task[None]] = set()
        self._is_closing = False

    # ---- for everyone

    async def lease(self, spec: LoadSpec, model: str, keep_alive_s: float | None) -> Lease[R]:
        """A lease on a runner that holds `spec`, loading it if need be.

        A caller that is cancelled leaves the line; a load that has begun goes on without it.
        Raises QueueFull, LoadFailed, ShuttingDown.
        """
        future: asyncio.Future[Lease[R]] = asyncio.get_running_loop().create_future()
        waiter = Waiter(spec, model, keep_alive_s, future)
        self._post(lambda: self._arrive(waiter))
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and not future.exception():
                future.result().close()
            raise

    def unload(self, key: str) -> None:
        """Lets the model go as soon as nobody uses it; a model that is not loaded is no error."""
        self._post(lambda: self._let_go(key))

    def allow(self, max_loaded: int) -> None:
        """Lets so many models be in memory at once from now on. None has to go for it."""

        def apply() -> None:
            self._max_loaded = max_loaded

        self._post(apply)

    def resident(self) -> tuple[Resident, ...]:
        """The models in memory, the one that stays longest first."""
        models = [self._describe(entry) for entry in self._entries.values()]
        return tuple(sorted(models, key=lambda model: -model.expires_at_s))

    async def run(self) -> None:
        """The owner task: applies events and lets idle models go when their time is up."""
        while True:
            await self._apply_next()
            while not self._events.empty():
                self._events.get_nowait()()
            self._drop_lost()
            # Serving first: a model whose time is up stays when somebody wants it.
            self._serve_line()
            self._expire()

    async def close(self) -> None:
        """Ends every runner, loaded or loading. Called after the owner task has ended."""
        self._refuse_line()
        runners = [entry.runner for entry in self._entries.values() if entry.runner]
        await asyncio.gather(*(runner.close() for runner in runners), return_exceptions=True)
        for effect in self._effects:
            effect.cancel()
        await asyncio.gather(*self._effects, return_exceptions=True)

    def refuse_waiting(self) -> None:
        """Shutdown has begun: nobody new gets a lease, and those who wait are told."""
        self._is_closing = True
        self._post(self._refuse_line)

    # ---- the owner task

    def _post(self, apply: Callable[[], None]) -> None:
        self._events.put_nowait(apply)

    async def _apply_next(self) -> None:
        """Applies the next event, or returns when a model's time is up."""
        wait_s = next_expiry_s(e.expires_s for e in self._entries.values()) - self._clock_s()
        try:
            # asyncio refuses infinity; a day is as good.
            event = await asyncio.wait_for(self._events.get(), min(max(0.0, wait_s), 86400.0))
        except TimeoutError:
            return
        event()

    def _arrive(self, waiter: Waiter[Lease[R]]) -> None:
        if self._is_closing:
            waiter.refuse(ShuttingDown())
            return
        entry = self._entries.get(waiter.spec.key)
        usable = entry if entry and entry.state == "ready" else None
        if usable is None or usable.n_leases >= usable.n_slots:
            n_waiting = len(self._line)
            n_waiting += sum(e.n_without_slot for e in self._entries.values())
            n_slots = usable.n_slots if usable else waiter.spec.n_parallel
            try:
                self._limit.check(n_waiting, n_slots)
            except LocalrunError as error:
                waiter.refuse(error)
                return
        self._line.join(waiter)
        # At once, so that the next arrival finds its place counted.
        self._drop_lost()
        self._serve_line()

    def _drop_lost(self) -> None:
        for entry in list(self._entries.values()):
            if entry.runner is not None and entry.runner.is_lost:
                self._remove(entry)

    def _serve_line(self) -> None:
        """Grants what can be granted, starts and evicts for the others, in order of arrival."""
        self._line.drop_left()
        has_room_to_make = True
        for waiter in self._line:
            held = [entry.held() for entry in self._entries.values()]
            match decide(waiter.spec, held, self._max_loaded):
                case Use():
                    self._grant(waiter)
                case Start() if has_room_to_make:
                    self._start(waiter)
                case Evict(key=key) if has_room_to_make:
                    self._let_go(key)
                    # The room that becomes free belongs to this one, not to who stands behind.
                    has_room_to_make = False
                case _:
                    has_room_to_make &= waiter.spec.key in self._entries

    def _grant(self, waiter: Waiter[Lease[R]]) -> None:
        entry = self._entries[waiter.spec.key]
        assert entry.runner is not None
        self._line.leave(waiter)
        entry.n_leases += 1
        entry.keep_alive_s = effective_s(
            waiter.keep_alive_s, entry.keep_alive_s, self._default_keep_alive_s
        )
        began_s = self._clock_s()
        waiter.grant(
            Lease(entry.runner, lambda: self._post(lambda: self._end_lease(entry, began_s)))
        )

    def _end_lease(self, entry: _Entry[R], began_s: float) -> None:
        now_s = self._clock_s()
        self._limit.observe(now_s - began_s)
        entry.n_leases -= 1
        entry.last_used_s = now_s
        if entry.state == "stopping" and entry.n_leases == 0:
            self._stop(entry)

    def _expire(self) -> None:
        now_s = self._clock_s()
        for entry in list(self._entries.values()):
            if entry.expires_s <= now_s:
                self._let_go(entry.spec.key)

    # ---- loading and unloading

    def _start(self, waiter: Waiter[Lease[R]]) -> None:
        spec = waiter.spec
        keep_alive_s = effective_s(waiter.keep_alive_s, None, self._default_keep_alive_s)
        entry: _Entry[R] = _Entry(spec, waiter.model, keep_alive_s)
        self._entries[spec.key] = entry
        _log.info("loading %s: window %d, threads %d", waiter.model, spec.n_ctx, spec.n_threads)
        self._spawn(self._load(entry), f"load {spec.key}")

    async def _load(self, entry: _Entry[R]) -> None:
        try:
            runner = await self._launch(entry.spec)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear of it
            failure = _load_failure(error)
            self._post(lambda: self._not_loaded(entry, failure))
            return
        self._post(lambda: self._loaded(entry, runner))
        await runner.wait_lost()
        self._post(lambda: self._remove(entry))

    def _loaded(self, entry: _Entry[R], runner: R) -> None:
        entry.runner = runner
        entry.last_used_s = self._clock_s()
        if entry.state == "loading":
            entry.state = "ready"
        else:
            self._stop(entry)

    def _not_loaded(self, entry: _Entry[R], error: LocalrunError) -> None:
        _log.warning("loading %s failed: %s", entry.model, error)
        self._remove(entry)
        for waiter in self._line:
            if waiter.spec.key == entry.spec.key:
                self._line.leave(waiter)
                waiter.refuse(error)

    def _let_go(self, key: str) -> None:
        entry = self._entries.get(key)
        if entry is None or entry.state == "stopping":
            return
        was_ready = entry.state == "ready"
        entry.state = "stopping"
        if was_ready and entry.n_leases == 0:
            self._stop(entry)

    def _stop(self, entry: _Entry[R]) -> None:
        assert entry.runner is not None
        _log.info("unloading %s", entry.model)
        self._spawn(entry.runner.close(), f"stop {entry.spec.key}")

    def _remove(self, entry: _Entry[R]) -> None:
        # A lost runner may have been replaced already by a new load of the same model.
        if self._entries.get(entry.spec.key) is entry:
            del self._entries[entry.spec.key]

    def _refuse_line(self) -> None:
        for waiter in self._line:
            self._line.leave(waiter)
            waiter.refuse(ShuttingDown())

    def _spawn(self, effect: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(effect, name=name)
        self._effects.add(task)
        task.add_done_callback(self._effects.discard)

    def _describe(self, entry: _Entry[R]) -> Resident:
        remaining_s = max(0.0, entry.expires_s - self._clock_s())
        if entry.state != "ready" or entry.n_leases:
            remaining_s = entry.keep_alive_s
        waiting = sum(1 for waiter in self._line if waiter.spec.key == entry.spec.key)
        return Resident(
            key=entry.spec.key,
            model=entry.model,
            state=entry.state,
            expires_at_s=self._wall_s() + remaining_s,
            n_busy=entry.runner.n_running if entry.runner else 0,
            n_queued=waiting + entry.n_without_slot,
            info=entry.runner.info if entry.runner else None,
            stats=entry.runner.stats if entry.runner else None,
        )


def _load_failure(error: Exception) -> LocalrunError:
    if isinstance(error, LocalrunError):
        return error
    _log.error("a load failed in an unexpected way", exc_info=error)
    return LoadFailed("an internal error; the daemon's log says which")
