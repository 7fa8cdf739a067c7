"""The time before a model is there: what the daemon asks of an empty runner, up to its `Load`.

Everything here runs on the engine thread. What only one engine needs is imported when it is asked
for: each costs a library that the other runner can do without.
"""

import time
from collections.abc import Callable, Mapping

from localrun.core import LoadSpec
from localrun.ipc.messages import (
    DevicesListed,
    ListDevices,
    Load,
    MakePlan,
    Outbox,
    Planned,
    Progress,
)
from localrun.memory import Plan, Split
from localrun.runner.model import Model

# What the daemon sends before the model is there.
Question = ListDevices | MakePlan | Load

# A load reports progress hundreds of times a second; the daemon only wants to see that it goes on.
_PROGRESS_INTERVAL_S = 0.1


def loaded(
    questions: Callable[[], Question], send: Callable[[Outbox], None]
) -> tuple[LoadSpec, Model]:
    """Answers questions until one of them is `Load`; the model that it asked for.

    Raises model.LoadRefused, also for a plan that cannot be made.
    """
    while True:
        match questions():
            case ListDevices(rpc_servers=servers):
                send(Outbox((_list_devices(servers),)))
            case MakePlan(spec=spec, held=held):
                send(Outbox((_plan(spec, held),)))
            case Load(spec=spec, split=split):
                return spec, _load(spec, split, _Reporter(send).report)


class _Reporter:
    """Passes progress on, now and then."""

    def __init__(self, send: Callable[[Outbox], None]) -> None:
        self._send = send
        self._sent_at_s = 0.0

    def report(self, fraction: float) -> None:
        if time.monotonic() - self._sent_at_s >= _PROGRESS_INTERVAL_S:
            self._sent_at_s = time.monotonic()
            self._send(Outbox((Progress(fraction),)))


def _list_devices(_servers: tuple[str, ...]) -> DevicesListed:
    return DevicesListed(())


def _plan(spec: LoadSpec, held: Mapping[str, int]) -> Planned:
    if spec.engine == "fake":
        from localrun.runner import fake

        return Planned(fake.plan(spec, held))
    return Planned(Plan("now", Split(), {}, {}))


def _load(spec: LoadSpec, _split: Split | None, report: Callable[[float], None]) -> Model:
    if spec.engine == "fake":
        from localrun.runner.fake import FakeModel

        return FakeModel(spec, report)
    from localrun.runner.llama import LlamaModel

    return LlamaModel(spec, report)
