"""What a machine offers to localrun, for a person: devices, CPUs, the build, the models' folder.

The daemon answers with this for itself; without one, `localrun doctor` looks on its own.
"""

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from msgspec import Struct

from localrun.ipc.messages import DevicesListed
from localrun.memory import Device
from localrun.placement.machine import cpu_model, cpus, gpu_backends
from localrun.settings import Settings, models_folder
from localrun.supervisor.devices import DevicesUnknown


class Diagnosis(Struct, frozen=True):
    """What was found. Sizes are bytes; `devices` have their free memory of now.

    `devices_problem` says why there are none, `models_problem` why no model can be kept in
    `models_folder`; both are empty when all is well. `unreachable` RPC servers did not answer.
    `gpu_backends` are the kinds of GPU that llama.cpp was built for, None when that cannot be
    told, and `build` its own words about the build. `n_threads` compute, because of `cpu_reason`.
    `gpu_overhead_bytes` are kept back as in `LoadSpec`.
    """

    devices: tuple[Device, ...]
    devices_problem: str
    unreachable: tuple[str, ...]
    build: str
    gpu_backends: tuple[str, ...] | None
    gpu_overhead_bytes: dict[str, int]
    cpu_model: str
    n_threads: int
    cpu_reason: str
    models_folder: str
    models_problem: str
    disk_free_bytes: int


async def diagnose(
    settings: Settings, list_devices: Callable[[], Awaitable[DevicesListed]]
) -> Diagnosis:
    """Looks at the machine, for as long as its drivers take to answer."""
    try:
        listed, problem = await list_devices(), ""
    except DevicesUnknown as error:
        listed, problem = DevicesListed(()), str(error)
    return await asyncio.to_thread(_put_together, settings, listed, problem)


def _put_together(settings: Settings, listed: DevicesListed, problem: str) -> Diagnosis:
    found = cpus()
    n_threads, reason = found.n, found.reason
    if settings.num_thread is not None:
        n_threads, reason = settings.num_thread, "set by NUM_THREAD"
    models = models_folder(settings)
    models_problem, disk_free_bytes = _look_at_disk(models)
    return Diagnosis(
        devices=listed.devices,
        devices_problem=problem,
        unreachable=listed.unreachable,
        build=listed.build,
        gpu_backends=gpu_backends(),
        gpu_overhead_bytes=settings.gpu_overhead_bytes,
        cpu_model=cpu_model(),
        n_threads=n_threads,
        cpu_reason=reason,
        models_folder=str(models),
        models_problem=models_problem,
        disk_free_bytes=disk_free_bytes,
    )


def _look_at_disk(folder: Path) -> tuple[str, int]:
    """(problem, free bytes) of a folder that may not be there yet."""
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        free_bytes = shutil.disk_usage(place).free
    except OSError as error:
        return f"{place} cannot be read: {error.strerror}", 0
    if not place.is_dir():
        return f"{place} is no folder", free_bytes
    if not os.access(place, os.W_OK | os.X_OK):
        return f"{place} cannot be written", free_bytes
    return "", free_bytes
