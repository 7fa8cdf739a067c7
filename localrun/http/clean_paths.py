"""Redirects from `/api/tags/` or `//api//tags` to the path that was meant.

Many clients join a base URL and a path with one slash too many. Owns the cleaning, which is pure,
and asks the routes whether there is anything at the cleaned path.
Source: Ollama's router, gin; the status is 307 for every method, so that none loses its body.
"""

from collections.abc import Sequence
from urllib.parse import quote

from starlette.responses import RedirectResponse
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

# What a path may hold as it is (RFC 3986, section 3.3).
_SAFE = "/:@!$&'()*+,;=~"


def clean(path: str) -> str:
    """`path` without empty and dot segments and without a slash at its end."""
    kept: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del kept[-1:]
        elif segment not in ("", "."):
            kept.append(segment)
    return "/" + "/".join(kept)


class CleanPaths:
    """Middleware in front of `routes`."""

    def __init__(self, app: ASGIApp, routes: Sequence[Route]) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (target := self._target(scope)):
            # The path alone: a proxy in front may have another scheme and name than we see.
            await RedirectResponse(target, 307)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _target(self, scope: Scope) -> str:
        path: str = scope["path"]
        if not (path.endswith("/") or "//" in path or "/." in path):
            return ""
        cleaned = clean(path)
        meant = {**scope, "path": cleaned}
        if cleaned == path or all(route.matches(meant)[0] is Match.NONE for route in self._routes):
            return ""
        query = scope["query_string"].decode("latin-1")
        return quote(cleaned, safe=_SAFE) + (f"?{query}" if query else "")
