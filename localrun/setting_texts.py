"""What the text of a setting means. Each function raises ValueError with a sentence."""

import math
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from localrun.units import parse_duration_s, parse_size_bytes

DEFAULT_PORT = 11434

# Counts end up as 32-bit numbers in llama.cpp.
_INT32_MAX = 2**31 - 1


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"`{text}` is not a whole number of at least 1")
    if int(text) > _INT32_MAX:
        raise ValueError(f"`{text}` is more than {_INT32_MAX}")
    return int(text)


def whole(text: str) -> int:
    """A whole number of at least 0."""
    return 0 if text == "0" else count(text)


def auto_count(text: str) -> int | None:
    """`count`, and None for 0 and the word `auto`."""
    return None if text in ("0", "auto") else count(text)


def auto(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """`parse`, and None for the word `auto`."""
    return lambda text: None if text.lower() == "auto" else parse(text)


def milliseconds(text: str) -> float:
    """A number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"`{text}` is not a number of milliseconds above 0; write 50 or auto")
    return value


def delay_ms(text: str) -> float:
    """A number of at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError(f"`{text}` is not a number of milliseconds of at least 0")
    return value


def choice(*values: str) -> Callable[[str], str]:
    """One of `values`, in any case."""

    def parse(text: str) -> str:
        if text.lower() not in values:
            raise ValueError(f"`{text}` is not one of {', '.join(values)}")
        return text.lower()

    return parse


def timeout_s(text: str) -> float:
    """A duration in seconds; 0 is none, so infinite."""
    seconds = parse_duration_s(text)
    return math.inf if seconds == 0 else seconds


def names(text: str) -> tuple[str, ...]:
    """The parts between commas that are not empty."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def token(text: str) -> str:
    """Printable ASCII without spaces. The text, a secret, is not repeated in the error."""
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("this is not a token: it has spaces or other characters than ASCII")
    return text


def parse_host(text: str) -> tuple[str, int]:
    """(host, port) of `host`, `host:port`, `:port`, `[::1]:port` or an http URL.

    Source: Ollama's OLLAMA_HOST; an `http://` URL without a port means port 80 there and here.
    Raises ValueError with a sentence.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "", text
    if scheme not in ("", "http"):
        raise ValueError(f"`{text}` must be host:port or an http:// address")
    rest = rest.split("/", 1)[0]
    if rest.count(":") > 1 and not rest.startswith("["):
        rest = f"[{rest}]"
    try:
        parts = urlsplit(f"//{rest}")
        port = parts.port
    except ValueError:
        raise ValueError(f"`{text}` has no port between 0 and 65535; write host:port") from None
    default_port = 80 if scheme else DEFAULT_PORT
    host = parts.hostname
    if host is None:
        host = "0.0.0.0" if rest.startswith(":") else "127.0.0.1"
    return host, default_port if port is None else port


def parse_overheads(text: str) -> dict[str, int]:
    """Bytes by device name of `1GiB` or `CUDA0=2GiB,RPC0=20GiB`; the empty name means all others.

    Raises ValueError with a sentence.
    """
    overheads: dict[str, int] = {}
    for part in names(text):
        device, separator, size = part.rpartition("=")
        device = device.strip()
        if separator and not device:
            raise ValueError(f"`{part}` names no device; write CUDA0=2GiB")
        if device in overheads:
            raise ValueError(f"there are two sizes for {device or 'all devices'}; give one")
        overheads[device] = parse_size_bytes(size)
    return overheads


def parse_rpc_servers(text: str) -> tuple[str, ...]:
    """Servers of `host:port,host:port`. Raises ValueError with a sentence."""
    servers = names(text)
    for server in servers:
        host, _, port = server.rpartition(":")
        # llama.cpp takes what follows the first colon for the port and ends the process when that
        # is no number, so an IPv6 address cannot be written.
        is_host = bool(host) and not re.search(r"[\s:/@\[\]]", host)
        if not is_host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"`{server}` is not host:port, with a name or an IPv4 address")
    if len(set(servers)) < len(servers):
        raise ValueError(f"`{text}` names a server twice")
    return servers
