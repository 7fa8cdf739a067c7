"""How a model would be loaded on this machine as it is now: proposes, measures, corrects.

`localrun.placement.layers` proposes a split by the sizes of the model's parts; llama.cpp measures
that split; what the proposal had wrong counts in the next one. Engine thread only; nothing that
is measured is allocated.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from localrun.ipc.messages import Planned
from localrun.memory import CPU, Device, Fit, Need, Plan, Split
from localrun.placement.layers import (
    BadWish,
    Layer,
    Proposal,
    Room,
    Sizes,
    Wishes,
    fit_of,
    has_room,
    in_ram,
    needs_of,
    propose,
    rooms,
    usable,
)
from localrun.runner.engine.layout import (
    WINDOW_SHARE,
    EmbeddingShape,
    ModelFacts,
    Shape,
    choose_shape,
    embedding_shape,
    least_shape,
    n_ctx_least,
)
from localrun.runner.ggml.devices import Found, Machine
from localrun.runner.ggml.probe import Measured, Probe
from localrun.runner.model import Berth, LoadRefused
from localrun.spec import LoadSpec

# Proposals that are measured before the model goes to RAM. The first one is nearly always right.
_MAX_ROUNDS = 4

# All layers, however many there are.
_ALL = 1 << 20

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class _Model:
    """A model's parts with the whole window and with the least one, and what it demands."""

    facts: ModelFacts
    whole: Sizes
    least: Sizes
    whole_shape: Shape | EmbeddingShape
    least_shape: Shape | EmbeddingShape

    def shape(self, proposal: Proposal) -> Shape | EmbeddingShape:
        """The smallest context that the proposal is about."""
        return self.whole_shape if proposal.has_whole_window else self.least_shape


class Planner:
    """Makes plans of one model after the other, and remembers what it has measured of the last."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._measurements: _Measurements | None = None
        self._berths: dict[Split, Berth] = {}

    def plan(
        self, spec: LoadSpec, held: Mapping[str, int], *, extra_margin_bytes: int = 0
    ) -> Planned:
        """The answer to `MakePlan`; `extra_margin_bytes` more are kept free on each GPU.

        Raises LoadRefused.
        """
        if self._measurements is None or self._measurements.spec != spec:
            self._measurements, self._berths = _Measurements(spec, self._machine), {}
        found = self._machine.look(spec.rpc_servers, spec.gpu_overhead_bytes)
        room = rooms(
            found.devices, held, spec.gpu_overhead_bytes, extra_margin_bytes=extra_margin_bytes
        )
        with self._measurements as measurements:
            try:
                plan, berth = _Planning(measurements, found, room).run(held)
            except BadWish as error:
                raise LoadRefused(str(error)) from None
        self._berths[plan.split] = berth
        return Planned(plan, tuple(found.away))

    def berth(self, spec: LoadSpec, split: Split | None) -> Berth:
        """Where to load with a split that was planned before, or with the best one there is now.

        Raises LoadRefused, without a split also for a model that has no room now.
        """
        known = self._measurements is not None and self._measurements.spec == spec
        if split is not None and known and split in self._berths:
            return self._berths[split]
        plan = self.plan(spec, {}).plan
        if split is None and not plan.fits:
            raise LoadRefused(shortage(plan))
        berth = self._berths[plan.split]
        if split is None or split == plan.split:
            return berth
        assert self._measurements is not None
        with self._measurements as measurements:
            needs = measurements.of(split, berth.shape).needs
        return Berth(split, needs, berth.shape, berth.cell_bytes)


class _Measurements:
    """What has been measured of one spec. Within `with`, the last probe stays open."""

    def __init__(self, spec: LoadSpec, machine: Machine) -> None:
        self.spec = spec
        self._machine = machine
        self._models: dict[str, _Model] = {}
        self._known: dict[tuple[Split, Shape | EmbeddingShape], Measured] = {}
        self._open: tuple[Split, Probe] | None = None

    def __enter__(self) -> "_Measurements":
        return self

    def __exit__(self, *_exc: object) -> None:
        # It has a vocabulary in memory, and RPC servers to itself.
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def model(self, devices: tuple[Device, ...]) -> _Model:
        """The sizes of the parts, measured with all layers on a GPU if there is one."""
        gpus, _ = usable(devices)
        name = gpus[0].name if gpus and self.spec.n_gpu_layers != 0 else CPU
        if name not in self._models:
            probe = self._probe(Split() if name == CPU else Split(_ALL, (name,), (_ALL,)))
            self._models[name] = model = _read_model(self.spec, probe)
            if name != CPU:
                n = model.whole.n_layers
                self._open = (Split(n, (name,), (n,)), probe)
        return self._models[name]

    def of(self, split: Split, shape: Shape | EmbeddingShape) -> Measured:
        """What `split` takes with a context of this shape. Raises LoadRefused."""
        if (split, shape) not in self._known:
            self._known[split, shape] = self._probe(split).measure(shape)
        return self._known[split, shape]

    def _probe(self, split: Split) -> Probe:
        if self._open is None or self._open[0] != split:
            self.__exit__()
            self._open = (split, Probe(self.spec, split, self._machine))
        return self._open[1]


def _read_model(spec: LoadSpec, probe: Probe) -> _Model:
    whole = _first_shape(spec, probe.facts, spec.n_ctx)
    least = _first_shape(spec, probe.facts, n_ctx_least(spec))
    measured = probe.measure(whole)
    whole_sizes = probe.sizes(measured)
    least_sizes = whole_sizes if least == whole else probe.sizes(probe.measure(least))
    # The average of a cell: layers with a sliding window keep little of a long context.
    n_kv_bytes = sum(need.kv_bytes for need in measured.needs.values())
    facts = replace(probe.facts, cell_bytes=max(1, -(-n_kv_bytes // whole.n_cells)))
    if _may_cut(spec):
        # A window that may be cut only gets a part of what is free for it.
        whole_sizes, least_sizes = _roomy(whole_sizes), _roomy(least_sizes)
    return _Model(facts, whole_sizes, least_sizes, whole, least)


def _first_shape(spec: LoadSpec, facts: ModelFacts, n_ctx: int) -> Shape | EmbeddingShape:
    make = embedding_shape if spec.embeds else least_shape
    return make(spec, facts, n_ctx)


def _may_cut(spec: LoadSpec) -> bool:
    return spec.asked.num_ctx is None and spec.kv_pool is None


def _roomy(sizes: Sizes) -> Sizes:
    layers = tuple(
        Layer(one.weights_bytes, int(one.kv_bytes / WINDOW_SHARE) + 1, one.expert_bytes)
        for one in sizes.layers
    )
    return replace(sizes, layers=layers)


class _Planning:
    """One plan in the making."""

    def __init__(self, measurements: _Measurements, found: Found, room: Room) -> None:
        self._measurements = measurements
        self._spec = spec = measurements.spec
        self._found = found
        self._room = room
        self._model = measurements.model(found.devices)
        self._in_ram = in_ram(found.devices)
        self._wishes = Wishes(
            None if spec.n_gpu_layers < 0 else spec.n_gpu_layers,
            spec.main_gpu,
            spec.tensor_split,
            spec.spreads,
        )
        # Bytes of each device that proposals have not thought of so far.
        self._unforeseen: dict[str, int] = {}

    def run(self, held: Mapping[str, int]) -> tuple[Plan, Berth]:
        """Raises BadWish and LoadRefused."""
        for _ in range(_MAX_ROUNDS):
            now = self._propose(self._room.now)
            if not now.fits:
                break
            shape = self._model.shape(now)
            measured = self._measurements.of(now.split, shape)
            if self._has_room(measured.needs):
                shape, measured = self._grow(now.split, shape, measured)
                return self._result(now, held, shape, measured.needs)
            self._learn(now, measured)
        else:
            self._wishes = replace(self._wishes, n_gpu_layers=0)
            now = self._propose(self._room.now)
        needs = {
            name: msgspec.structs.replace(
                need, compute_bytes=need.compute_bytes + self._unforeseen.get(name, 0)
            )
            for name, need in needs_of(self._model.least, now.split).items()
        }
        return self._result(now, held, self._model.least_shape, needs)

    def _propose(self, room: Mapping[str, int]) -> Proposal:
        left = {name: max(0, n - self._unforeseen.get(name, 0)) for name, n in room.items()}
        model = self._model
        return propose(model.whole, model.least, self._found.devices, left, self._wishes)

    def _has_room(self, needs: Mapping[str, Need]) -> bool:
        return has_room(needs, self._room.now, self._in_ram)

    def _learn(self, proposal: Proposal, measured: Measured) -> None:
        """What is measured above what was proposed counts from now on."""
        sizes = self._model.whole if proposal.has_whole_window else self._model.least
        foreseen = needs_of(sizes, proposal.split)
        for name, need in measured.needs.items():
            missing = need.total_bytes - foreseen.get(name, Need()).total_bytes
            self._unforeseen[name] = self._unforeseen.get(name, 0) + max(0, missing)

    def _grow(
        self, split: Split, least: Shape | EmbeddingShape, measured: Measured
    ) -> tuple[Shape | EmbeddingShape, Measured]:
        """The context that what is left has room for, in place of the smallest one."""
        if isinstance(least, EmbeddingShape):
            return least, measured
        kv_bytes = sum(need.kv_bytes for need in measured.needs.values())
        free_bytes = min(
            (self._room.now.get(name, 0) - need.weights_bytes - need.compute_bytes)
            * kv_bytes
            // need.kv_bytes
            for name, need in measured.needs.items()
            if need.kv_bytes
        )
        model, spec = self._model, self._spec
        shape = choose_shape(spec, model.facts, free_bytes, n_ctx=spec.n_ctx)
        if shape.n_cells <= least.n_cells:
            return least, measured
        grown = self._measurements.of(split, shape)
        return (shape, grown) if self._has_room(grown.needs) else (least, measured)

    def _result(
        self,
        now: Proposal,
        held: Mapping[str, int],
        shape: Shape | EmbeddingShape,
        needs: dict[str, Need],
    ) -> tuple[Plan, Berth]:
        found = self._found
        away = [f"the RPC server {name} is left out: {why}" for name, why in found.away.items()]
        names = {gpu.name for gpu in usable(found.devices)[0]} | {CPU}
        plan = Plan(
            fit=self._fit(now, held),
            split=now.split,
            needs=needs,
            available={name: n for name, n in self._room.now.items() if name in names},
            n_ctx=shape.n_ctx,
            n_cells=shape.n_cells,
            reasons=(*away, *now.reasons),
        )
        return plan, Berth(now.split, needs, shape, self._model.facts.cell_bytes)

    def _fit(self, now: Proposal, held: Mapping[str, int]) -> Fit:
        if not any(held.values()):
            return "now" if now.fits else "never"
        fit = fit_of(now, self._propose(self._room.alone))
        # A server that does not answer may be serving one of the models that would go.
        known = {device.name for device in self._found.devices}
        is_hidden = any(n for name, n in held.items() if name not in known)
        is_whole = now.fits and now.split.n_gpu_layers >= self._model.whole.n_layers
        return "crowded" if is_hidden and not is_whole else fit


def shortage(plan: Plan) -> str:
    """Why a plan does not fit, with what is needed and what there is on each device."""
    parts = [
        f"{need.total_bytes / _MIB:.0f} MiB of {name}, which has room for "
        f"{plan.available.get(name, 0) / _MIB:.0f} MiB"
        for name, need in plan.needs.items()
    ]
    return f"the model needs {' and '.join(parts)}"
