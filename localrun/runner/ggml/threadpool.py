"""The compute threads of a context. llama.cpp would start them anew for every forward."""

from typing import Any

from localrun.runner.ggml.binding import lib
from localrun.runner.ggml.library import (
    attach_threadpool,
    free_threadpool,
    new_threadpool,
    pause_threadpool,
)


class Threadpool:
    """Exactly as many threads as are wanted: one too many would spin between two forwards."""

    def __init__(self, context: Any, *, polls: bool) -> None:
        """With `polls` they wait for the next forward in a spin, for some 0.1 s; else asleep."""
        self._context = context
        self._polls = polls
        self._pool = 0
        self._old: list[int] = []  # the context lets go of one when it has evaluated with the next
        self._n_threads = 0

    def use(self, n_threads: int) -> None:
        """So many threads for the forwards from now on."""
        if n_threads == self._n_threads:
            return
        if self._pool:
            self._old.append(self._pool)
        self._n_threads = n_threads
        self._pool = new_threadpool(n_threads, polls=self._polls)
        attach_threadpool(self._context, self._pool)
        lib.llama_set_n_threads(self._context, n_threads, n_threads)

    def has_evaluated(self) -> None:
        """The context has just computed."""
        while self._old:
            free_threadpool(self._old.pop())

    def rest(self) -> None:
        """Nobody spins until the context evaluates again."""
        if self._polls and self._pool:
            pause_threadpool(self._pool)

    def close(self) -> None:
        """Ends the threads, after the context was freed."""
        self.has_evaluated()
        if self._pool:
            free_threadpool(self._pool)
            self._pool = 0
