"""What this machine offers a model: CPUs, for now. The one file of the room that looks around.

Source: cgroups(7); the kernel's cgroup-v2.rst and sched-bwc.rst.
"""

import os
import platform
from pathlib import Path

import psutil

from localrun.cgroups import CGROUPS, PROC, folders

_PROC = PROC
_CGROUPS = CGROUPS


def n_cpus() -> int:
    """CPUs worth a compute thread: physical cores, cut by affinity and by the cgroup's quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    physical = psutil.cpu_count(logical=False) or allowed or 1
    return max(1, min(physical, allowed or physical, _quota(_PROC, _CGROUPS) or physical))


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
