"""Headers that say what of a request has no effect, or not all of it. Names come from clients."""

import logging
import re
from collections.abc import Sequence

_log = logging.getLogger(__name__)

IGNORED_HEADER = "X-Localrun-Ignored-Options"
LOOSENED_HEADER = "X-Localrun-Loosened-Schemas"

# Only what is a word may enter a header or the log.
_WORD = re.compile(r"[\w.-]{1,64}", re.ASCII)
# Keys of a schema may be any text; commas part the places from each other.
_NO_PLACE = re.compile(r"[^ -+\--~]")
# Proxies take 8 kB of headers, and a place has some hundred characters at most.
_MAX_NAMES = 32


def ignored_headers(ignored: Sequence[str]) -> dict[str, str]:
    """The header that names fields without effect, if any; they are logged too."""
    names = [name for name in ignored if _WORD.fullmatch(name)][:_MAX_NAMES]
    if not names:
        return {}
    _log.warning("options without effect: %s", ", ".join(names))
    return {IGNORED_HEADER: ", ".join(names)}


def loosened_headers(places: Sequence[str]) -> dict[str, str]:
    """The header that names what of the tools' schemas calls are not held to, if anything."""
    shown = [_NO_PLACE.sub("?", place) for place in places[:_MAX_NAMES]]
    return {LOOSENED_HEADER: ", ".join(shown)} if shown else {}
