"""Puts load on one endpoint: users in a closed loop, arrivals in an open one, a long prompt.

Owns who asks when. Each outcome is handed over as soon as it is there, so that an interruption
loses only what was still running.
"""

import asyncio
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator

from cli.bench.answers import Answer, Endpoint, Outcome, Request
from cli.bench.client import ask

Take = Callable[[Outcome], None]


async def closed_loop(
    endpoint: Endpoint,
    requests: Iterable[Request],
    n_users: int,
    take: Take,
    *,
    duration_s: float = math.inf,
) -> None:
    """`n_users` at once, each asking the next request as soon as the last one is answered.

    None begins after `duration_s`.
    """
    waiting = iter(requests)
    last = time.perf_counter() + duration_s

    async def user() -> None:
        for request in waiting:
            take(await ask(endpoint, request))
            if time.perf_counter() >= last:
                break

    async with asyncio.TaskGroup() as group:
        for _ in range(n_users):
            group.create_task(user())


def poisson_arrivals_s(rate: float, duration_s: float, seed: int) -> Iterator[float]:
    """Moments in seconds from the start, `rate` a second on average, the same for one `seed`."""
    chosen = random.Random(f"arrivals {seed} {rate}")
    at_s = chosen.expovariate(rate)
    while at_s < duration_s:
        yield at_s
        at_s += chosen.expovariate(rate)


async def open_loop(
    endpoint: Endpoint, arrivals_s: Iterable[float], requests: Iterable[Request], take: Take
) -> None:
    """Each request begins at its moment, however many are still running.

    Its time runs from that moment even when the client is late, or a client that cannot keep up
    would make the server look quick.
    """
    start = time.perf_counter()

    async def user(request: Request, began: float) -> None:
        take(await ask(endpoint, request, began=began))

    async with asyncio.TaskGroup() as group:
        for at_s, request in zip(arrivals_s, requests, strict=False):
            await asyncio.sleep(max(0.0, start + at_s - time.perf_counter()))
            group.create_task(user(request, start + at_s))


async def beside_long(
    endpoint: Endpoint, requests: Iterable[Request], n_streams: int, long: Request, take: Take
) -> Outcome:
    """The outcome of `long`, sent once `n_streams` run; they go on until it is answered.

    Each stream asks the next of `requests` when an answer ends, and stops when one fails.
    """
    waiting = iter(requests)
    are_running = [asyncio.Event() for _ in range(n_streams)]
    is_over = False

    async def stream(is_running: asyncio.Event) -> None:
        for request in waiting:
            outcome = await ask(endpoint, request, on_text=is_running.set)
            take(outcome)
            if is_over or not isinstance(outcome, Answer):
                break
        is_running.set()  # so that nobody waits for a stream that never ran

    async with asyncio.TaskGroup() as group:
        for is_running in are_running:
            group.create_task(stream(is_running))
        for is_running in are_running:
            await is_running.wait()
        outcome = await ask(endpoint, long)
        is_over = True
    return outcome
