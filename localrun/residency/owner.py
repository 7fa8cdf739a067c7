"""Which models are in memory: the one owner of that state.

A single task handles events, one at a time and without awaiting anything in between; loads and
unloads run in tasks of their own and come back as events. A state that is read elsewhere is a
copy. A model that must go is `stopping`: it takes no new leases, ends when its last one does, and
requests for it wait for the next load.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from localrun.core import LoadSpec, Resident, RunnerInfo
from localrun.errors import LocalrunError, ShuttingDown
from localrun.residency.keep_alive import effective_s, next_expiry_s
from localrun.residency.policy import Evict, Held, Start, State, Use, decide
from localrun.residency.queue import Limit, Waiter, WaitingLine
from localrun.units import FOREVER

_log = logging.getLogger(__name__)


class Runner(Protocol):
    """A loaded model, as far as residency cares."""

    @property
    def info(self) -> RunnerInfo: ...

    @property
    def n_running(self) -> int:
        """Sequences that hold a slot now."""
        ...

    async def wait_lost(self) -> None:
        """Returns when the process has ended."""
        ...

    async def close(self) -> None:
        """Ends the process. Idempotent."""
        ...


R = TypeVar("R", bound=Runner)
"""The runner type of this composition; residency hands it through unseen."""
