"""How many compute threads a machine is good for, by pretended `/proc` and `/sys/fs/cgroup`."""

import os
from pathlib import Path

import psutil
import pytest
from pretended_cgroups import pretend

from localrun.placement import machine
from localrun.placement.machine import _quota, cpu_model, cpus, gpu_backends, n_cpus

V2, V1 = "0::/a/b\n", "3:cpu,cpuacct:/a/b\n2:memory:/x\n0::/\n"

CASES: dict[str, tuple[str, dict[str, str], int | None]] = {
    "no quota": (V2, {"a/b/cpu.max": "max 100000\n"}, None),
    "no cgroups at all": ("", {}, None),
    "of a container, at its root": ("0::/\n", {"cpu.max": "400000 100000\n"}, 4),
    "of a container that is told the host's path": (
        "0::/docker/5f0\n",
        {"cpu.max": "200000 100000\n"},
        2,
    ),
    "in whole CPUs": (V2, {"a/b/cpu.max": "150000 100000\n"}, 1),
    "at least one": (V2, {"a/b/cpu.max": "5000 100000\n"}, 1),
    "of the folder above": (V2, {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, 3),
    "the least one on the way": (
        V2,
        {"a/cpu.max": "200000 100000", "a/b/cpu.max": "600000 100000"},
        2,
    ),
    "not of a neighbour": (V2, {"a/c/cpu.max": "100000 100000"}, None),
    "not outside of the namespace": ("0::/../a/b\n", {"a/b/cpu.max": "100000 100000"}, None),
    "v1": (
        V1,
        {"cpu,cpuacct/a/b/cpu.cfs_quota_us": "250000", "cpu,cpuacct/a/b/cpu.cfs_period_us": "1e5"},
        None,
    ),
    "v1 in whole CPUs": (
        V1,
        {
            "cpu,cpuacct/a/b/cpu.cfs_quota_us": "250000\n",
            "cpu,cpuacct/a/b/cpu.cfs_period_us": "100000\n",
        },
        2,
    ),
    "v1 without a quota": (
        V1,
        {"cpu/a/b/cpu.cfs_quota_us": "-1\n", "cpu/a/b/cpu.cfs_period_us": "100000\n"},
        None,
    ),
    "v1 of the folder above": (
        V1,
        {"cpu/a/cpu.cfs_quota_us": "50000\n", "cpu/a/cpu.cfs_period_us": "50000\n"},
        1,
    ),
    "v2 beside v1": (V1, {"unified/cpu.max": "200000 100000"}, 2),
    "what is no quota": (V2, {"a/b/cpu.max": "", "a/cpu.max": "1 0"}, None),
}


@pytest.mark.parametrize(("own", "files", "expected"), CASES.values(), ids=CASES)
def test_the_quota(tmp_path: Path, own: str, files: dict[str, str], expected: int | None) -> None:
    assert _quota(*pretend(tmp_path, own, files)) == expected


@pytest.mark.parametrize(
    ("physical", "allowed", "quota", "expected"),
    [
        (8, 16, "max 100000", 8),
        (8, 2, "max 100000", 2),
        (8, 16, "350000 100000", 3),
        (8, 2, "350000 100000", 2),
        (8, 16, "20000 100000", 1),
        (None, 6, "max 100000", 6),
    ],
)
def test_threads_are_the_least_of_cores_affinity_and_quota(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    physical: int | None,
    allowed: int,
    quota: str,
    expected: int,
) -> None:
    proc, root = pretend(tmp_path, V2, {"a/b/cpu.max": quota})
    monkeypatch.setattr(machine, "_PROC", proc)
    monkeypatch.setattr(machine, "_CGROUPS", root)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: physical)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: range(allowed), raising=False)
    assert n_cpus() == expected
    part = {8: "cores", 6: "cores", 3: "quota", 1: "quota"}.get(expected, "may run on")
    assert part in cpus().reason


def test_the_cpu_has_a_name(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: Abacus 9 \nflags : x\n")
    assert cpu_model(tmp_path) == "Abacus 9"
    assert cpu_model(tmp_path / "none")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            ["libggml-base.so", "libggml-cpu.so.0", "libggml-rpc.so", "libggml.so", "libllama.so"],
            (),
        ),
        (["libggml-base.so", "libggml-cuda.so", "libggml-cpu-haswell.so"], ("cuda",)),
        (["libggml-base.dylib", "libggml-metal.dylib", "libggml-blas.dylib"], ("metal",)),
        (["libggml-base.so.0.25.3", "libggml-vulkan.so.0", "libggml-hip.so"], ("hip", "vulkan")),
        (["libllama.so"], None),
        ([], None),
    ],
)
def test_what_llama_cpp_was_built_for_is_read_off_its_files(
    tmp_path: Path, files: list[str], expected: tuple[str, ...] | None
) -> None:
    for name in files:
        (tmp_path / name).touch()
    assert gpu_backends(tmp_path) == expected


def test_the_installed_llama_cpp_is_found_without_loading_it() -> None:
    assert gpu_backends() is not None
