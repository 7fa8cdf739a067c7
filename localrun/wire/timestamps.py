"""Times as Ollama writes them: RFC 3339, UTC, nanoseconds.

Pure: the caller brings the time. Used for every chunk of every stream, so the part that changes
only once a second is kept.
"""

import functools
import time

_NS_PER_S = 1_000_000_000
# Ollama's "never": the longest duration that fits 63 bits of nanoseconds, from now.
LONGEST_S = 2**63 / _NS_PER_S


@functools.lru_cache(maxsize=8)
def _whole_seconds(unix_s: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(unix_s))


def rfc3339(unix_ns: int) -> str:
    """`2026-01-02T03:04:05.123456789Z` for nanoseconds since 1970."""
    unix_s, ns = divmod(unix_ns, _NS_PER_S)
    return f"{_whole_seconds(unix_s)}.{ns:09d}Z"


def expiry(expires_at_s: float, now_s: float) -> str:
    """When a model leaves memory; about 292 years ahead when it never does.

    Both arguments are unix times in seconds; `expires_at_s` may be infinite.
    """
    return rfc3339(int(min(expires_at_s, now_s + LONGEST_S)) * _NS_PER_S)
