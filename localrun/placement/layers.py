"""Which layers go to which device. Pure.

`propose` gets the sizes of a model, part by part, and what every device has room for, and gives a
`Split`. Sizes are those of one shape of context: with the whole window that is wanted, or with the
least that will do, for a window that nobody asked for gives way before a layer leaves a GPU.

A model's layers are numbered from its input; its output counts as one more and comes last. GPUs
take layers from the end, so the ones that do not fit stay in RAM at the front.

Source: llama.cpp's `load_tensors` (what lies where), `common/fit.cpp` and Ollama's scheduler (the
order of preferences).
"""

import bisect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from localrun.memory import CPU, Device, Fit, Need, Split

# Kept free on each GPU: a driver's pools and the work space of its matrix library, which come
# with the first forwards and which no measurement sees. llama.cpp's own fit keeps 1 GiB.
GPU_MARGIN_BYTES = 512 << 20

# Kept free of RAM: what a runner grows by besides its model, such as texts and samplers.
RAM_MARGIN_BYTES = 256 << 20

# Steps between an empty and a full device when layers are shared out evenly.
_N_LEVELS = 1024


class BadWish(ValueError):
    """What was asked for cannot be meant for this machine; the text says why."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Bytes of one layer; `expert_bytes` of the weights are those of its experts."""

    weights_bytes: int
    kv_bytes: int
    expert_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of a model with one shape of context, part by part.

    `input_bytes` are always in RAM. Tied embeddings serve as output too: in RAM they lie there
    once, a GPU gets a copy of `output_bytes`. Each GPU that has a layer needs
    `gpu_compute_bytes`.
    """

    layers: tuple[Layer, ...]
    input_bytes: int
    output_bytes: int
    is_tied: bool = False
    gpu_compute_bytes: int = 0
    cpu_compute_bytes: int = 0

    @property
    def n_layers(self) -> int:
        """All layers, the output among them."""
        return len(self.layers) + 1


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user has set; None leaves the choice to us. `main_gpu` counts from 0."""

    n_gpu_layers: int | None = None
    main_gpu: int | None = None
    tensor_split: tuple[float, ...] | None = None
    spreads: bool = False


@dataclass(frozen=True, slots=True)
class Proposal:
    """A split, whether everything has room with it, and why it became this one."""

    split: Split
    fits: bool
    has_whole_window: bool
    reasons: tuple[str, ...]

    @property
    def _rank(self) -> tuple[bool, int, int]:
        return self.fits, self.split.n_gpu_layers, -self.split.n_cpu_experts


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that a model may have on each device: as things are, and with all others gone."""

    now: dict[str, int]
    alone: dict[str, int]


def rooms(
    devices: Sequence[Device],
    held: Mapping[str, int],
    overheads: Mapping[str, int],
    *,
    extra_margin_bytes: int = 0,
) -> Room:
    """What the devices have room for, beside the `held` bytes of other models.

    Some drivers call free what other processes have taken (a CPU behind RPC, Metal), so what we
    know to be taken counts as taken in any case.
    """
    room = Room({}, {})
    for device in devices:
        is_gpu = device.is_gpu
        margin = (GPU_MARGIN_BYTES + extra_margin_bytes) if is_gpu else RAM_MARGIN_BYTES
        ours = held.get(device.name, 0)
        most = device.total_bytes - (overhead_of(device, overheads) if is_gpu else 0)
        now = min(device.free_bytes, most - ours)
        room.now[device.name] = max(0, now - margin)
        room.alone[device.name] = max(0, min(most, now + ours) - margin)
    return room


def overhead_of(device: Device, overheads: Mapping[str, int]) -> int:
    """What the user keeps free on a GPU: by its name, else by the empty name."""
    return overheads.get(device.name, overheads.get("", 0))


def needs_of(sizes: Sizes, split: Split) -> dict[str, Need]:
    """What the model takes on each device with `split`. Only devices that have something."""
    n_layers = len(sizes.layers)
    n_gpu = min(split.n_gpu_layers, sizes.n_layers) if split.devices else 0
    first = sizes.n_layers - n_gpu
    on_cpu = sizes.layers[:first]
    experts = sum(one.expert_bytes for one in sizes.layers[first : split.n_cpu_experts])
    output = 0 if n_gpu or sizes.is_tied else sizes.output_bytes
    needs = {
        CPU: Need(
            sizes.input_bytes + sum(one.weights_bytes for one in on_cpu) + experts + output,
            sum(one.kv_bytes for one in on_cpu),
            sizes.cpu_compute_bytes,
        )
    }
    if not n_gpu:
        return needs
    for name, count in zip(split.devices, split.layers, strict=True):
        last = first + count
        mine = range(first, min(last, n_layers))
        weights = sum(_weights(sizes, number, split.n_cpu_experts) for number in mine)
        if first <= n_layers < last:
            weights += sizes.output_bytes
        kv = sum(sizes.layers[number].kv_bytes for number in mine)
        needs[name] = Need(weights, kv, sizes.gpu_compute_bytes)
        first = last
    return needs


def _weights(sizes: Sizes, number: int, n_cpu_experts: int) -> int:
    layer = sizes.layers[number]
    return layer.weights_bytes - (layer.expert_bytes if number < n_cpu_experts else 0)


def usable(devices: Sequence[Device]) -> tuple[list[Device], list[str]]:
    """The GPUs that may have layers, in their order, and why others may not."""
    gpus = [device for device in devices if device.is_gpu]
    has_discrete = any(gpu.kind == "gpu" and not gpu.endpoint for gpu in gpus)
    kept, reasons = [], []
    for gpu in gpus:
        if gpu.total_bytes <= 0:
            reasons.append(f"{gpu.name} is left out: it does not say how much memory it has")
        elif gpu.kind == "igpu" and has_discrete:
            reasons.append(f"{gpu.name} is left out: there is a discrete GPU")
        else:
            kept.append(gpu)
    return kept, reasons


def propose(
    whole: Sizes,
    least: Sizes,
    devices: Sequence[Device],
    room: Mapping[str, int],
    wishes: Wishes,
) -> Proposal:
    """Where the layers go.

    All on one GPU, the one with most room first; else on all of them; else both again with the
    least window; else the experts of the first layers stay in RAM, as few as possible; else whole
    layers do. Raises BadWish.
    """
    gpus, reasons = usable(devices)
    groups = _groups(gpus, room, wishes)
    if not groups or wishes.n_gpu_layers == 0:
        return _on_cpu(whole, least, room, [*reasons, *_why_cpu(gpus, wishes)])
    n = whole.n_layers
    if wishes.n_gpu_layers is not None:
        n = min(n, wishes.n_gpu_layers)
        reasons.append(f"num_gpu asks for {n} of {whole.n_layers} layers")
    trial = _Trial(devices, room, wishes)
    for sizes, group, n_there, n_kept in _attempts(whole, least, groups, n, wishes):
        split = trial.split(sizes, group, n_there, n_kept)
        if split and trial.fits(sizes, split):
            if sizes is not whole:
                reasons.append("the window gives way so that more layers fit")
            return Proposal(split, True, sizes is whole, (*reasons, _in_words(split, whole)))
    if wishes.n_gpu_layers is not None:
        split = trial.forced(least, groups[-1], n)
        return Proposal(split, False, False, (*reasons, "they do not fit"))
    return _on_cpu(whole, least, room, [*reasons, "not even one layer fits a GPU"])


def _attempts(
    whole: Sizes, least: Sizes, groups: list[list[Device]], n: int, wishes: Wishes
) -> Iterator[tuple[Sizes, list[Device], int, int]]:
    """(sizes, GPUs, layers on them, layers whose experts stay in RAM), the best first."""
    for group in groups:
        yield whole, group, n, 0
    widest = groups[-1]
    if least != whole:
        yield least, widest, n, 0
    has_experts = any(layer.expert_bytes for layer in least.layers)
    n_experts = len(least.layers) if has_experts else 0
    for n_kept in range(1, n_experts + 1):
        yield least, widest, n, n_kept
    if wishes.n_gpu_layers is None:
        for fewer in range(n - 1, 0, -1):
            yield least, widest, fewer, n_experts


def fit_of(now: Proposal, alone: Proposal) -> Fit:
    """Whether waiting for other models to go would gain anything."""
    if alone._rank > now._rank:
        return "crowded"
    return "now" if now.fits else "never"


def _groups(gpus: list[Device], room: Mapping[str, int], wishes: Wishes) -> list[list[Device]]:
    """The sets of GPUs to try, in order. Raises BadWish."""
    if not gpus:
        return []
    if wishes.main_gpu is not None:
        if not 0 <= wishes.main_gpu < len(gpus):
            numbers = "it is 0" if len(gpus) == 1 else f"they are 0 to {len(gpus) - 1}"
            raise BadWish(f"main_gpu is {wishes.main_gpu}, but there is no such GPU: {numbers}")
        return [[gpus[wishes.main_gpu]]]
    if wishes.tensor_split is not None:
        shares = wishes.tensor_split
        if any(share > 0 for share in shares[len(gpus) :]) or not any(s > 0 for s in shares):
            raise BadWish(
                f"tensor_split has {len(shares)} shares, but this machine has {len(gpus)} GPUs; "
                "give one for each, and not only zeros"
            )
        return [[gpu for gpu, share in zip(gpus, shares, strict=False) if share > 0]]
    # Devices of other machines stand first: the input comes from here, the output goes back.
    everything = sorted(gpus, key=lambda gpu: not gpu.endpoint)
    if wishes.spreads or len(gpus) == 1:
        return [everything]
    by_preference = sorted(
        gpus, key=lambda gpu: (gpu.kind == "igpu", bool(gpu.endpoint), -room.get(gpu.name, 0))
    )
    return [*([gpu] for gpu in by_preference), everything]


class _Trial:
    """Tries splits against what there is room for."""

    def __init__(self, devices: Sequence[Device], room: Mapping[str, int], wishes: Wishes) -> None:
        self._room = room
        self._shares = [share for share in wishes.tensor_split or () if share > 0]
        self._in_ram = in_ram(devices)

    def split(
        self, sizes: Sizes, group: Sequence[Device], n: int, n_cpu_experts: int = 0
    ) -> Split | None:
        """The last `n` layers on the GPUs of `group`; None where they have no room for them."""
        costs = _costs(sizes, n, n_cpu_experts)
        left = [self._room.get(gpu.name, 0) - sizes.gpu_compute_bytes for gpu in group]
        if self._shares:
            counts = _by_shares(n, self._shares)
            parts = list(_parts(costs, counts))
            if any(part > have for part, have in zip(parts, left, strict=True) if part):
                return None
        else:
            found = _evenly(costs, left)
            if found is None:
                return None
            counts = found
        return _split(group, counts, n, n_cpu_experts)

    def forced(self, sizes: Sizes, group: Sequence[Device], n: int) -> Split:
        """The last `n` layers on the GPUs of `group`, room or not."""
        room = [float(max(1, self._room.get(gpu.name, 0))) for gpu in group]
        return _split(group, _by_shares(n, self._shares or room), n, 0)

    def fits(self, sizes: Sizes, split: Split) -> bool:
        """True when everything has room, what lies in RAM too."""
        return has_room(needs_of(sizes, split), self._room, self._in_ram)


def in_ram(devices: Sequence[Device]) -> set[str]:
    """Those whose memory is RAM. An integrated GPU's is: together they must have room in it."""
    return {device.name for device in devices if device.kind == "igpu"} | {CPU}


def has_room(needs: Mapping[str, Need], room: Mapping[str, int], ram_names: set[str]) -> bool:
    """True when every device has what is needed of it, and RAM what all of `ram_names` need."""
    ram = sum(need.total_bytes for name, need in needs.items() if name in ram_names)
    return ram <= room.get(CPU, 0) and all(
        need.total_bytes <= room.get(name, 0) for name, need in needs.items()
    )


def _costs(sizes: Sizes, n: int, n_cpu_experts: int) -> list[int]:
    """Bytes of the last `n` layers on a GPU, from the first of them to the output."""
    first = sizes.n_layers - n
    costs = [
        _weights(sizes, number, n_cpu_experts) + sizes.layers[number].kv_bytes
        for number in range(first, len(sizes.layers))
    ]
    return [*costs, sizes.output_bytes] if n else costs


def _evenly(costs: Sequence[int], room: Sequence[int]) -> list[int] | None:
    """How many of `costs` each device gets, in order, all about equally full; None if too much."""
    levels = range(1, _N_LEVELS + 1)
    if _filled(costs, room, _N_LEVELS) is None:
        return None
    level = bisect.bisect_left(
        levels, True, key=lambda level: _filled(costs, room, level) is not None
    )
    return _filled(costs, room, levels[level])


def _filled(costs: Sequence[int], room: Sequence[int], level: int) -> list[int] | None:
    """As `_evenly`, with no device fuller than `level` of `_N_LEVELS`; from the last one on."""
    counts = [0] * len(room)
    n_left = len(costs)
    for device in reversed(range(len(room))):
        have = room[device] * level // _N_LEVELS
        while n_left and costs[n_left - 1] <= have:
            n_left -= 1
            have -= costs[n_left]
            counts[device] += 1
    return None if n_left else counts


def _by_shares(n: int, shares: Sequence[float]) -> list[int]:
    """`n` layers by the share of each device, as llama.cpp's `load_tensors` counts them."""
    ends = [end / sum(shares) for end in itertools.accumulate(shares)]
    counts = [0] * len(shares)
    for number in range(n):
        counts[min(bisect.bisect_right(ends, number / n), len(shares) - 1)] += 1
    return counts


def _parts(costs: Sequence[int], counts: Sequence[int]) -> Iterator[int]:
    """The bytes of each device."""
    start = 0
    for count in counts:
        yield sum(costs[start : start + count])
        start += count


def _split(group: Sequence[Device], counts: Sequence[int], n: int, n_cpu_experts: int) -> Split:
    used = [(gpu.name, count) for gpu, count in zip(group, counts, strict=True) if count]
    names, layers = zip(*used, strict=True)
    return Split(n, names, layers, n_cpu_experts)


def _on_cpu(
    whole: Sizes, least: Sizes, room: Mapping[str, int], reasons: Sequence[str]
) -> Proposal:
    split = Split()
    for sizes in (whole, least):
        if has_room(needs_of(sizes, split), room, {CPU}):
            return Proposal(split, True, sizes is whole, tuple(reasons))
    return Proposal(split, False, False, (*reasons, "RAM is short"))


def _why_cpu(gpus: Sequence[Device], wishes: Wishes) -> list[str]:
    if not gpus:
        return ["there is no GPU"]
    return ["num_gpu asks for no GPU"] if wishes.n_gpu_layers == 0 else []


def _in_words(split: Split, sizes: Sizes) -> str:
    where = ", ".join(
        f"{count} on {name}" for name, count in zip(split.devices, split.layers, strict=True)
    )
    text = f"{split.n_gpu_layers} of {sizes.n_layers} layers: {where}"
    if split.n_cpu_experts:
        text += f"; the experts of the first {split.n_cpu_experts} stay in RAM"
    return text
