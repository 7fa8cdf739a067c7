"""What this machine offers a model: CPUs, and what llama.cpp was built for.

The one file of the room that looks around.

Source: cgroups(7); the kernel's cgroup-v2.rst and sched-bwc.rst.
"""

import importlib.util
import platform
import re
from dataclasses import dataclass
from pathlib import Path

import psutil

from localrun.cgroups import CGROUPS, PROC, folders
from localrun.processors import own_cpus

_PROC = PROC
_CGROUPS = CGROUPS

_BACKEND = re.compile(r"libggml-([a-z0-9]+)")
# Libraries of llama.cpp that compute on the CPU, elsewhere, or not at all.
_NO_GPU = {"base", "cpu", "blas", "rpc"}


@dataclass(frozen=True, slots=True)
class Cpus:
    """`n` CPUs are worth a compute thread; `reason` says why, in words."""

    n: int
    reason: str


def cpus() -> Cpus:
    """CPUs worth a compute thread: physical cores, cut by affinity and by the cgroup's quota."""
    allowed = len(own_cpus())
    physical = psutil.cpu_count(logical=False) or allowed
    # The first of the smallest counts.
    return min(
        (
            Cpus(physical, "physical cores"),
            Cpus(allowed, "processors that this process may run on"),
            Cpus(_quota(_PROC, _CGROUPS) or physical, "processors in the CPU quota of the cgroup"),
        ),
        key=lambda cpus: cpus.n,
    )


def n_cpus() -> int:
    """The number of `cpus`."""
    return cpus().n


def gpu_backends(folder: Path | None = None) -> tuple[str, ...] | None:
    """GPUs that the installed llama.cpp was built for (`cuda`, `vulkan`, …), sorted.

    None when that cannot be told from its files. Nothing is loaded: each backend is a library of
    its own, `libggml-cuda.so`.
    """
    if folder is None:
        found = importlib.util.find_spec("llama_cpp")
        if found is None or not found.submodule_search_locations:
            return None
        folder = Path(found.submodule_search_locations[0]) / "lib"
    names = {match[1] for path in folder.glob("libggml*") if (match := _BACKEND.match(path.name))}
    if "base" not in names:
        return None
    return tuple(sorted(names - _NO_GPU))


def cpu_model(proc: Path = _PROC) -> str:
    """The name of the CPU, as far as the system tells."""
    try:
        lines = (proc / "cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def _quota(proc: Path, root: Path) -> int | None:
    """Whole CPUs that our cgroup and all above it grant, at least one; None without a quota."""
    quotas = [quota for folder in folders("cpu", proc, root) if (quota := _quota_of(folder))]
    return max(1, int(min(quotas))) if quotas else None


def _quota_of(folder: Path) -> float | None:
    """CPUs that one cgroup grants; None without a quota."""
    try:
        if (v2 := folder / "cpu.max").exists():
            limit_us, period_us = v2.read_text().split()
        else:
            limit_us = (folder / "cpu.cfs_quota_us").read_text()
            period_us = (folder / "cpu.cfs_period_us").read_text()
        quota = int(limit_us) / int(period_us)
    except (OSError, ValueError, ZeroDivisionError):  # `max` is no number
        return None
    return quota if quota > 0 else None  # v1 writes -1 for no quota
