"""The memory that control groups leave, by pretended `/proc` and `/sys/fs/cgroup`."""

from pathlib import Path

import pytest
from pretended_cgroups import pretend

from localrun.cgroups import MemoryLimit, memory

V2, V1 = "0::/a/b\n", "3:cpu:/x\n2:memory:/a/b\n0::/\n"


def v2(folder: str, maximum: str, current: int, inactive: int) -> dict[str, str]:
    return {
        f"{folder}memory.max": f"{maximum}\n",
        f"{folder}memory.current": f"{current}\n",
        f"{folder}memory.stat": f"anon 5\ninactive_file {inactive}\n",
    }


def v1(folder: str, maximum: int, current: int, inactive: int) -> dict[str, str]:
    return {
        f"{folder}memory.limit_in_bytes": f"{maximum}\n",
        f"{folder}memory.usage_in_bytes": f"{current}\n",
        f"{folder}memory.stat": f"cache 7\ntotal_inactive_file {inactive}\n",
    }


CASES: dict[str, tuple[str, dict[str, str], MemoryLimit | None]] = {
    "no cgroups at all": ("", {}, None),
    "no limit": (V2, v2("a/b/", "max", 300, 100), None),
    "cache that nobody uses is free": (V2, v2("a/b/", "1000", 300, 100), MemoryLimit(1000, 800)),
    "of a container, at its root": ("0::/\n", v2("", "1000", 300, 0), MemoryLimit(1000, 700)),
    "of the folder above": (
        V2,
        v2("a/", "500", 450, 0) | v2("a/b/", "max", 100, 0),
        MemoryLimit(500, 50),
    ),
    "the least of each, on the way": (
        V2,
        v2("a/", "900", 800, 0) | v2("a/b/", "600", 100, 0),
        MemoryLimit(600, 100),
    ),
    "not of a neighbour": (V2, v2("a/c/", "1000", 300, 0), None),
    "nothing is left": (V2, v2("a/b/", "1000", 1200, 0), MemoryLimit(1000, 0)),
    "v1": (V1, v1("memory/a/b/", 1000, 300, 100), MemoryLimit(1000, 800)),
    "v1, of the folder above": (V1, v1("memory/a/", 1000, 900, 0), MemoryLimit(1000, 100)),
    "what is no number": (V2, v2("a/b/", "", 300, 100), None),
}


@pytest.mark.parametrize(("own", "files", "expected"), CASES.values(), ids=CASES)
def test_the_memory_that_control_groups_leave(
    tmp_path: Path, own: str, files: dict[str, str], expected: MemoryLimit | None
) -> None:
    assert memory(*pretend(tmp_path, own, files)) == expected
