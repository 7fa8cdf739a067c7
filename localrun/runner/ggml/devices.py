"""The devices that llama.cpp can compute on, and the memory that they have now.

Owns the names: llama.cpp's own, except that a device of an RPC server is numbered by the place of
its server in the setting, so that it keeps its name while another server is away.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from localrun.ipc.messages import LAST_WORDS
from localrun.memory import CPU, GPU_KINDS, Device, DeviceKind
from localrun.placement.layers import overhead_of
from localrun.runner.ggml import library, rpc
from localrun.runner.ggml.binding import lib
from localrun.runner.ggml.log import log
from localrun.runner.measure import free_ram_bytes, total_ram_bytes
from localrun.runner.model import LoadRefused

_KINDS: dict[int, DeviceKind] = {
    library.TYPE_CPU: "cpu",
    library.TYPE_GPU: "gpu",
    library.TYPE_IGPU: "igpu",
    library.TYPE_ACCEL: "accel",
}


@dataclass(frozen=True, slots=True)
class Found:
    """What there is; `away` are the RPC servers that cannot be used now, and why."""

    devices: tuple[Device, ...]
    away: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Known:
    handle: int
    kind: DeviceKind
    description: str
    endpoint: str = ""


class Machine:
    """The devices of this process. One for the whole process, as llama.cpp's registry is."""

    def __init__(self) -> None:
        log()
        lib.llama_backend_init()
        self._known: dict[str, _Known] = {}
        self._servers: dict[str, list[int]] = {}
        self._last_words = _set_last_words(self)
        self._add_own()

    def _add_own(self) -> None:
        ids: set[str] = set()
        for handle in library.own_devices():
            description, kind, place = library.device_props(handle)
            # One card may be seen by two backends; the first one has it.
            if kind in _KINDS and (not place or place not in ids):
                ids.add(place)
                name = library.device_name(handle)
                self._known[name] = _Known(handle, _KINDS[kind], description)

    def look(
        self, rpc_servers: Sequence[str] = (), overheads: Mapping[str, int] | None = None
    ) -> Found:
        """All devices with their memory as it is now, less what the user keeps free.

        Only while nothing is loaded: a server that serves us would look busy.
        """
        known = {name: one for name, one in self._known.items() if not one.endpoint}
        away: dict[str, str] = {}
        n_before = 0
        for endpoint in dict.fromkeys(rpc_servers):
            problem = rpc.problem_of(endpoint) if library.has_rpc() else "this build has no RPC"
            if problem:
                away[endpoint] = problem
            else:
                self._servers[endpoint] = library.add_rpc_server(endpoint)
                for number, handle in enumerate(self._servers[endpoint], n_before):
                    description = library.device_props(handle)[0]
                    known[f"RPC{number}"] = _Known(handle, "gpu", description, endpoint)
            n_before += len(self._servers.get(endpoint, [0]))
        self._known = known
        return Found(tuple(self.device(name, overheads or {}) for name in known), away)

    def device(self, name: str, overheads: Mapping[str, int]) -> Device:
        """One of the devices of the last look, with its memory as it is now."""
        one = self._known[name]
        if one.kind == "cpu":
            free, total = free_ram_bytes(), total_ram_bytes()
        else:
            free, total = library.device_memory(one.handle)
        device = Device(name, one.kind, free, total, one.description, one.endpoint)
        if not device.is_gpu:
            return device
        return replace(device, free_bytes=max(0, free - overhead_of(device, overheads)))

    def handle(self, name: str) -> int:
        """llama.cpp's device. Raises LoadRefused for a name that the last look did not see."""
        if name not in self._known:
            raise LoadRefused(f"the device {name} is not there any more")
        return self._known[name].handle

    def endpoint(self, name: str) -> str:
        """The RPC server that has the device, if one has."""
        return self._known[name].endpoint if name in self._known else ""

    def home(self, buffer_type: int) -> str:
        """The name of the device whose memory buffers of this type are. Pinned memory is RAM."""
        _, handle, is_host = library.buffer_home(buffer_type)
        if handle is None or is_host:
            return CPU
        for name, one in self._known.items():
            if one.handle == handle and one.kind in GPU_KINDS:
                return name
        return CPU

    def home_of_name(self, buffer: str) -> str:
        """As `home`, by the name that buffers have in the log."""
        for name, one in self._known.items():
            if one.kind in GPU_KINDS and library.buffer_names(one.handle) == buffer:
                return name
        return CPU


def build() -> str:
    """Flags of the build: what llama.cpp can use of this machine."""
    return str(lib.llama_print_system_info().decode("utf-8", "replace")).strip()


def _set_last_words(machine: Machine) -> Any:
    """Writes why llama.cpp ends the process, with the servers that may be the cause."""

    def report(message: bytes) -> None:
        text = message.decode("utf-8", "replace").strip()
        head, _, rest = text.partition(" ")
        text = f"{os.path.basename(head)} {rest}"  # of file:line, without where it was built
        if "RPC" in text:
            servers = ", ".join(sorted(machine._servers))
            text = f"the RPC server {servers} was lost: {text}"
        sys.stderr.write(f"{LAST_WORDS}{text}\n")
        sys.stderr.flush()

    return library.on_abort(report)
