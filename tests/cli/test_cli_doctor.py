"""`localrun doctor`: with a daemon, without one, and what it says about what it finds."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cli_stub import Reply, Shell, Stub

from cli.accelerators import CUDA, ROCM, VULKAN, Accelerator, advice, ask_tool, seen
from cli.commands import doctor
from cli.diagnosis import examine, has_gpu, text
from cli.replies import Device, Machine

CPU = {"name": "CPU", "kind": "cpu", "free_bytes": 22_000_000_000, "total_bytes": 25_000_000_000}
FOUND = {
    "devices": [CPU],
    "build": "CPU : SSE3 = 0 | AVX2 = 1 | FMA = 1 | CUDA : ARCHS = 890 | ",
    "gpu_backends": ["cuda"],
    "cpu_model": "Abacus 9",
    "n_threads": 2,
    "cpu_reason": "physical cores",
    "models_folder": "/models",
    "disk_free_bytes": 80_000_000_000,
    "later": True,
}


@pytest.fixture(autouse=True)
def _no_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "seen", lambda: ())


def test_a_daemon_is_asked_for_what_it_sees(stub: Stub, shell: Shell) -> None:
    version = {"version": "0.30.0", "localrun": "0.1.0", "pid": 7}
    stub.on("GET", "/api/version", Reply(body=version))
    stub.on("GET", "/api/devices", Reply(body=FOUND))
    result = shell("doctor")
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        f"daemon       localrun 0.1.0 at http://127.0.0.1:{stub.port}, pid 7\n"
        "models       /models, 80 GB free\n"
        "threads      2 (physical cores)\n"
        "processor    Abacus 9\n"
        "llama.cpp    built for cuda, cpu\n"
        "             CPU: AVX2 FMA\n"
        "             CUDA: ARCHS=890\n"
        "\n"
        "DEVICE    KIND    TOTAL    FREE     KEPT BACK    DESCRIPTION\n"
        "CPU       cpu     25 GB    22 GB    -\n"
        "\n"
        "Nothing is broken.\n"
    )


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"devices": [], "devices_problem": "no answer"}, "cannot be listed: no answer"),
        ({"unreachable": ["box:50052"]}, "the RPC server box:50052 does not answer"),
        ({"models_problem": "/models cannot be written"}, "/models cannot be written; name"),
    ],
)
def test_what_is_broken_is_named_and_has_an_exit_code(
    stub: Stub, shell: Shell, changes: dict[str, Any], part: str
) -> None:
    stub.on("GET", "/api/devices", Reply(body=FOUND | changes))
    result = shell("doctor")
    assert (result.code, result.err) == (7, "")
    assert part in result.out.partition("Problems\n")[2]
    assert "Nothing is broken" not in result.out


def test_without_a_daemon_it_looks_itself_and_starts_none(shell: Shell, tmp_path: Path) -> None:
    result = shell(
        "doctor",
        **{**os.environ, "LOCALRUN_HOST": "127.0.0.1:1", "LOCALRUN_MODELS": str(tmp_path / "m")},
    )
    assert (result.code, result.err) == (0, "")
    assert "none at http://127.0.0.1:1; commands that need one start it" in result.out
    assert f"{tmp_path / 'm'}, " in result.out
    assert not (tmp_path / "m").exists()


def test_a_daemon_that_is_too_old_to_say_is_looked_past(stub: Stub, shell: Shell) -> None:
    result = shell("doctor")
    assert result.code == 0
    assert f"localrun 0.1.0 at http://127.0.0.1:{stub.port}" in result.out
    assert "threads" in result.out


@pytest.mark.parametrize(
    ("reply", "part"),
    [
        (Reply(body={"version": "0.12.3"}), "Ollama 0.12.3 at http"),
        (Reply(body=[1]), "the server there is not a localrun or Ollama"),
        (Reply(503, {"error": "the server is shutting down"}), "refuses: the server is shutting"),
    ],
)
def test_somebody_else_at_the_address_is_a_problem(
    stub: Stub, shell: Shell, reply: Reply, part: str
) -> None:
    stub.on("GET", "/api/version", reply)
    result = shell("doctor")
    assert result.code == 7
    assert part in result.out.partition("Problems\n")[2]


def test_a_bad_setting_is_named(shell: Shell) -> None:
    result = shell("doctor", LOCALRUN_RPC_SERVERS="box")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("Error: LOCALRUN_RPC_SERVERS: `box` is not host:port")


# ---- the text


GPU = Device("CUDA0", "gpu", 20_000_000_000, 24_000_000_000, "GeForce 9")
RPC = Device("RPC0", "gpu", 1, 48_000_000_000, "box:50052", "box:50052")


def test_what_is_kept_back_stands_beside_each_gpu() -> None:
    machine = Machine((GPU, RPC), gpu_overhead_bytes={"": 1_000_000_000, "RPC0": 2_000_000_000})
    lines = text(machine, "none", examine(machine, "", [])).splitlines()
    assert [line.split() for line in lines if line.startswith(("CUDA0", "RPC0"))] == [
        ["CUDA0", "gpu", "24", "GB", "20", "GB", "1", "GB", "GeForce", "9"],
        ["RPC0", "gpu", "48", "GB", "1", "B", "2", "GB", "RPC", "server", "box:50052"],
    ]


def test_an_overhead_of_no_device_is_a_hint() -> None:
    machine = Machine((GPU,), gpu_overhead_bytes={"CUDA1": 1, "CUDA0": 1, "": 1})
    findings = examine(machine, "", ["do this"])
    assert findings.problems == ()
    assert [hint for hint in findings.hints if "CUDA1" in hint] == [findings.hints[1]]
    away = Machine((GPU,), gpu_overhead_bytes={"RPC0": 1}, unreachable=("box:50052",))
    assert examine(away, "", []).hints == ()


def test_a_gpu_of_another_machine_is_none_of_this_one() -> None:
    assert has_gpu(Machine((GPU,)))
    assert not has_gpu(Machine((RPC,)))


# ---- GPUs that are left alone


def system(*answers: tuple[Accelerator, str]) -> Any:
    """The system's tools, of which only those in `answers` are there."""
    said = {accelerator.tool[0]: answer for accelerator, answer in answers}

    def ask(command: Sequence[str]) -> str | None:
        return said.get(command[0])

    return ask


NVIDIA = (CUDA, "GPU 0: NVIDIA GeForce 9 (UUID: GPU-1)\n")
AMD = (ROCM, "Agent 2\n  Name:                    gfx1100\n")
SOFT = (VULKAN, "deviceType = PHYSICAL_DEVICE_TYPE_CPU\n")
HARD = (VULKAN, "deviceType         = PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU\n")


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ((), ()),
        ((NVIDIA,), (CUDA,)),
        ((AMD, HARD), (ROCM,)),
        ((NVIDIA, AMD), (CUDA, ROCM)),
        ((HARD,), (VULKAN,)),
        ((SOFT,), ()),
        (((CUDA, "No devices were found\n"),), ()),
        (((ROCM, "Agent 1\n  Name:                    AMD EPYC\n"),), ()),
    ],
)
def test_gpus_that_the_system_sees(
    answers: tuple[tuple[Accelerator, str], ...], expected: tuple[Accelerator, ...]
) -> None:
    assert seen(system(*answers)) == expected


@pytest.mark.parametrize(
    ("there", "backends", "has_one", "tools", "part"),
    [
        (CUDA, (), False, {"nvcc"}, "anew: `./install.sh`"),
        (CUDA, (), False, {"/usr/local/cuda/bin/nvcc"}, "`PATH=/usr/local/cuda/bin:$PATH ./inst"),
        (CUDA, (), False, (), "install the CUDA toolkit, so that there is `nvcc`, then: `./inst"),
        (ROCM, (), False, {"hipcc"}, "anew: `./install.sh`"),
        (
            VULKAN,
            (),
            False,
            {"glslc"},
            "`LOCALRUN_INSTALL_CMAKE_ARGS=-DGGML_VULKAN=ON ./install.sh`",
        ),
        (CUDA, ("cuda",), False, (), "built for an NVIDIA GPU and finds none, though `nvidia-smi`"),
        (CUDA, ("cuda",), True, (), None),
        (CUDA, ("vulkan",), True, (), None),
        (CUDA, ("vulkan",), False, {"nvcc"}, "built without support for it"),
    ],
)
def test_what_to_do_about_a_gpu(
    there: Accelerator,
    backends: tuple[str, ...],
    has_one: bool,
    tools: Sequence[str],
    part: str | None,
) -> None:
    def which(name: str, path: str | None = None) -> str | None:
        found = f"{path}/{name}" if path else name
        return found if found in tools else None

    lines = advice((there,), backends, has_gpu=has_one, which=which)
    assert len(lines) == (part is not None)
    assert part is None or part in lines[0]


def test_a_tool_that_is_missing_or_fails_has_seen_nothing() -> None:
    assert ask_tool(["/no/such/tool"]) is None
    assert ask_tool(["false"]) is None
    assert ask_tool(["echo", "GPU 0: x"]) == "GPU 0: x\n"
