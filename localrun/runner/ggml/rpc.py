"""Does an RPC server of llama.cpp answer? Asked over a connection of our own, which may fail.

llama.cpp itself ends the process when nobody answers, and waits for ever when somebody else is
served: a server has one client at a time and lets the next one connect and wait.

Source: `negotiate_hello` and `rpc_serve_client` in llama.cpp's ggml-rpc.cpp.
"""

import socket
import struct

# A server on the same network answers within milliseconds.
TIMEOUT_S = 1.0

# The command's number, the length of what follows, and what the connection could do beyond TCP.
_CAPS_BYTES = 24
_HELLO = struct.pack("<BQ", 14, _CAPS_BYTES) + bytes(_CAPS_BYTES)
_LENGTH = struct.Struct("<Q")
_MAX_ANSWER_BYTES = 1024


def problem_of(endpoint: str, timeout_s: float | None = None) -> str:
    """Why the server at host:port cannot be used now; an empty text when it can."""
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        return "it is not of the form host:port"
    try:
        connection = socket.create_connection((host, int(port)), timeout_s or TIMEOUT_S)
    except OSError as error:
        return f"nobody answers there ({error.strerror or error})"
    with connection:
        try:
            connection.sendall(_HELLO)
            (length,) = _LENGTH.unpack(_read(connection, _LENGTH.size))
            if not 0 < length <= _MAX_ANSWER_BYTES:
                return "it is no RPC server of llama.cpp"
            _read(connection, length)
        except TimeoutError:
            return "it does not answer; a server has one client at a time"
        except OSError:
            return "it is no RPC server of llama.cpp, or of another version"
    return ""


def _read(connection: socket.socket, n: int) -> bytes:
    """Exactly `n` bytes. Raises OSError, TimeoutError among them."""
    data = b""
    while len(data) < n:
        part = connection.recv(n - len(data))
        if not part:
            raise ConnectionError("it closed the connection")
        data += part
    return data
