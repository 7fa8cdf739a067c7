"""What this machine offers a model: CPUs, for now. The one file of the room that looks around."""

import os
from pathlib import Path

import psutil

# cgroup v2's quota: `max 100000` or `150000 100000` (microseconds per period).
_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def n_cpus() -> int:
    """CPUs worth a compute thread: physical cores, cut by affinity and by the cgroup's quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    physical = psutil.cpu_count(logical=False) or allowed or 1
    return max(1, min(physical, allowed or physical, _quota(_CPU_MAX) or physical))


def _quota(path: Path) -> int | None:
    """Whole CPUs that the quota grants, at least one; None without a quota."""
    try:
        limit_us, period_us = path.read_text().split()
        return None if limit_us == "max" else max(1, int(limit_us) // int(period_us))
    except (OSError, ValueError):
        return None
