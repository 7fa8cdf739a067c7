"""llama.cpp's RPC server in a process of its own: its CPU is a GPU to whoever uses it."""

import socket
import subprocess
import sys

import pytest
from live import wait_until

_NO_RPC = 4

# The server has no program in the wheel, only a function, which never returns.
_PROGRAM = f"""
import ctypes, sys
import llama_cpp.llama_cpp as lib
lib.llama_backend_init()
library = lib._lib
if not hasattr(library, "ggml_backend_rpc_start_server"):
    sys.exit({_NO_RPC})
library.ggml_backend_dev_by_type.restype = ctypes.c_void_p
devices = (ctypes.c_void_p * 1)(library.ggml_backend_dev_by_type(0))
serve = library.ggml_backend_rpc_start_server
serve.restype = None
serve.argtypes = [
    ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p
]
serve(sys.argv[1].encode(), None, 1, 1, devices)
"""


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class RpcServer:
    """One server; it has one client at a time."""

    def __init__(self) -> None:
        self.endpoint = f"127.0.0.1:{free_port()}"
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, self.endpoint],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def wait_ready(self) -> "RpcServer":
        """Returns itself once it listens; skips the test where llama.cpp has no RPC."""
        wait_until(self._listens, "the RPC server to listen")
        return self

    def _listens(self) -> bool:
        if self._process.poll() == _NO_RPC:
            pytest.skip("llama.cpp was built without RPC")
        assert self._process.poll() is None, "the RPC server ended"
        host, port = self.endpoint.split(":")
        try:
            socket.create_connection((host, int(port)), 1).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()
        self._process.wait()
