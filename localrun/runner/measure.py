"""What this machine has left for a model. Looks at the system; allocates nothing."""

import time

import psutil

from localrun import cgroups
from localrun.processors import own_cpus


def free_ram_bytes() -> int:
    """Bytes of RAM that can be had without swapping: the system's, cut by the cgroups' limits."""
    available = int(psutil.virtual_memory().available)
    limit = cgroups.memory()
    return available if limit is None else min(available, limit.free_bytes)


def total_ram_bytes() -> int:
    """Bytes of RAM that there would be if nobody else used any, cut by the cgroups' limits."""
    total = int(psutil.virtual_memory().total)
    limit = cgroups.memory()
    return total if limit is None else min(total, limit.limit_bytes)


def process_cpu_s(pid: int) -> float:
    """Seconds of CPU that another process has used so far; 0 for one that is gone."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def used_cpu_s() -> tuple[float, float]:
    """Seconds of CPU so far: what all processes used on the CPUs that are ours, and what we used.

    Time that a hypervisor gave to others counts as used.
    """
    mine = own_cpus()
    times = [cpu for number, cpu in enumerate(psutil.cpu_times(percpu=True)) if number in mine]
    idle_fields = ("idle", "iowait", "guest", "guest_nice")  # guests are part of user
    used_s = sum(
        value
        for cpu in times
        for name, value in zip(cpu._fields, cpu, strict=True)
        if name not in idle_fields
    )
    return used_s, time.process_time()
