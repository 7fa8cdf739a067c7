"""Where the kernel keeps the limits of our control group, and the memory that they leave us.

Source: cgroups(7); the kernel's cgroup-v2.rst and cgroup-v1/memory.rst.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The least that our group and those above it grant: at most, and what is left of it."""

    limit_bytes: int
    free_bytes: int


def folders(controller: str, proc: Path = PROC, root: Path = CGROUPS) -> Iterator[Path]:
    """The folders of our cgroup and of those above it, in v2 and in v1's `controller`."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        lines = []
    yield root
    for line in lines:
        _, controllers, path = line.split(":", 2)
        # A container sees its own cgroup as the root of the file system, and may still be told
        # the host's path, which leads nowhere here; outside of its namespace it begins with `..`.
        parts = () if ".." in path else PurePosixPath(path).parts[1:]
        if not controllers:
            hierarchies = [root, root / "unified"]
        elif controller in controllers.split(","):
            hierarchies = [root / controller, root / controllers]
        else:
            continue
        for folder in hierarchies:
            yield folder
            for depth in range(len(parts)):
                yield folder.joinpath(*parts[: depth + 1])


def memory(proc: Path = PROC, root: Path = CGROUPS) -> MemoryLimit | None:
    """What limits the memory of our group; None without a limit."""
    found = [limit for folder in folders("memory", proc, root) if (limit := _memory_of(folder))]
    if not found:
        return None
    return MemoryLimit(
        min(limit.limit_bytes for limit in found), max(0, min(limit.free_bytes for limit in found))
    )


def _memory_of(folder: Path) -> MemoryLimit | None:
    """What one cgroup grants. Page cache that nobody uses is taken, but given back when needed."""
    for limit_name, used_name, cache_key in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            limit = int((folder / limit_name).read_text())
            used = int((folder / used_name).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            return MemoryLimit(limit, limit - used + int(stat[cache_key]))
        except (OSError, ValueError, KeyError):  # v2 writes `max` for no limit
            continue
    return None
