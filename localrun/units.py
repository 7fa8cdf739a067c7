"""Text → seconds, bytes and switches, for settings and request bodies.

Durations follow Go's `time.ParseDuration` (`1h30m`, `300ms`, `-1m`), since that is what Ollama's
clients write; a bare number is seconds, which Ollama accepts only in some places.
"""

import math
import re

FOREVER = math.inf

_UNIT_S = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}
_DURATION = re.compile(r"[-+]?(?:\d+\.?\d*(?:ns|us|µs|μs|ms|s|m|h))+")
_PART = re.compile(r"(\d+\.?\d*)(ns|us|µs|μs|ms|s|m|h)")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def parse_duration_s(text: str) -> float:
    """Seconds of a Go duration or a plain number; any negative value is `FOREVER`.

    Raises ValueError with a sentence that names the text and shows valid forms.
    """
    stripped = text.strip()
    if _NUMBER.fullmatch(stripped):
        value = float(stripped)
    elif _DURATION.fullmatch(stripped):
        value = sum(float(n) * _UNIT_S[unit] for n, unit in _PART.findall(stripped))
        value = -value if stripped.startswith("-") else value
    else:
        raise ValueError(f"`{text}` is not a duration; write 300, 5m, 1h30m or -1")
    return FOREVER if value < 0 else value


_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "t": True}
_SWITCH |= {"0": False, "false": False, "no": False, "off": False, "f": False}


def parse_switch(text: str) -> bool:
    """On or off. Raises ValueError with a sentence that names the text and shows valid forms."""
    try:
        return _SWITCH[text.strip().lower()]
    except KeyError:
        raise ValueError(f"`{text}` is neither on nor off; write 1 or 0") from None


def parse_size_bytes(text: str) -> int:
    """Bytes of `20GiB`, `512 MB`, `1048576`; K, M, G, T are powers of 1024 with `i`, else of 1000.

    Raises ValueError with a sentence that names the text and shows valid forms.
    """
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError(f"`{text}` is not a size; write 20GiB, 512MB or a number of bytes")
    number, prefix, binary = match.groups()
    base = 1024 if binary else 1000
    return int(float(number) * base ** " kmgt".index(prefix.lower() or " "))
