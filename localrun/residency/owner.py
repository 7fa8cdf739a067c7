"""Which models are in memory: the one owner of that state.

A single task handles events, one at a time and without awaiting anything in between; loads and
unloads run in tasks of their own and come back as events. What others see is a copy. A model
that must go is `stopping`: it takes no new leases, ends when its last one does, and requests for
it wait for the next load. One model is loaded at a time, so that its plan stays true.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Generic

from localrun.errors import (
    LoadFailed,
    LocalrunError,
    ModelStopped,
    NotEnoughMemory,
    ShuttingDown,
)
from localrun.memory import Plan
from localrun.residency.clock import Time
from localrun.residency.entry import EmptyRunner, Entry, Lease, R
from localrun.residency.events import Effects, Events
from localrun.residency.keep_alive import effective_s, next_expiry_s
from localrun.residency.memory import Returning, not_enough, returning, total
from localrun.residency.policy import Evict, Load, Refuse, Start, Use, Wait, admit, decide
from localrun.residency.queue import Limit, Waiter, WaitingLine
from localrun.spec import LoadSpec, Resident
from localrun.units import FOREVER

_log = logging.getLogger(__name__)

# How long the answers of a model have that somebody stops. Most end by themselves; one that does
# not must not keep the model, its memory and its name for as long as it likes.
STOP_GRACE_S = 30.0

# How often a plan is made anew while a GPU gives memory back, which it does not announce.
_RETURN_POLL_S = 0.25

# asyncio's timers stand still while the machine sleeps; after that a model whose time is up stays
# at most this much longer.
_RECHECK_S = 30.0


class Residency(Generic[R]):
    """Leases of loaded models. `run` is the owner task; the other methods are called by anyone."""

    def __init__(
        self,
        spawn: Callable[[], Awaitable[EmptyRunner[R]]],
        *,
        max_loaded: int,
        max_queue: int,
        keep_alive_s: float,
        time: Time | None = None,
    ) -> None:
        self._spawn_runner = spawn
        self._max_loaded = max_loaded
        self._default_keep_alive_s = keep_alive_s
        self._time = time or Time()
        self._limit = Limit(max_queue)
        self._events = Events()
        self._effects = Effects()
        self._entries: dict[str, Entry[R]] = {}
        # By key, of models that are to be loaded again: because they died, or for other options.
        self._keep_alives_s: dict[str, float] = {}
        self._returning: Returning | None = None
        self._line: WaitingLine[Lease[R]] = WaitingLine()
        self._is_closing = False

    # ---- for everyone

    async def lease(self, spec: LoadSpec, model: str, keep_alive_s: float | None) -> Lease[R]:
        """A lease on a runner that holds `spec`, loading it if need be.

        A caller that is cancelled leaves the line; a load that has begun goes on without it.
        Raises QueueFull, LoadFailed, NotEnoughMemory, ShuttingDown.
        """
        future: asyncio.Future[Lease[R]] = asyncio.get_running_loop().create_future()
        waiter = Waiter(spec, model, keep_alive_s, future)
        self._events.post(lambda: self._arrive(waiter))
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and not future.exception():
                future.result().close()
            raise

    def unload(self, key: str) -> None:
        """Lets the model go as soon as nobody uses it; a model that is not loaded is no error.

        Answers that have not ended after STOP_GRACE_S get ModelStopped. A load under way ends at
        once, and those who wait for it get LoadFailed.
        """
        self._events.post(lambda: self._unload(key))

    def allow(self, max_loaded: int) -> None:
        """Lets so many models be in memory at once from now on. None has to go for it."""

        def apply() -> None:
            self._max_loaded = max_loaded

        self._events.post(apply)

    def resident(self) -> tuple[Resident, ...]:
        """The models in memory, the one that stays longest first."""
        now_s, wall_s = self._time.elapsed_s(), self._time.wall_s()
        waiting = Counter(waiter.spec.key for waiter in self._line)
        models = [e.described(now_s, wall_s, waiting[e.spec.key]) for e in self._entries.values()]
        return tuple(sorted(models, key=lambda model: -model.expires_at_s))

    async def run(self) -> None:
        """The owner task: applies events and lets idle models go when their time is up."""
        while True:
            await self._events.apply(self._longest_wait_s())
            self._drop_lost()
            # Serving first: a model whose time is up stays when somebody wants it.
            self._serve_line()
            self._expire()

    async def close(self) -> None:
        """Ends every runner, loaded or loading. Called after the owner task has ended."""
        self._is_closing = True
        await self._effects.cancel()
        # What they have still posted, such as a model that was loaded a moment ago.
        self._events.apply_posted()
        self._refuse_line()
        runners = [entry.runner for entry in self._entries.values() if entry.runner]
        await asyncio.gather(*(runner.close() for runner in runners), return_exceptions=True)
        await self._effects.cancel()

    def refuse_waiting(self) -> None:
        """Shutdown has begun: nobody new gets a lease, and those who wait are told."""
        self._is_closing = True
        self._events.post(self._refuse_line)

    # ---- the owner task

    def _longest_wait_s(self) -> float | None:
        """How long nothing has to happen by itself; None without a model that has an end."""
        expiry_s = next_expiry_s(e.expires_s for e in self._entries.values())
        if expiry_s == FOREVER:
            return None
        return min(max(0.0, expiry_s - self._time.elapsed_s()), _RECHECK_S)

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
        """No lease on a dead runner; its entry goes when the process is reaped."""
        for entry in self._entries.values():
            if entry.state == "ready" and entry.runner is not None and entry.runner.is_lost:
                self._keep_alives_s[entry.spec.key] = entry.keep_alive_s
                entry.state = "stopping"

    def _serve_line(self) -> None:
        """Grants what can be granted, starts and evicts for the others, in order of arrival."""
        self._line.drop_left()
        has_room_to_make = True
        for waiter in self._line:
            held = [entry.as_held() for entry in self._entries.values()]
            match decide(waiter.spec, held, self._max_loaded):
                case Use():
                    self._grant(waiter)
                case Start() if has_room_to_make:
                    self._start(waiter)
                case Evict(key=key, spares=spared) if has_room_to_make:
                    if key == waiter.spec.key:
                        self._let_go_to_reload(self._entries[key])
                    else:
                        self._evict(key, spared, waiter.model)
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
        began_s = self._time.elapsed_s()
        waiter.grant(
            Lease(entry.runner, lambda: self._events.post(lambda: self._end_lease(entry, began_s)))
        )

    def _end_lease(self, entry: Entry[R], began_s: float) -> None:
        now_s = self._time.elapsed_s()
        self._limit.observe(now_s - began_s)
        entry.n_leases -= 1
        entry.last_used_s = now_s
        is_held = self._entries.get(entry.spec.key) is entry
        if not is_held or entry.n_leases:
            return
        if entry.state == "stopping":
            self._stop(entry)
        elif (coming := self._coming) and any(e.is_draining for e in self._entries.values()):
            coming.changed.set()  # this one may go instead

    def _expire(self) -> None:
        now_s = self._time.elapsed_s()
        for entry in list(self._entries.values()):
            if entry.expires_s > now_s:
                continue
            if entry.state == "stopping":
                self._cut_off(entry)
            else:
                self._let_go(entry)

    # ---- loading

    def _start(self, waiter: Waiter[Lease[R]]) -> None:
        spec = waiter.spec
        earlier_s = self._keep_alives_s.pop(spec.key, None)
        keep_alive_s = effective_s(waiter.keep_alive_s, earlier_s, self._default_keep_alive_s)
        entry: Entry[R] = Entry(spec, waiter.model, keep_alive_s)
        self._entries[spec.key] = entry
        _log.info("loading %s: window %d, threads %d", waiter.model, spec.n_ctx, spec.n_threads)
        entry.loading = self._effects.start(self._bring_in(entry), f"load {spec.key}")
        # Not in the task itself: one that is cancelled before its first step runs none of it.
        entry.loading.add_done_callback(partial(self._load_ended, entry))

    def _load_ended(self, entry: Entry[R], task: "asyncio.Task[None]") -> None:
        if task.cancelled():
            self._events.post(lambda: self._remove(entry))

    async def _bring_in(self, entry: Entry[R]) -> None:
        try:
            runner = await self._load(entry)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear of it
            failure = _load_failure(error)
            self._events.post(lambda: self._not_loaded(entry, failure))
        else:
            self._events.post(lambda: self._loaded(entry, runner))

    async def _load(self, entry: Entry[R]) -> R:
        """The loaded runner, once there is room for it; at any other end no process is left."""
        empty = await self._spawn_runner()
        try:
            while True:
                held = await self._events.ask(partial(self._held_beside, entry))
                plan = await empty.plan(entry.spec, held)
                if await self._events.ask(partial(self._may_load, entry, plan)):
                    return await empty.load(entry.spec, plan.split)
                if self._returning is None:
                    await entry.changed.wait()
                else:
                    await self._time.pause(_RETURN_POLL_S)
        except BaseException:
            await empty.close()
            raise

    def _held_beside(self, entry: Entry[R]) -> Mapping[str, int]:
        """What a plan for `entry` must know of all others: it is true until `entry.changed`."""
        entry.changed.clear()
        others = [e.device_bytes for e in self._entries.values() if e is not entry]
        entry.held = total([*others, self._returning.held if self._returning else {}])
        return entry.held

    def _may_load(self, entry: Entry[R], plan: Plan) -> bool:
        """True when `plan` may be carried out; else makes room. Raises NotEnoughMemory."""
        entry.plan = plan
        if self._returning and self._returning.is_over(plan.available, self._time.elapsed_s()):
            self._returning = None
            entry.changed.set()
        others = [e.as_held() for e in self._entries.values() if e is not entry]
        is_current = self._returning is None and not entry.changed.is_set()
        match admit(plan, others, is_current=is_current):
            case Load():
                _log.info("%s: %s", entry.model, "; ".join(plan.reasons) or "it fits")
                entry.is_allocating = True
                return True
            case Refuse():
                raise not_enough(plan, entry.held)
            case Evict(key=key, spares=spared):
                self._evict(key, spared, entry.model)
            case Wait():
                pass
        return False

    def _loaded(self, entry: Entry[R], runner: R) -> None:
        entry.runner = runner
        entry.last_used_s = self._time.elapsed_s()
        self._effects.start(self._watch(entry, runner), f"watch {entry.spec.key}")
        if entry.state == "loading":
            entry.state = "ready"
            # At once: a stop that comes now is for a model in use, whose answers end first.
            self._serve_line()
        else:
            self._stop(entry)

    async def _watch(self, entry: Entry[R], runner: R) -> None:
        await runner.wait_lost()
        self._events.post(lambda: self._remove(entry))

    def _not_loaded(self, entry: Entry[R], error: LocalrunError) -> None:
        _log.warning("loading %s failed: %s", entry.model, error)
        self._remove(entry)
        for waiter in self._line:
            is_same = waiter.spec == entry.spec
            # Who asks for less than what did not fit may have more luck.
            if is_same or not isinstance(error, NotEnoughMemory):
                self._refuse(waiter, entry, error)

    def _refuse(self, waiter: Waiter[Lease[R]], entry: Entry[R], error: LocalrunError) -> None:
        if waiter.spec.key == entry.spec.key:
            self._line.leave(waiter)
            waiter.refuse(error)

    # ---- unloading

    def _unload(self, key: str) -> None:
        self._keep_alives_s.pop(key, None)
        entry = self._entries.get(key)
        if entry is None:
            return
        if entry.state == "loading":
            for waiter in self._line:
                self._refuse(waiter, entry, LoadFailed("it was stopped before it was loaded"))
        if entry.cut_off_s == FOREVER:  # stopping twice gives no more time
            entry.cut_off_s = self._time.elapsed_s() + STOP_GRACE_S
        entry.makes_room = False
        self._let_go(entry)

    def _cut_off(self, entry: Entry[R]) -> None:
        entry.cut_off_s = FOREVER
        if entry.runner is not None:
            _log.warning("%s: %d answers end with it", entry.model, entry.n_leases)
            self._stop(entry, ModelStopped(entry.model, STOP_GRACE_S))

    def _evict(self, key: str, spared: str, wanted: str) -> None:
        entry = self._entries[key]
        if spared:
            _log.info("%s stays, since %s is idle now", self._entries[spared].model, entry.model)
            self._entries[spared].state = "ready"
        if entry.keep_alive_s == FOREVER:
            _log.warning("%s was to stay for ever, but %s needs its place", entry.model, wanted)
        else:
            _log.info("%s makes room for %s", entry.model, wanted)
        entry.makes_room = True
        self._let_go(entry)

    def _let_go_to_reload(self, entry: Entry[R]) -> None:
        _log.info("%s is loaded again, for other options", entry.model)
        self._keep_alives_s[entry.spec.key] = entry.keep_alive_s
        entry.makes_room = False
        self._let_go(entry)

    def _let_go(self, entry: Entry[R]) -> None:
        if entry.state == "stopping":
            return
        was_ready = entry.state == "ready"
        entry.state = "stopping"
        if was_ready and entry.n_leases == 0:
            self._stop(entry)
        elif not was_ready and entry.loading is not None:
            # In vain if it has just ended: then `_loaded` finds that the model is to stop.
            entry.loading.cancel()

    def _stop(self, entry: Entry[R], error: LocalrunError | None = None) -> None:
        assert entry.runner is not None
        _log.info("unloading %s", entry.model)
        self._effects.start(entry.runner.close(error), f"stop {entry.spec.key}")

    def _remove(self, entry: Entry[R]) -> None:
        """Its process is gone."""
        if self._entries.get(entry.spec.key) is not entry:
            return
        if entry.state == "ready":
            self._keep_alives_s[entry.spec.key] = entry.keep_alive_s
        del self._entries[entry.spec.key]
        coming = self._coming
        before = coming.plan.available if coming and coming.plan else None
        now_s = self._time.elapsed_s()
        self._returning = returning(self._returning, entry.device_bytes, before, now_s)
        if coming:
            coming.changed.set()

    @property
    def _coming(self) -> Entry[R] | None:
        """The model that is being loaded."""
        return next((e for e in self._entries.values() if e.state == "loading"), None)

    def _refuse_line(self) -> None:
        for waiter in self._line:
            self._line.leave(waiter)
            waiter.refuse(ShuttingDown())


def _load_failure(error: Exception) -> LocalrunError:
    if isinstance(error, LocalrunError):
        return error
    _log.error("a load failed in an unexpected way", exc_info=error)
    return LoadFailed("an internal error; the daemon's log says which")
