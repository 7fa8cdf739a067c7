"""llama.cpp as what models are loaded with: its devices, its plans, its models."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from msgspec import structs

from localrun.ipc.messages import DevicesListed, Planned
from localrun.memory import Split
from localrun.processors import own_cpus
from localrun.runner.ggml.devices import Machine, build
from localrun.runner.llama import LlamaModel
from localrun.runner.model import Berth, LoadRefused, Model, NoMemory, OnProgress
from localrun.runner.planning import Planner, shortage
from localrun.spec import LoadSpec

# When a load lacks memory in spite of its plan, this much more is kept free on each GPU: with the
# margin of every plan that is half as much again as llama.cpp's own fit keeps.
_SECOND_MARGIN_BYTES = 1 << 30

T = TypeVar("T")


class LlamaLibrary:
    """See `loading.Library`."""

    def __init__(self) -> None:
        self._machine = Machine()
        self._planner = Planner(self._machine)
        self._held: Mapping[str, int] = {}

    def list_devices(self, rpc_servers: tuple[str, ...]) -> DevicesListed:
        """The devices as they are now; see `ListDevices`."""
        found = self._machine.look(rpc_servers)
        return DevicesListed(found.devices, tuple(found.away), build())

    def plan(self, spec: LoadSpec, held: Mapping[str, int]) -> Planned:
        """See `MakePlan`. Raises LoadRefused."""
        self._held = held
        return self._planner.plan(spec, held)

    def load(
        self,
        spec: LoadSpec,
        split: Split | None,
        on_progress: OnProgress,
        start: Callable[[LoadSpec, Model], T],
    ) -> T:
        """See `loading.Library.load`; tries once more with less on the GPUs. Raises LoadRefused."""
        berth = self._planner.berth(spec, split)
        try:
            return self._start(spec, berth, on_progress, start)
        except NoMemory as error:
            if not berth.split.devices:
                raise
            problem = str(error)
        plan = self._planner.plan(spec, self._held, extra_margin_bytes=_SECOND_MARGIN_BYTES).plan
        if not plan.fits:
            raise LoadRefused(f"{problem} as it was planned; with more room {shortage(plan)}")
        return self._start(spec, self._planner.berth(spec, plan.split), on_progress, start)

    def _start(
        self,
        spec: LoadSpec,
        berth: Berth,
        on_progress: OnProgress,
        start: Callable[[LoadSpec, Model], T],
    ) -> T:
        # Threads wait for each other in a spin, and where one of them has no processor a token of a
        # small model takes 3 s instead of 6 ms.
        spec = structs.replace(spec, n_threads=min(spec.n_threads, len(own_cpus())))
        model = LlamaModel(spec, on_progress, self._machine, berth)
        try:
            return start(spec, model)
        except NoMemory:
            model.close()  # first, since a second one may only fit without it
            raise
