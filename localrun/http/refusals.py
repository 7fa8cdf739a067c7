"""What a request is refused with before anybody has looked for what it asks.

Owns the words and the headers of these replies; statuses stand in the table of `errors`. Texts
from the request are cut and made printable before they enter a sentence.
Source: Ollama's router and account routes; RFC 9110 and 6750 for statuses and challenges.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from modelstore.errors import shown


class TransportError(Exception):
    """Root of what can be wrong with a request before anybody has understood it.

    After most of these the rest of the request is not worth reading, so that the connection ends.
    """

    fixed_headers: ClassVar[Mapping[str, str]] = {"Connection": "close"}

    @property
    def headers(self) -> Mapping[str, str]:
        """What the reply says beside its body."""
        return self.fixed_headers


@dataclass(eq=False)
class BadFraming(TransportError):
    """The request's own headers contradict each other; two readers would see two requests."""

    problem: str

    def __str__(self) -> str:
        return self.problem


@dataclass(eq=False)
class HeadTooLarge(TransportError):
    """The header lines exceed `limit_bytes`."""

    limit_bytes: int

    def __str__(self) -> str:
        return f"the request's headers are larger than {self.limit_bytes >> 10} KiB"


@dataclass(eq=False)
class BodyTooLarge(TransportError):
    """A JSON body exceeds `limit_bytes`."""

    limit_bytes: int

    def __str__(self) -> str:
        return f"the request body is larger than {self.limit_bytes >> 20} MiB"


@dataclass(eq=False)
class BodyTimeout(TransportError):
    """No byte of the body arrived for `limit_s` seconds."""

    limit_s: float

    def __str__(self) -> str:
        return f"the request body stopped arriving for {self.limit_s:g} s"


@dataclass(eq=False)
class BodyTooSlow(TransportError):
    """A large body had not arrived whole after `limit_s` seconds."""

    limit_s: float

    def __str__(self) -> str:
        return f"the request body did not arrive within {self.limit_s:g} s"


@dataclass(eq=False)
class EncodingRefused(TransportError):
    """The body is compressed."""

    encoding: str

    def __str__(self) -> str:
        name = shown(self.encoding)
        return f"request bodies with Content-Encoding `{name}` cannot be read; send it plain"


@dataclass(eq=False)
class HostRefused(TransportError):
    """The Host header names another machine, as after DNS rebinding."""

    host: str

    def __str__(self) -> str:
        return (
            f"the host `{shown(self.host)}` is no name of this machine; use localhost, or listen "
            "on another address with LOCALRUN_HOST"
        )


@dataclass(eq=False)
class OriginRefused(TransportError):
    """A browser asks for a page that may not call, or may not change anything."""

    origin: str
    is_change: bool = False

    def __str__(self) -> str:
        name = shown(self.origin)
        if self.is_change:
            return (
                f"the origin `{name}` may not change models: `*` in LOCALRUN_ORIGINS does not "
                "cover that; add the origin itself, or set LOCALRUN_API_KEY"
            )
        return f"the origin `{name}` may not call this server; LOCALRUN_ORIGINS can allow it"


@dataclass(eq=False)
class KeyMissing(TransportError):
    """The server has keys and the request brings none.

    `is_anthropic` on the routes whose clients send `x-api-key`; the others take it, too.
    """

    is_anthropic: bool = False

    # RFC 6750: without a key the challenge has no error code.
    fixed_headers: ClassVar[Mapping[str, str]] = {"WWW-Authenticate": 'Bearer realm="localrun"'}

    def __str__(self) -> str:
        own = "`x-api-key: KEY` or " if self.is_anthropic else ""
        headers = f"{own}`Authorization: Bearer KEY`"
        return (
            f"this server needs an API key: send {headers}; "
            "the command line takes it from LOCALRUN_API_KEY"
        )


class KeyRefused(TransportError):
    """The request's key is none of the server's."""

    fixed_headers: ClassVar[Mapping[str, str]] = {
        "WWW-Authenticate": 'Bearer realm="localrun", error="invalid_token"'
    }

    def __str__(self) -> str:
        return "the API key is not one of this server's"


@dataclass(eq=False)
class KeyBusy(TransportError):
    """The requests of one key reach their limits; another is sensible after `retry_after_s`."""

    n_running: int
    n_waiting: int
    retry_after_s: int

    @property
    def headers(self) -> Mapping[str, str]:
        """See `TransportError.headers`."""
        return {"Retry-After": str(self.retry_after_s)}

    def __str__(self) -> str:
        return (
            f"this API key has {self.n_running} requests running and {self.n_waiting} waiting, "
            "which is its limit; try again when one has ended"
        )


@dataclass(eq=False)
class UnknownRoute(TransportError):
    """There is nothing at this path."""

    method: str
    path: str

    fixed_headers: ClassVar[Mapping[str, str]] = {}

    def __str__(self) -> str:
        return f"unknown request URL: {self.method} {shown(self.path)}"


@dataclass(eq=False)
class WrongMethod(TransportError):
    """The path exists for the methods of `allowed` only."""

    method: str
    path: str
    allowed: str

    @property
    def headers(self) -> Mapping[str, str]:
        """See `TransportError.headers`."""
        return {"Allow": self.allowed}

    def __str__(self) -> str:
        return f"{self.method} is not allowed on {shown(self.path)}; use {self.allowed}"


class NoAccount(TransportError):
    """Ollama's routes about an account of ollama.com."""

    fixed_headers: ClassVar[Mapping[str, str]] = {}

    def __str__(self) -> str:
        return "unauthorized: there are no accounts here, localrun runs models on this machine only"


@dataclass(eq=False)
class CloudDisabled(TransportError):
    """Ollama's routes that are answered by ollama.com; `what` is one of its services."""

    what: str

    fixed_headers: ClassVar[Mapping[str, str]] = {}

    def __str__(self) -> str:
        # The words before the colon are Ollama's: programs compare them.
        return f"ollama cloud is disabled: {self.what} is unavailable"
