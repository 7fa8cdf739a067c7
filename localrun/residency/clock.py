"""Time as residency sees it; tests bring their own."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

# Linux' monotonic clock stands still while the machine sleeps, macOS' does not; CLOCK_BOOTTIME
# goes on in both cases and is Linux' only.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def elapsed_s() -> float:
    """Seconds since some moment, those that the machine slept included: keep-alive is wall time."""
    return time.clock_gettime(_CLOCK)


@dataclass(frozen=True, slots=True)
class Time:
    """`elapsed_s` only rises, `wall_s` is unix time, `pause` returns after so many seconds."""

    elapsed_s: Callable[[], float] = elapsed_s
    wall_s: Callable[[], float] = time.time
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
