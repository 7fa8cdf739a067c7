"""llama.cpp's log, of which there is one in a process: kept while asked for, warnings to stderr."""

import ctypes
import functools
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from localrun.runner.ggml.binding import lib

_DEBUG, _WARN = 1, 3
_CONTINUED = 5
_MIB = 1 << 20

# `load_tensors:   CPU_Mapped model buffer size =    93.27 MiB`
_BUFFER_LINE = re.compile(r"(\S+)\s+(\w+) buffer size\s*=\s*([\d.]+) MiB")
# `load_tensors: layer   3 assigned to device CPU, is_swa = 0`
_KV_LAYER_LINE = re.compile(r"layer\s+(\d+): dev = ")
# `llama_kv_cache: size =   90.00 MiB (  4096 cells,  30 layers,  4/1 seqs), K (f16): …`
_KV_SIZE_LINE = re.compile(r"size =\s+([\d.]+) MiB \(\s*\d+ cells")
_FLASH_LINE = re.compile(r"Flash Attention (enabled|not supported)")
_NO_MEMORY = re.compile(
    r"unable to allocate|failed to allocate|out of memory|alloc_tensor_range", re.IGNORECASE
)


class Lines:
    """What llama.cpp said while it did one thing."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, level: int, line: str) -> None:
        """One more. Of what is only told to find bugs, the places of layers are kept."""
        if level > _DEBUG or _KV_LAYER_LINE.search(line):
            self._lines.append(line)

    @property
    def lacks_memory(self) -> bool:
        """True when an allocation failed."""
        return any(_NO_MEMORY.search(line) for line in self._lines)

    @property
    def flash_attention(self) -> bool | None:
        """What llama.cpp decided where it was left the choice; None when it said nothing."""
        found = [match[1] for line in self._lines if (match := _FLASH_LINE.search(line))]
        return found[-1] == "enabled" if found else None

    def buffers(self) -> Iterator[tuple[str, str, int]]:
        """(name of the buffer, `model`, `KV`, `compute` …, bytes), to a hundredth of a MiB."""
        for line in self._lines:
            for name, kind, mib in _BUFFER_LINE.findall(line):
                yield name, kind, int(float(mib) * _MIB)

    def kv_bytes(self, n_layers: int) -> list[int]:
        """Bytes of each layer's KV, to a hundredth of a MiB of each cache.

        Layers belong to the cache whose size is told next: one with a sliding window keeps less.
        """
        sizes = [0] * n_layers
        waiting: list[int] = []
        for line in self._lines:
            if layer := _KV_LAYER_LINE.search(line):
                waiting.append(int(layer[1]))
            elif (size := _KV_SIZE_LINE.search(line)) and waiting:
                for number in waiting:
                    if number < n_layers:
                        sizes[number] += int(float(size[1]) * _MIB) // len(waiting)
                waiting = []
        return sizes


class Log:
    """The receiver, for the life of the process: llama.cpp keeps a pointer to it."""

    def __init__(self) -> None:
        self._level = 0
        self._readers: list[Lines] = []
        self._callback = lib.llama_log_callback(self._receive)
        lib.llama_log_set(self._callback, ctypes.c_void_p(0))

    def _receive(self, level: int, text: bytes, _user_data: Any) -> None:
        # A continued line has the level of the line it continues.
        self._level = self._level if level == _CONTINUED else level
        line = text.decode("utf-8", "replace")
        for reader in self._readers:
            reader.add(self._level, line)
        if self._level >= _WARN:
            sys.stderr.write(line)
            sys.stderr.flush()

    @contextmanager
    def reading(self) -> Iterator[Lines]:
        """Keeps what is said meanwhile."""
        lines = Lines()
        self._readers.append(lines)
        try:
            yield lines
        finally:
            self._readers.remove(lines)


@functools.cache
def log() -> Log:
    """The one there is."""
    return Log()
