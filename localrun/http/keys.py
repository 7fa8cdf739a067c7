"""API keys: who may use the server, and who a request is from.

Owns the keys of the settings and the comparison with a request's. A key is kept as its hash only,
and no key enters a message or a log. What a key may have at once is `turns`'s business.
Source: RFC 6750 for `Authorization: Bearer`; Anthropic's clients send `x-api-key`.
"""

import hashlib
import hmac
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from starlette.datastructures import Headers

from localrun.http.refusals import KeyMissing, KeyRefused
from localrun.settings import BadSetting, Settings
from modelstore.errors import shown

# Where the guard leaves the caller for the handlers.
SCOPE_KEY = "localrun.caller"

_SCHEME = "bearer"
_READERS = stat.S_IRGRP | stat.S_IWGRP | stat.S_IROTH | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the settings: its hash, and the name that it has in logs."""

    name: str
    digest: bytes


class Caller(NamedTuple):
    """Who asks. `client` is whom slots are shared out among; prefixes stay within a `scope`.

    `key` is None on a server without keys.
    """

    client: str
    scope: str = ""
    key: Key | None = None


class Keys:
    """The keys of the server. Without one, everybody who reaches it may use it."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._keys = tuple(keys)

    def __bool__(self) -> bool:
        return bool(self._keys)

    def find(self, headers: Headers, *, is_anthropic: bool = False) -> Key | None:
        """The key that a request brings, in Anthropic's dialect or another.

        None on a server without keys.

        Raises: KeyMissing, KeyRefused.
        """
        if not self._keys:
            return None
        offered = _offered(headers)
        if not offered:
            raise KeyMissing(is_anthropic)
        found = None
        # All are compared, and hashes of equal length: the time tells nothing about any of them.
        for text in offered:
            digest = _digest(text)
            for key in self._keys:
                if hmac.compare_digest(digest, key.digest):
                    found = key
        if found is None:
            raise KeyRefused
        return found


def load_keys(settings: Settings) -> Keys:
    """The keys that the settings name. Raises: BadSetting."""
    keys = []
    if settings.api_key:
        keys.append(Key("default", _digest(settings.api_key.encode())))
    if settings.api_keys_file is not None:
        keys += parse_keys(_read(settings.api_keys_file.expanduser()))
    names = [key.name for key in keys]
    if len(set(names)) < len(names):
        raise _bad_file("two keys have the same name, and `default` is that of LOCALRUN_API_KEY")
    if len({key.digest for key in keys}) < len(keys):
        raise _bad_file("the same key stands there twice, or is that of LOCALRUN_API_KEY")
    return Keys(keys)


def parse_keys(text: str) -> list[Key]:
    """Keys of lines `name: key` or `key`; blank lines and lines that begin with `#` are none.

    Raises: BadSetting, which names the line and never what stands there.
    """
    keys = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, separator, key = line.rpartition(": ")
        name, key = name.strip() if separator else f"line-{number}", key.strip()
        # A colon without its space could be part of a key or the end of a name.
        if not name or ":" in key or not key.isascii() or not key.isprintable() or " " in key:
            raise _bad_file(f"line {number} is neither `name: key` nor a key of plain characters")
        keys.append(Key(shown(name), _digest(key.encode())))
    if not keys:
        raise _bad_file("there is no key in it; write one on each line, as `name: key`")
    return keys


def _read(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        if mode & _READERS:
            raise _bad_file(
                f"others than its owner may use this file (mode {stat.S_IMODE(mode):o}); "
                "`chmod 600` it"
            )
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise _bad_file(f"`{path}` cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _bad_file(f"`{path}` is not a text file") from error


def _bad_file(problem: str) -> BadSetting:
    return BadSetting("LOCALRUN_API_KEYS_FILE", problem)


def _offered(headers: Headers) -> list[bytes]:
    offered = [value.encode("latin-1") for value in headers.getlist("x-api-key")]
    for value in headers.getlist("authorization"):
        scheme, _, key = value.strip().partition(" ")
        if scheme.lower() == _SCHEME:
            offered.append(key.strip().encode("latin-1"))
    return [key for key in offered if key]


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
