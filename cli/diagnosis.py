"""What `doctor` found → the text that it prints, and whether anything is broken. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from cli.render import size, table
from cli.replies import Device, Machine

_GPU_KINDS = ("gpu", "igpu")


@dataclass(frozen=True, slots=True)
class Findings:
    """`problems` keep something that the settings ask for from working; `hints` do not."""

    problems: tuple[str, ...]
    hints: tuple[str, ...]


def has_gpu(machine: Machine) -> bool:
    """True when llama.cpp lists a GPU of this machine; those of RPC servers are elsewhere."""
    return any(one.kind in _GPU_KINDS and not one.endpoint for one in machine.devices)


def examine(machine: Machine, daemon_problem: str, advice: Sequence[str]) -> Findings:
    """What is wrong, and what could be better; `advice` is about GPUs that are left alone."""
    problems = [daemon_problem] if daemon_problem else []
    if machine.devices_problem:
        problems.append(f"the devices cannot be listed: {machine.devices_problem}")
    problems += [
        f"the RPC server {server} does not answer; start llama.cpp's `ggml-rpc-server` there, end "
        "what else uses it (it has one client at a time), or take it out of LOCALRUN_RPC_SERVERS"
        for server in machine.unreachable
    ]
    if machine.models_problem:
        problems.append(f"{machine.models_problem}; name another folder with LOCALRUN_MODELS")
    hints = list(advice)
    if not machine.unreachable and not machine.devices_problem:
        names = {device.name for device in machine.devices} | {""}
        hints += [
            f"LOCALRUN_GPU_OVERHEAD names `{name}`, and there is no such device"
            for name in machine.gpu_overhead_bytes
            if name not in names
        ]
    return Findings(tuple(problems), tuple(hints))


def text(machine: Machine, daemon: str, findings: Findings) -> str:
    """All of it; `daemon` says in words whether one runs."""
    rows = [
        ("daemon", daemon),
        ("models", f"{machine.models_folder}, {size(machine.disk_free_bytes)} free"),
        ("threads", f"{machine.n_threads} ({machine.cpu_reason})"),
        ("processor", machine.cpu_model),
        ("llama.cpp", f"built for {_built_for(machine.gpu_backends)}"),
        *(("", line) for line in _features(machine.build)),
    ]
    parts = [table(rows)]
    if machine.devices:
        parts.append(_device_table(machine))
    for title, lines in (("Problems", findings.problems), ("Hints", findings.hints)):
        if lines:
            parts.append(f"{title}\n" + "".join(f"  * {line}\n" for line in lines))
    if not findings.problems:
        parts.append("Nothing is broken.\n")
    return "\n".join(parts)


def _device_table(machine: Machine) -> str:
    header = ("DEVICE", "KIND", "TOTAL", "FREE", "KEPT BACK", "DESCRIPTION")
    rows = [
        (
            device.name,
            device.kind,
            size(device.total_bytes),
            size(device.free_bytes),
            _kept_back(device, machine.gpu_overhead_bytes),
            _description(device),
        )
        for device in machine.devices
    ]
    return table([header, *rows])


def _kept_back(device: Device, overhead_bytes: dict[str, int]) -> str:
    if device.kind not in _GPU_KINDS:
        return "-"
    return size(overhead_bytes.get(device.name, overhead_bytes.get("", 0)))


def _description(device: Device) -> str:
    if not device.endpoint:
        return device.description
    words = f"RPC server {device.endpoint}"
    # Its server may describe it by nothing but the address.
    is_said = device.description in ("", device.endpoint)
    return words if is_said else f"{device.description}, {words}"


def _built_for(backends: tuple[str, ...] | None) -> str:
    if backends is None:
        return "what its files do not tell"
    return ", ".join([*backends, "cpu"])


def _features(build: str) -> list[str]:
    """Lines like `CPU: AVX2 FMA` of llama.cpp's `CPU : SSE3 = 0 | AVX2 = 1 | FMA = 1 | `."""
    lines: list[list[str]] = []
    for part in filter(None, (part.strip() for part in build.split("|"))):
        backend, separator, feature = part.rpartition(" : ")
        if separator or not lines:
            lines.append([f"{backend}:"] if separator else [])
        name, _, value = (word.strip() for word in feature.partition("="))
        if value != "0":
            lines[-1].append(name if value in ("1", "") else f"{name}={value}")
    return [" ".join(words) for words in lines]
