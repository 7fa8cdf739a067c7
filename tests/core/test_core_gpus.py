"""What the GPUs of a machine change about a load: the window and how many models there may be."""

import pytest

from localrun.memory import Device, DeviceKind
from localrun.placement.fit import (
    Defaults,
    default_max_loaded,
    default_n_ctx,
    place,
    usable_bytes,
)
from localrun.spec import LoadOptions

GIB = 1 << 30


def device(name: str, gib: float, kind: DeviceKind = "gpu") -> Device:
    return Device(name, kind, free_bytes=0, total_bytes=int(gib * GIB))


CPU = device("CPU", 500, "cpu")
SMALL, LARGE = device("CUDA0", 12), device("CUDA1", 24)


@pytest.mark.parametrize(
    ("overheads", "gib"),
    [
        ({}, 36),
        ({"": GIB}, 34),
        ({"CUDA0": 2 * GIB}, 34),
        ({"": GIB, "CUDA0": 2 * GIB}, 33),
        ({"": GIB, "CUDA0": 0}, 35),
        ({"CUDA0": 100 * GIB}, 24),
        ({"RPC0": GIB}, 36),
    ],
)
def test_what_is_kept_back_does_not_count(overheads: dict[str, int], gib: int) -> None:
    assert usable_bytes([SMALL, LARGE], overheads) == gib * GIB


@pytest.mark.parametrize(
    ("gib", "n_ctx"),
    [(0, 4096), (22.9, 4096), (23, 32_768), (46.9, 32_768), (47, 262_144), (640, 262_144)],
)
def test_the_window_by_memory(gib: float, n_ctx: int) -> None:
    assert default_n_ctx(int(gib * GIB)) == n_ctx


@pytest.mark.parametrize(("n_gpus", "n"), [(0, 3), (1, 3), (2, 6), (8, 24)])
def test_models_in_memory(n_gpus: int, n: int) -> None:
    assert default_max_loaded(n_gpus) == n


@pytest.mark.parametrize(
    ("wanted", "setting", "overheads", "trained", "n_ctx"),
    [
        (None, None, {}, 0, 32_768),
        (None, None, {}, 8192, 8192),
        (None, None, {"": 2 * GIB}, 0, 4096),
        (None, 6000, {}, 0, 6000),
        (1000, None, {}, 0, 1000),
    ],
)
def test_only_a_window_that_nobody_asked_for_depends_on_gpus(
    wanted: int | None, setting: int | None, overheads: dict[str, int], trained: int, n_ctx: int
) -> None:
    defaults = Defaults(setting, n_threads=1, n_threads_max=1, gpu_overhead_bytes=overheads)
    options = LoadOptions(num_ctx=wanted)
    placed = place(options, defaults, n_ctx_train=trained, devices=[CPU, LARGE])
    assert placed.n_ctx == n_ctx
