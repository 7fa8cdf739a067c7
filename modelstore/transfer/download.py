"""One blob on its way here: parts fetched by threads, hashed as they come, repaired if need be.

Owns the state of one transfer: which parts are under way, what has failed, and the rule that a
blob becomes visible only with the right hash. Knows neither registries nor HTTP: bytes come from a
`Source`, and when that fails, from another one that somebody has offered. Others watch it; they
share one instance (see `transfers`).

Parts are handed out in order of offset. The first one goes alone until its answer has begun: a
server that ignores ranges shows itself there, and then this one stream brings the whole file.
"""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from modelstore.blobs import Blobs
from modelstore.digest import Digest
from modelstore.errors import (
    DigestMismatch,
    HostUnreachable,
    RegistryError,
    Stopped,
    StoreError,
    TransferFailed,
)
from modelstore.transfer.choice import Choice, MakeSource
from modelstore.transfer.effort import Effort, may_pass
from modelstore.transfer.follower import Follower, hash_partial
from modelstore.transfer.partial import Partial, locked
from modelstore.transfer.ranges import pieces, repair_order
from modelstore.transfer.source import Source

_log = logging.getLogger(__name__)

# How often the transfer looks after itself; also how long the lock of another process is polled.
_TICK_S = 0.05
# A bar that moves ten times a second moves smoothly.
_PACE_S = 0.1
# After that many wrong guesses a repair tests the hash only at the ends of pieces.
_MAX_EARLY_TESTS = 4


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be fetched: `expected` None means that any content is right.

    `key` names the files on disk meanwhile; `model` is the name that the blob is for.
    """

    key: Digest
    expected: Digest | None
    total: int
    model: str


@dataclass(frozen=True, slots=True)
class State:
    """How far it is; `note` says what is being waited for, if anything."""

    completed: int
    note: str = ""
    digest: Digest | None = None  # of the finished blob


@dataclass(slots=True)
class _Part:
    """A range under way: the bytes from `at` up to `end` are missing."""

    at: int
    end: int
    is_dropped: bool = False


Sink = Callable[[_Part, bytes], None]


class Download:
    """A transfer in a thread of its own, until it is complete, has failed, or is stopped."""

    def __init__(
        self, blobs: Blobs, wanted: Wanted, make_source: MakeSource, effort: Effort
    ) -> None:
        self.wanted = wanted
        self._blobs = blobs
        self._effort = effort
        self._stop = threading.Event()
        self._choice = Choice(self._stop)
        self._choice.offer(wanted.model, make_source)
        self._changed = threading.Condition()
        self._state = State(0)
        self._errand = ""  # the note while bytes arrive
        self._error: Exception | None = None
        self._has_ended = False
        self._parts: deque[_Part] = deque()
        self._active: list[_Part] = []
        self._is_probed = threading.Event()
        self._whole: _Part | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"pull {wanted.key.hex[:12]}", daemon=True
        )

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def offer(self, model: str, make_source: MakeSource) -> None:
        """Adds a source of the same bytes, those of another model; it serves when others fail."""
        self._choice.offer(model, make_source)

    def has_tried(self, model: str) -> bool:
        """Tells whether the source that was offered for `model` has been read from."""
        return self._choice.is_tried(model)

    def stop(self) -> None:
        """Asks it to end soon; what has arrived stays for another time."""
        self._stop.set()

    def join(self, timeout_s: float | None = None) -> None:
        """Waits until it has ended."""
        self._thread.join(timeout_s)

    @property
    def is_over(self) -> bool:
        """True once it has ended, or is about to."""
        return self._stop.is_set() or self._has_ended

    def watch(self, seen: State, timeout_s: float) -> State:
        """The state once it differs from `seen`, or after a while; at most ten times a second.

        Raises what the transfer has failed with.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended, _PACE_S)
            self._changed.wait_for(lambda: self._state != seen or self._has_ended, timeout_s)
            if self._has_ended and self._error is not None:
                raise self._error
            return self._state

    # -- the thread of the transfer

    def _run(self) -> None:
        try:
            digest = self._fetch_blob()
            self._update(completed=self.wanted.total, note="", digest=digest)
        except Exception as error:  # noqa: BLE001 - raised where the transfer is watched
            self._fail(error)
        finally:
            self._stop.set()
            with self._changed:
                self._has_ended = True  # and with it the lock on disk: one may try again at once
                self._changed.notify_all()

    def _fetch_blob(self) -> Digest:
        while True:
            with locked(self._blobs, self.wanted.key) as is_ours:
                if is_ours:
                    return self._fetch_locked()
            self._update(note="another process fetches it")
            self._pause(_TICK_S)

    def _fetch_locked(self) -> Digest:
        wanted, expected = self.wanted, self.wanted.expected
        if expected is not None and self._blobs.exists(expected):
            return expected  # while we waited for the lock
        partial = Partial(self._blobs, wanted.key, wanted.total, wanted.model)
        with contextlib.closing(partial), contextlib.closing(self._choice):
            self._update(completed=partial.n_bytes, note="")
            digest = self._fetch_parts(partial)
            if expected is not None and digest != expected:
                self._repair(partial, expected, digest)
                digest = expected
            partial.publish(digest)
            return digest

    def _fetch_parts(self, partial: Partial) -> Digest:
        gaps = partial.completed.gaps(partial.total)
        self._parts.extend(_Part(*piece) for piece in pieces(gaps, self._effort.part_bytes))
        follower = Follower(partial, self._stop, self._fail)

        def store(part: _Part, chunk: bytes) -> None:
            partial.write(part.at, chunk)
            part.at += len(chunk)
            self._update(completed=partial.n_bytes)

        def restart() -> None:
            partial.forget()
            follower.restart()

        def work() -> None:
            try:
                while (part := self._take()) is not None:
                    self._fetch(part, store, restart)
            except Exception as error:  # noqa: BLE001 - it ends the transfer
                self._fail(error)

        workers = [threading.Thread(target=work, name="pull part", daemon=True)]
        workers[0].start()
        try:
            self._look_after(partial, workers, work)
            digest = follower.finish()
            self._check()
        except BaseException:
            self._stop.set()
            for worker in workers:
                worker.join()
            follower.join()
            with contextlib.suppress(StoreError):  # why it ended counts more
                partial.checkpoint()
            raise
        assert digest is not None  # it is only missing when we were stopped
        return digest

    def _look_after(
        self, partial: Partial, workers: list[threading.Thread], work: Callable[[], None]
    ) -> None:
        """Starts further workers once ranges are known to work, and keeps the journal."""
        saved_at = time.monotonic()
        while alive := [worker for worker in workers if worker.is_alive()]:
            alive[0].join(_TICK_S)
            if self._is_probed.is_set() and len(workers) == 1 and self._whole is None:
                n_more = min(self._effort.n_streams - 1, len(self._parts))
                workers += [
                    threading.Thread(target=work, name="pull part", daemon=True)
                    for _ in range(n_more)
                ]
                for worker in workers[1:]:
                    worker.start()
            if time.monotonic() - saved_at >= self._effort.checkpoint_s:
                partial.checkpoint()
                saved_at = time.monotonic()
            self._check()
        self._check()

    def _take(self) -> _Part | None:
        with self._changed:
            if self._stop.is_set() or not self._parts:
                return None
            part = self._parts.popleft()
            self._active.append(part)
            return part

    # -- one part, with its tries

    def _fetch(self, part: _Part, sink: Sink, restart: Callable[[], None]) -> None:
        n_failures = 0
        while part.at < part.end and not part.is_dropped:
            began = part.at
            origin, source = self._choice.current()
            try:
                self._receive(part, source, sink, restart)
                return
            except StoreError as error:
                if part.is_dropped:
                    return
                is_meant = not may_pass(error)
                if is_meant and not (isinstance(error, RegistryError) and len(self._choice) > 1):
                    raise
                is_fresh = self._choice.pass_on(origin, for_good=is_meant)
                if part.at - began >= self._effort.forgiving_bytes:
                    n_failures = 0
                n_failures += 1
                self._give_up_or_wait(n_failures, error, at_once=is_fresh)

    def _give_up_or_wait(self, n_failures: int, error: StoreError, *, at_once: bool) -> None:
        n_tries = self._effort.tries_after(error)
        if n_failures >= n_tries:
            what = f"a part of blob {self.wanted.key.hex[:12]}"
            raise TransferFailed(what, n_failures, str(error)) from error
        _log.warning("%s: failure %d of a part: %s", self.wanted.model, n_failures, error)
        self._update(note=f"try {n_failures + 1} of {n_tries} after: {error}")
        self._pause(0 if at_once else self._effort.pause_s(n_failures))

    def _receive(
        self, part: _Part, source: Source, sink: Sink, restart: Callable[[], None]
    ) -> None:
        with source.open(part.at, part.end) as delivery:
            if delivery.is_whole and not self._begin_again(part, restart):
                return
            self._is_probed.set()
            for chunk in delivery.chunks:
                if part.is_dropped:
                    return
                self._check()
                sink(part, chunk[: part.end - part.at])
                if self._state.note != self._errand:
                    self._update(note=self._errand)
            # Read to its very end, or the connection could not be used again.
            if part.at < part.end and not part.is_dropped:
                raise HostUnreachable(delivery.host, "the connection ended too early")

    def _begin_again(self, part: _Part, restart: Callable[[], None]) -> bool:
        """The server sends everything: this stream brings all of it, and the others end."""
        with self._changed:
            if self._whole is not None and self._whole is not part:
                part.is_dropped = True
                return False
            self._whole = part
            self._parts.clear()
            for other in self._active:
                other.is_dropped = other is not part
        restart()
        part.at, part.end = 0, self.wanted.total
        return True

    # -- a wrong hash

    def _repair(self, partial: Partial, expected: Digest, found: Digest) -> None:
        """Fetches the file again piece by piece until its hash is right, from every source.

        The protocol has no hash of parts, so what came first is compared with what comes now.
        Raises: DigestMismatch when that does not help; nothing is kept then.
        """
        self._errand = "the checksum is wrong, looking for the part that is"
        self._update(note=self._errand)
        repair = _Repair(partial, lambda: hash_partial(partial, self._stop) == expected)
        self._whole = None
        effort = self._effort
        order = repair_order(partial.total, effort.n_repair_pieces, effort.least_repair_bytes)
        for _ in range(len(self._choice)):
            # Another one first: from here came what is wrong.
            self._choice.pass_on(self._choice.current()[0])
            for start, end in order:
                self._fetch(_Part(start, end), repair.compare, lambda: None)
                self._check()
                if repair.is_right or repair.test():
                    return
        partial.drop()
        raise DigestMismatch(expected.text, found.text)

    # -- state

    def _pause(self, pause_s: float) -> None:
        self._stop.wait(pause_s)
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._stop.is_set():
            raise Stopped

    def _update(
        self, *, completed: int = 0, note: str | None = None, digest: Digest | None = None
    ) -> None:
        with self._changed:
            old = self._state
            self._state = State(
                max(completed, old.completed), old.note if note is None else note, digest
            )
            self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        with self._changed:
            if self._error is None:
                self._error = error
            self._stop.set()
            self._changed.notify_all()


class _Repair:
    """Compares what comes with what is there, and puts right what differs."""

    def __init__(self, partial: Partial, is_hash_right: Callable[[], bool]) -> None:
        self._partial = partial
        self._is_hash_right = is_hash_right
        self._is_changed = False
        self._n_tests = 0
        self.is_right = False

    def compare(self, part: _Part, chunk: bytes) -> None:
        """Takes a chunk; once the hash is right, nothing more is needed of this part."""
        if self._partial.read(part.at, len(chunk)) != chunk:
            self._partial.write(part.at, chunk)
            self._is_changed = True
        elif self._is_changed and self._n_tests < _MAX_EARLY_TESTS:
            self._n_tests += 1
            self.test()
        part.at += len(chunk)
        part.is_dropped = self.is_right

    def test(self) -> bool:
        """Tells whether the file is right now; only a change makes it worth looking."""
        if self._is_changed:
            self._is_changed = False
            self.is_right = self._is_hash_right()
        return self.is_right
