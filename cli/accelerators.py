"""GPUs that the system's own tools see, and what to do when llama.cpp does not compute on them.

The tools are asked here; what follows from their answers is pure.
"""

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# A tool answers within a second; one whose driver hangs never does.
_TOOL_TIMEOUT_S = 10.0

# The answer of a tool; None when it is not there or fails.
Ask = Callable[[Sequence[str]], str | None]


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A kind of GPU: how it is seen, and how llama.cpp is built for it.

    `backend` is llama.cpp's name of its library; `name` has its article. `sign` stands in the
    answer of `tool` when there is such a GPU. The build needs `compiler`, which comes with
    `package` and may lie in `folder` without being on PATH, and `cmake_args`, if any: the installer
    finds out about the others by itself. `variables` can hide such a GPU from llama.cpp.
    """

    backend: str
    name: str
    tool: tuple[str, ...]
    sign: str
    compiler: str
    package: str
    folder: str = ""
    cmake_args: str = ""
    variables: str = ""


CUDA = Accelerator(
    "cuda",
    "an NVIDIA GPU",
    ("nvidia-smi", "-L"),
    r"^GPU \d+:",
    "nvcc",
    "the CUDA toolkit",
    folder="/usr/local/cuda/bin",
    variables="CUDA_VISIBLE_DEVICES",
)
ROCM = Accelerator(
    "hip",
    "an AMD GPU with ROCm",
    ("rocminfo",),
    r"^\s*Name:\s+gfx\d",
    "hipcc",
    "ROCm's compiler",
    folder="/opt/rocm/bin",
    variables="HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES",
)
VULKAN = Accelerator(
    "vulkan",
    "a GPU with Vulkan",
    ("vulkaninfo", "--summary"),
    # A processor that plays a GPU is no gain.
    r"PHYSICAL_DEVICE_TYPE_(DISCRETE|INTEGRATED)_GPU",
    "glslc",
    "the Vulkan SDK with glslc",
    cmake_args="-DGGML_VULKAN=ON",
    variables="GGML_VK_VISIBLE_DEVICES",
)


def ask_tool(command: Sequence[str]) -> str | None:
    """Runs one of the system's tools; see `Ask`."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return done.stdout if done.returncode == 0 else None


def seen(ask: Ask = ask_tool) -> tuple[Accelerator, ...]:
    """The GPUs of this machine. One that Vulkan shows too counts as what it is."""
    found = tuple(one for one in (CUDA, ROCM) if _is_seen(one, ask))
    return found or tuple(one for one in (VULKAN,) if _is_seen(one, ask))


def _is_seen(accelerator: Accelerator, ask: Ask) -> bool:
    answer = ask(accelerator.tool)
    return answer is not None and bool(re.search(accelerator.sign, answer, re.MULTILINE))


def advice(
    there: Sequence[Accelerator],
    backends: Sequence[str],
    *,
    has_gpu: bool,
    installer: str = "./install.sh",
    which: Callable[..., str | None] = shutil.which,
) -> list[str]:
    """What to do about GPUs that llama.cpp, built for `backends`, leaves alone.

    `has_gpu` when it lists one. `installer` is the command that builds it anew.
    """
    lines = []
    for one in there:
        if one.backend not in backends:
            # Another backend may drive the same card.
            if not has_gpu:
                lines.append(_how_to_build(one, installer, which))
        elif not has_gpu:
            lines.append(
                f"llama.cpp was built for {one.name} and finds none, though `{one.tool[0]}` "
                f"does: look at {one.variables}, and whether this user may open the device"
            )
    return lines


def _how_to_build(one: Accelerator, installer: str, which: Callable[..., str | None]) -> str:
    found = f"{one.name} is here, but llama.cpp was built without support for it"
    command = f"LOCALRUN_INSTALL_CMAKE_ARGS={one.cmake_args} {installer}"
    if not one.cmake_args:
        command = installer
    if which(one.compiler):
        return f"{found}; build it anew: `{command}`"
    if one.folder and which(one.compiler, path=one.folder):
        return f"{found}; build it anew: `PATH={one.folder}:$PATH {command}`"
    return f"{found}; install {one.package}, so that there is `{one.compiler}`, then: `{command}`"
