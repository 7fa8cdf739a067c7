"""Which layers go where: a truth table of machines, models and wishes, in round numbers."""

from collections.abc import Mapping
from typing import Any

import pytest

from localrun.memory import CPU, Device, Need, Split
from localrun.placement.layers import (
    GPU_MARGIN_BYTES,
    RAM_MARGIN_BYTES,
    BadWish,
    Layer,
    Proposal,
    Sizes,
    Wishes,
    fit_of,
    needs_of,
    propose,
    rooms,
    usable,
)


def gpu(name: str, **fields: Any) -> Device:
    return Device(name, **{"kind": "gpu", "free_bytes": 1, "total_bytes": 1, **fields})


RAM = Device(CPU, "cpu", 1, 1)
A, B, C = gpu("A"), gpu("B"), gpu("C")
INTEGRATED = gpu("I", kind="igpu")
REMOTE = gpu("RPC0", endpoint="host:1")


def model(n: int = 10, *, weights: int = 10, kv: int = 0, experts: int = 0, **fields: Any) -> Sizes:
    """`n` equal layers; the output takes as much as one."""
    fields = {"input_bytes": 5, "output_bytes": 10, **fields}
    return Sizes((Layer(weights, kv, experts),) * n, **fields)


def place(
    sizes: Sizes,
    room: Mapping[str, int],
    *devices: Device,
    least: Sizes | None = None,
    ram: int = 1000,
    **wishes: Any,
) -> Proposal:
    everything = {CPU: ram, **room}
    return propose(sizes, least or sizes, [RAM, *devices], everything, Wishes(**wishes))


def split(n: int, n_cpu_experts: int = 0, **layers: int) -> Split:
    return Split(n, tuple(layers), tuple(layers.values()), n_cpu_experts)


@pytest.mark.parametrize(
    ("sizes", "room", "devices", "wishes", "expected"),
    [
        # ---- one GPU, the one with most room; a discrete one before an integrated one
        (model(), {}, (), {}, split(0)),
        (model(), {"A": 110}, (A,), {}, split(11, A=11)),
        (model(), {"A": 120, "B": 130}, (A, B), {}, split(11, B=11)),
        (model(), {"A": 120, "I": 500}, (A, INTEGRATED), {}, split(11, A=11)),
        (model(), {"A": 50, "I": 500}, (A, INTEGRATED), {}, split(5, A=5)),
        (model(), {"I": 110}, (INTEGRATED,), {}, split(11, I=11)),
        (model(), {"RPC0": 500, "A": 120}, (A, REMOTE), {}, split(11, A=11)),
        (model(), {"RPC0": 500, "A": 50}, (A, REMOTE), {}, split(11, RPC0=11)),
        (model(), {"RPC0": 500, "I": 500}, (INTEGRATED, REMOTE), {}, split(11, RPC0=11)),
        # ---- only all of them hold it: evenly, and a small one gets less
        (model(), {"A": 60, "B": 60}, (A, B), {}, split(11, A=5, B=6)),
        (model(), {"A": 80, "B": 40}, (A, B), {}, split(11, A=7, B=4)),
        (model(), {"A": 30, "B": 100}, (A, B), {}, split(11, A=2, B=9)),
        (model(), {"A": 40, "B": 40, "C": 40}, (A, B, C), {}, split(11, A=3, B=4, C=4)),
        (model(), {"A": 60, "RPC0": 60}, (A, REMOTE), {}, split(11, RPC0=5, A=6)),
        # ---- not even all: the last layers go to GPUs
        (model(), {"A": 55}, (A,), {}, split(5, A=5)),
        (model(), {"A": 55, "B": 25}, (A, B), {}, split(7, A=5, B=2)),
        (model(), {"A": 9}, (A,), {}, split(0)),
        # ---- the output is a layer, and lies on the last device
        (model(), {"A": 109}, (A,), {}, split(10, A=10)),
        (model(output_bytes=60), {"A": 109}, (A,), {}, split(5, A=5)),
        (model(output_bytes=60), {"A": 60}, (A,), {}, split(1, A=1)),
        (model(output_bytes=60), {"A": 50}, (A,), {}, split(0)),
        (model(output_bytes=60), {"A": 110, "B": 50}, (A, B), {}, split(6, A=6)),
        # ---- compute buffers, on each device that is used
        (model(gpu_compute_bytes=20), {"A": 129}, (A,), {}, split(10, A=10)),
        (model(gpu_compute_bytes=20), {"A": 80, "B": 80}, (A, B), {}, split(11, A=5, B=6)),
        (model(gpu_compute_bytes=20), {"A": 125, "B": 15}, (A, B), {}, split(10, A=10)),
        # ---- a KV cache of its own for each layer
        (model(kv=10), {"A": 210}, (A,), {}, split(11, A=11)),
        (model(kv=10), {"A": 110}, (A,), {}, split(6, A=6)),
        # ---- all GPUs although one would do
        (model(), {"A": 500, "B": 500}, (A, B), {"spreads": True}, split(11, A=5, B=6)),
        (model(), {"A": 500, "B": 100}, (A, B), {"spreads": True}, split(11, A=9, B=2)),
        (model(), {"A": 500}, (A,), {"spreads": True}, split(11, A=11)),
        # ---- num_gpu
        (model(), {"A": 500}, (A,), {"n_gpu_layers": 4}, split(4, A=4)),
        (model(), {"A": 500}, (A,), {"n_gpu_layers": 0}, split(0)),
        (model(), {"A": 500}, (A,), {"n_gpu_layers": 99}, split(11, A=11)),
        (model(), {}, (), {"n_gpu_layers": 4}, split(0)),
        (model(), {"A": 30, "B": 20}, (A, B), {"n_gpu_layers": 4}, split(4, A=2, B=2)),
        # ---- main_gpu: nothing goes to another one
        (model(), {"A": 500, "B": 150}, (A, B), {"main_gpu": 1}, split(11, B=11)),
        (model(), {"A": 500, "B": 50}, (A, B), {"main_gpu": 1}, split(5, B=5)),
        # ---- tensor_split
        (model(), {"A": 99, "B": 99}, (A, B), {"tensor_split": (3, 1)}, split(11, A=9, B=2)),
        (model(), {"A": 99, "B": 50}, (A, B), {"tensor_split": (1, 1)}, split(11, A=6, B=5)),
        (model(), {"A": 99, "B": 49}, (A, B), {"tensor_split": (1, 1)}, split(9, A=5, B=4)),
        (model(), {"A": 0, "B": 500}, (A, B), {"tensor_split": (0, 2)}, split(11, B=11)),
        (model(), {"A": 500, "B": 500}, (A, B), {"tensor_split": (1,)}, split(11, A=11)),
        # ---- mixtures of experts: experts leave before layers do
        (model(experts=8), {"A": 110}, (A,), {}, split(11, A=11)),
        (model(experts=8), {"A": 100}, (A,), {}, split(11, 2, A=11)),
        (model(experts=8), {"A": 30}, (A,), {}, split(11, 10, A=11)),
        (model(experts=8), {"A": 16}, (A,), {}, split(4, 10, A=4)),
        (model(experts=8), {"A": 60, "B": 40}, (A, B), {}, split(11, 2, A=7, B=4)),
    ],
)
def test_where_the_layers_go(
    sizes: Sizes,
    room: dict[str, int],
    devices: tuple[Device, ...],
    wishes: dict[str, Any],
    expected: Split,
) -> None:
    found = place(sizes, room, *devices, **wishes)
    assert found.split == expected, found.reasons
    assert found.fits
    needs = needs_of(sizes, found.split)
    assert all(need.total_bytes <= {CPU: 1000, **room}[name] for name, need in needs.items())


@pytest.mark.parametrize(
    ("room", "devices", "wishes", "expected"),
    [
        ({"A": 30}, (A,), {"n_gpu_layers": 4}, split(4, A=4)),
        ({"A": 10, "B": 10}, (A, B), {"n_gpu_layers": 4}, split(4, A=2, B=2)),
        (
            {"A": 99, "B": 5},
            (A, B),
            {"n_gpu_layers": 4, "tensor_split": (1, 1)},
            split(4, A=2, B=2),
        ),
        ({"A": 500, "B": 30}, (A, B), {"n_gpu_layers": 4, "main_gpu": 1}, split(4, B=4)),
    ],
)
def test_what_was_asked_for_is_not_given_less_where_it_does_not_fit(
    room: dict[str, int], devices: tuple[Device, ...], wishes: dict[str, Any], expected: Split
) -> None:
    found = place(model(), room, *devices, **wishes)
    assert (found.split, found.fits) == (expected, False)


@pytest.mark.parametrize(
    ("wishes", "problem"),
    [
        ({"main_gpu": 2}, "main_gpu is 2"),
        ({"main_gpu": -1}, "main_gpu is -1"),
        ({"tensor_split": (1, 1, 1)}, "3 shares, but this machine has 2 GPUs"),
        ({"tensor_split": (0, 0)}, "not only zeros"),
    ],
)
def test_wishes_that_this_machine_cannot_mean_are_refused(
    wishes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(BadWish, match=problem):
        place(model(), {"A": 500, "B": 500}, A, B, **wishes)


def test_wishes_about_gpus_mean_nothing_without_one() -> None:
    assert place(model(), {}, main_gpu=1, tensor_split=(1.0,)).split == Split()


@pytest.mark.parametrize(
    ("ram", "room", "fits"),
    [
        (115, {}, True),  # the input, ten layers, the output
        (114, {}, False),
        (65, {"A": 50}, True),  # the input and six layers
        (64, {"A": 50}, False),
        (5, {"A": 110}, True),
    ],
)
def test_ram_holds_what_the_gpus_do_not(ram: int, room: dict[str, int], fits: bool) -> None:
    assert place(model(), room, A, ram=ram).fits is fits


@pytest.mark.parametrize(("ram", "n"), [(115, 11), (114, 0), (115 + 20, 11)])
def test_an_integrated_gpu_and_ram_are_the_same_memory(ram: int, n: int) -> None:
    found = place(model(), {"I": 500}, INTEGRATED, ram=ram)
    assert found.split.n_gpu_layers == n
    assert found.fits is (n > 0)


@pytest.mark.parametrize(
    ("room", "split_expected", "is_whole"),
    [
        ({"A": 210}, split(11, A=11), True),
        ({"A": 209}, split(11, A=11), False),
        ({"A": 130}, split(11, A=11), False),
        ({"A": 129}, split(10, A=10), False),
        ({"A": 130, "B": 90}, split(11, A=6, B=5), True),  # a second GPU before a smaller window
        ({}, split(0), True),
    ],
)
def test_the_window_gives_way_before_layers_do(
    room: dict[str, int], split_expected: Split, is_whole: bool
) -> None:
    devices = [device for device in (A, B) if device.name in room]
    found = place(model(kv=10), room, *devices, least=model(kv=2))
    assert (found.split, found.has_whole_window) == (split_expected, is_whole)


def test_without_gpus_the_window_gives_way_to_what_ram_there_is() -> None:
    found = place(model(kv=10), {}, least=model(kv=2), ram=150)
    assert (found.fits, found.has_whole_window) == (True, False)


def test_needs_are_counted_where_they_lie() -> None:
    sizes = model(4, weights=10, kv=3, experts=6, gpu_compute_bytes=7, cpu_compute_bytes=8)
    assert needs_of(sizes, Split()) == {CPU: Need(5 + 40 + 10, 12, 8)}
    assert needs_of(sizes, split(3, A=1, B=2)) == {
        CPU: Need(5 + 20, 6, 8),
        "A": Need(10, 3, 7),
        "B": Need(10 + 10, 3, 7),
    }
    assert needs_of(sizes, split(5, 2, A=5)) == {
        CPU: Need(5 + 2 * 6, 0, 8),
        "A": Need(40 - 2 * 6 + 10, 12, 7),
    }


def test_tied_embeddings_lie_in_ram_once_and_on_a_gpu_again() -> None:
    sizes = model(2, is_tied=True)
    assert needs_of(sizes, Split())[CPU].weights_bytes == 5 + 20
    needs = needs_of(sizes, split(1, A=1))
    assert (needs[CPU].weights_bytes, needs["A"].weights_bytes) == (5 + 20, 10)


def test_layers_with_a_sliding_window_keep_less_and_are_counted_so() -> None:
    sizes = Sizes((Layer(10, 2), Layer(10, 2), Layer(10, 50)) * 2, 5, 10)
    found = place(sizes, {"A": 100})
    assert found.split == Split()  # RAM and not the GPU: there is none
    found = place(sizes, {"A": 100}, A)
    assert found.split == split(4, A=4)  # 10 + 60 + 12 + 12, and no second one of 60
    assert needs_of(sizes, found.split)["A"] == Need(40, 54, 0)


def test_a_quantised_kv_cache_leaves_room_for_layers() -> None:
    assert place(model(kv=10), {"A": 110}, A).split.n_gpu_layers == 6
    assert place(model(kv=5), {"A": 110}, A).split.n_gpu_layers == 7


@pytest.mark.parametrize(
    ("devices", "names", "n_reasons"),
    [
        ((RAM,), [], 0),
        ((RAM, A, INTEGRATED), ["A"], 1),
        ((RAM, REMOTE, INTEGRATED), ["RPC0", "I"], 0),  # another machine's is not this one's
        ((RAM, gpu("X", free_bytes=0, total_bytes=0)), [], 1),
        ((RAM, gpu("BLAS", kind="accel")), [], 0),
    ],
)
def test_which_gpus_may_have_layers(
    devices: tuple[Device, ...], names: list[str], n_reasons: int
) -> None:
    kept, reasons = usable(devices)
    assert [device.name for device in kept] == names
    assert len(reasons) == n_reasons


GIB = 1 << 30


@pytest.mark.parametrize(
    ("free", "held", "overheads", "now", "alone"),
    [
        (8, 0, {}, 8, 8),
        (5, 3, {}, 5, 8),
        (5, 2, {}, 5, 7),  # somebody else has the rest
        (8, 3, {}, 5, 8),  # a driver that does not say what other processes took
        (6, 0, {"": 2 * GIB}, 6, 6),  # the device's free memory is without it already
        (3, 3, {"G": 2 * GIB, "": GIB}, 3, 6),
        (0, 0, {"G": 9 * GIB}, 0, 0),
    ],
)
def test_the_room_on_a_gpu(
    free: int, held: int, overheads: dict[str, int], now: int, alone: int
) -> None:
    device = gpu("G", free_bytes=free * GIB, total_bytes=8 * GIB)
    room = rooms([device], {"G": held * GIB}, overheads)
    assert room.now["G"] == max(0, now * GIB - GPU_MARGIN_BYTES)
    assert room.alone["G"] == max(0, alone * GIB - GPU_MARGIN_BYTES)


def test_nothing_but_a_margin_is_kept_of_ram() -> None:
    ram = Device(CPU, "cpu", 4 * GIB, 8 * GIB)
    room = rooms([ram], {CPU: GIB}, {"": GIB}, extra_margin_bytes=GIB)
    assert room.now[CPU] == 4 * GIB - RAM_MARGIN_BYTES
    assert room.alone[CPU] == 5 * GIB - RAM_MARGIN_BYTES


@pytest.mark.parametrize(
    ("now", "alone", "expected"),
    [
        ({"A": 110}, {"A": 110}, "now"),
        ({"A": 110}, {"A": 500}, "now"),  # more room would change nothing
        ({"A": 50}, {"A": 50}, "now"),  # partly, but nobody could make room
        ({"A": 50}, {"A": 60}, "crowded"),
        ({"A": 0}, {"A": 60}, "crowded"),
    ],
)
def test_a_plan_is_crowded_where_others_have_what_would_hold_more_of_it(
    now: dict[str, int], alone: dict[str, int], expected: str
) -> None:
    assert fit_of(place(model(), now, A), place(model(), alone, A)) == expected


@pytest.mark.parametrize(
    ("now", "alone", "expected"),
    [(115, 115, "now"), (100, 115, "crowded"), (100, 114, "never")],
)
def test_without_a_gpu_a_model_fits_or_not(now: int, alone: int, expected: str) -> None:
    assert fit_of(place(model(), {}, ram=now), place(model(), {}, ram=alone)) == expected


def test_experts_that_others_keep_off_a_gpu_are_worth_waiting_for() -> None:
    sizes = model(experts=8)
    now, alone = (place(sizes, {"A": room}, A) for room in (100, 110))
    assert fit_of(now, alone) == "crowded"


def test_asking_for_more_layers_than_fit_never_works() -> None:
    found = place(model(), {"A": 30}, A, n_gpu_layers=4)
    assert fit_of(found, found) == "never"


def test_every_reason_is_in_words() -> None:
    found = place(model(experts=8), {"A": 100}, A, INTEGRATED)
    assert found.reasons == (
        "I is left out: there is a discrete GPU",
        "11 of 11 layers: 11 on A; the experts of the first 2 stay in RAM",
    )
