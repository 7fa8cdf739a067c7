"""Which browser origins may call the API, and the headers that tell the browser so.

Pure. Source: Ollama `envconfig` (the defaults, one wildcard in a configured entry, the header
lists); `x-api-key` and the two `anthropic-*` headers are ours, since browser SDKs send them.
"""

import re

from localrun.http.notes import IGNORED_HEADER, LOOSENED_HEADER
from localrun.settings import BadSetting

ANY = "*"
BLOB_PREFIX = "/api/blobs/"

_LOCAL = [
    rf"{scheme}://{re.escape(host)}(?::\d+)?"
    for scheme in ("http", "https")
    for host in ("localhost", "127.0.0.1", "0.0.0.0")
]
_SCHEMES = ["app", "file", "tauri", "vscode-webview", "vscode-file"]
_DEFAULT = _LOCAL + [rf"{scheme}://.*" for scheme in _SCHEMES]

_ALLOWED_HEADERS = (
    "Authorization",
    "Content-Type",
    "User-Agent",
    "Accept",
    "X-Requested-With",
    "OpenAI-Beta",
    "x-api-key",
    "anthropic-version",
    "anthropic-beta",
    *(
        f"x-stainless-{name}"
        for name in (
            "arch",
            "async",
            "custom-poll-interval",
            "helper-method",
            "lang",
            "os",
            "package-version",
            "poll-helper",
            "retry-count",
            "runtime",
            "runtime-version",
            "timeout",
        )
    ),
)
# What a page may read beside the body.
EXPOSE_HEADERS = {
    "Access-Control-Expose-Headers": ", ".join(
        ("Retry-After", IGNORED_HEADER, LOOSENED_HEADER, "request-id")
    )
}
PREFLIGHT_HEADERS = {
    "Access-Control-Allow-Methods": "GET,POST,PUT,PATCH,DELETE,HEAD,OPTIONS",
    "Access-Control-Allow-Headers": ",".join(_ALLOWED_HEADERS),
    "Access-Control-Max-Age": "43200",
    "Vary": "Origin, Access-Control-Request-Method, Access-Control-Request-Headers",
}


# Routes that change the store. Everybody's page may ask models under `*`, as with Ollama; that any
# page on the web could delete them is more than whoever writes `*` has in mind.
_CHANGING = frozenset(
    f"/api/{name}" for name in ("delete", "pull", "push", "create", "copy", "prune", "verify")
)


def changes_models(method: str, path: str) -> bool:
    """Whether such a request, or the preflight of one, may change what the store holds."""
    if method in ("GET", "HEAD"):
        return False
    return path in _CHANGING or path.startswith(BLOB_PREFIX)


class Origins:
    """The defaults and the entries of a setting; `*` alone allows every origin."""

    def __init__(self, configured: tuple[str, ...] = ()) -> None:
        """Raises BadSetting for an entry that cannot match any origin."""
        self.allows_any = ANY in configured
        patterns = [_pattern(entry) for entry in configured if entry != ANY]
        self._allowed = re.compile("|".join(f"(?:{p})" for p in _DEFAULT + patterns), re.DOTALL)

    def allows(self, origin: str, *, changes: bool = False) -> bool:
        """Tells whether a page of this origin may call; `*` covers no `changes`."""
        return (self.allows_any and not changes) or self._allowed.fullmatch(origin) is not None


def _pattern(entry: str) -> str:
    if entry.count(ANY) > 1 or ("://" not in entry and ANY not in entry):
        raise BadSetting(
            "LOCALRUN_ORIGINS",
            f"`{entry}` is not an origin; write `https://host:port` with at most one `*`",
        )
    return ".*".join(map(re.escape, entry.rstrip("/").split(ANY)))
