"""The machine that was measured on, without anything that names it."""

import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Machine:
    """`n_cores` that this process may use, memory in bytes (0: not known)."""

    cpu: str
    n_cores: int
    memory_bytes: int
    system: str

    def __str__(self) -> str:
        memory = f", {self.memory_bytes / 1024**3:.0f} GiB" if self.memory_bytes else ""
        return f"{self.cpu}, {self.n_cores} cores{memory}; {self.system}"


def this_machine() -> Machine:
    """Reads what the operating system says."""
    has_affinity = hasattr(os, "sched_getaffinity")
    n_cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return Machine(cpu_name(), n_cores, _memory_bytes(), system)


def cpu_name() -> str:
    """The model of the processor, as far as the system tells."""
    if _CPUINFO.exists():
        for line in _CPUINFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if platform.system() == "Darwin":
        sysctl = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        done = subprocess.run(sysctl, capture_output=True, text=True, check=False)
        if done.stdout.strip():
            return done.stdout.strip()
    return platform.processor() or platform.machine()


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
