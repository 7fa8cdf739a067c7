"""The sources of one transfer: those who share it may each know another place for the same bytes.

Owns which source is read from now. One that fails hands on to the next; one whose refusal is meant
is not asked again while there is another.
"""

import contextlib
import threading
from collections.abc import Callable

from modelstore.transfer.source import Source

MakeSource = Callable[[threading.Event], Source]


class Choice:
    """Safe to share between threads. A source is made when it is first read from."""

    def __init__(self, stop: threading.Event) -> None:
        """Setting `stop` ends the requests of all sources."""
        self._stop = stop
        self._lock = threading.Lock()
        self._makers: dict[str, MakeSource] = {}
        self._made: dict[str, Source] = {}
        self._tried: set[str] = set()
        self._failed: set[str] = set()
        self._queue: list[str] = []  # the first one is read from
        self._opened = contextlib.ExitStack()

    def __len__(self) -> int:
        """How many sources may still be read from."""
        with self._lock:
            return len(self._queue)

    def offer(self, origin: str, make_source: MakeSource) -> None:
        """Adds a source; one from the same origin is not wanted twice.

        It comes first where the one that is read from has failed, else last.
        """
        with self._lock:
            if origin in self._makers:
                return
            self._makers[origin] = make_source
            is_urgent = bool(self._queue) and self._queue[0] in self._failed
            self._queue.insert(0 if is_urgent else len(self._queue), origin)

    def is_tried(self, origin: str) -> bool:
        """Tells whether that source has been read from."""
        with self._lock:
            return origin in self._tried

    def current(self) -> tuple[str, Source]:
        """What to read from now, with its origin. Raises what making the source raises."""
        with self._lock:
            origin = self._queue[0]
            self._tried.add(origin)
            if origin not in self._made:
                source = self._makers[origin](self._stop)
                self._made[origin] = self._opened.enter_context(source)
            return origin, self._made[origin]

    def pass_on(self, failed: str, *, for_good: bool = False) -> bool:
        """Turns from a source that failed to the next; `for_good` it is not asked again.

        The last one stays in any case. True when the next one has not failed yet.
        """
        with self._lock:
            self._failed.add(failed)
            # Several parts fail at once where a server dies: the first one has turned already.
            is_current = self._queue[0] == failed
            if len(self._queue) > 1 and failed in self._queue and (is_current or for_good):
                self._queue.remove(failed)
                if not for_good:
                    self._queue.append(failed)
            return self._queue[0] not in self._failed

    def close(self) -> None:
        """Closes every source."""
        self._opened.close()
