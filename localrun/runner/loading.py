"""The time before a model is there: what the daemon asks of an empty runner, up to its `Load`.

Everything here runs on the engine thread. A library is imported when something is asked of it:
the fake one and llama.cpp's each bring what the other runner can do without.
"""

import time
from collections.abc import Callable, Mapping
from typing import Literal, Protocol, TypeVar

from localrun.ipc.messages import (
    DevicesListed,
    ListDevices,
    Load,
    MakePlan,
    Outbox,
    Planned,
    Progress,
)
from localrun.memory import Split
from localrun.runner.model import Model, OnProgress
from localrun.spec import LoadSpec

# What the daemon sends before the model is there.
Question = ListDevices | MakePlan | Load

# A load reports progress hundreds of times a second; the daemon only wants to see that it goes on.
_PROGRESS_INTERVAL_S = 0.1

T = TypeVar("T")


class Library(Protocol):
    """What models are loaded with. Its methods raise LoadRefused."""

    def list_devices(self, rpc_servers: tuple[str, ...]) -> DevicesListed:
        """See `ListDevices`."""
        ...

    def plan(self, spec: LoadSpec, held: Mapping[str, int]) -> Planned:
        """See `MakePlan`."""
        ...

    def load(
        self,
        spec: LoadSpec,
        split: Split | None,
        on_progress: OnProgress,
        start: Callable[[LoadSpec, Model], T],
    ) -> T:
        """What `start` makes of the loaded model; without a split where it fits best now."""
        ...


def answer_until_loaded(
    questions: Callable[[], Question],
    send: Callable[[Outbox], None],
    start: Callable[[LoadSpec, Model], T],
) -> T:
    """Answers questions until one is `Load`; what `start` makes of the model then.

    `start` makes the first context; when there is no memory for it, it may be called again with
    another model. Raises model.LoadRefused, also for a plan that cannot be made.
    """
    libraries = _Libraries()
    while True:
        match questions():
            case ListDevices(rpc_servers=servers):
                send(Outbox((libraries.get("llama").list_devices(servers),)))
            case MakePlan(spec=spec, held=held):
                send(Outbox((libraries.get(spec.engine).plan(spec, held),)))
            case Load(spec=spec, split=split):
                library = libraries.get(spec.engine)
                return library.load(spec, split, _reporter(send), start)


class _Libraries:
    """The libraries that something was asked of."""

    def __init__(self) -> None:
        self._known: dict[str, Library] = {}

    def get(self, engine: Literal["llama", "fake"]) -> Library:
        if engine not in self._known:
            self._known[engine] = _make(engine)
        return self._known[engine]


def _make(engine: Literal["llama", "fake"]) -> Library:
    if engine == "fake":
        from localrun.runner.fake import FakeLibrary

        return FakeLibrary()
    from localrun.runner.library import LlamaLibrary

    return LlamaLibrary()


def _reporter(send: Callable[[Outbox], None]) -> OnProgress:
    reported_at_s = 0.0

    def report(fraction: float) -> None:
        nonlocal reported_at_s
        if time.monotonic() - reported_at_s >= _PROGRESS_INTERVAL_S:
            reported_at_s = time.monotonic()
            send(Outbox((Progress(fraction),)))

    return report
