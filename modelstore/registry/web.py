"""HTTP requests by our own rules: redirects, who gets a secret, and what a reply must be.

Owns following redirects (each hop is checked like a first request, and gets an Authorization only
if `authorization` gives one for its URL). Bodies of refusals are read by nobody.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping

import httpx

from modelstore.errors import BadReply, ServerRefused
from modelstore.registry.access import Pace
from modelstore.registry.address import Policy
from modelstore.registry.auth import secret_hint
from modelstore.registry.connection import Transport

# Source: Go's HTTP client, and so Ollama.
MAX_REDIRECTS = 10

# Registries look for the version of a client that they have to serve.
# Source: Ollama's `User-Agent`; the number is the API level that our daemon reports.
USER_AGENT = "ollama/0.30.0 (localrun)"

_REDIRECTS = (301, 302, 303, 307, 308)
Body = bytes | Iterable[bytes] | None


class Web:
    """A pool of connections for one operation. Safe to share between threads; to be closed.

    Setting `stop` ends every read within half a second.
    """

    def __init__(
        self, policy: Policy, *, stop: threading.Event | None = None, pace: Pace | None = None
    ) -> None:
        self.stop = stop or threading.Event()
        self._client = httpx.Client(
            transport=Transport(policy, self.stop, pace or Pace()),
            trust_env=False,  # the transport looks at the proxies; .netrc is nobody's business
            headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity"},
            timeout=None,
        )

    def close(self) -> None:
        """Closes all connections."""
        self._client.close()

    @contextlib.contextmanager
    def open(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: Body = None,
        authorization: Callable[[str], str] = lambda _: "",
        follow: bool = True,
    ) -> Iterator[httpx.Response]:
        """The reply, whatever its status, its body unread; redirects followed for GET and HEAD.

        Raises: AddressNotAllowed, HostUnreachable, BadReply, Stopped.
        """
        with contextlib.ExitStack() as stack:
            for _ in range(MAX_REDIRECTS + 1):
                response = self._send(method, url, headers or {}, content, authorization(url))
                stack.callback(response.close)
                if response.status_code not in _REDIRECTS or not follow:
                    yield response
                    return
                url = _target(response)
                response.close()
            raise BadReply(host_of(url), f"it redirects more than {MAX_REDIRECTS} times")

    def _send(
        self, method: str, url: str, headers: Mapping[str, str], content: Body, authorization: str
    ) -> httpx.Response:
        sent = {**headers, "Authorization": authorization} if authorization else dict(headers)
        try:
            request = self._client.build_request(method, url, headers=sent, content=content)
        except (httpx.InvalidURL, ValueError) as error:
            raise BadReply(host_of(url), "it names a URL that is none") from error
        return self._client.send(request, stream=True, auth=None, follow_redirects=False)


def read_all(response: httpx.Response, limit_bytes: int) -> bytes:
    """The whole body. Raises: BadReply when it is longer, HostUnreachable, Stopped."""
    body = bytearray()
    for chunk in response.iter_raw():
        body += chunk
        if len(body) > limit_bytes:
            raise BadReply(host_of(str(response.url)), f"more than {limit_bytes >> 20} MiB")
    return bytes(body)


def refused(response: httpx.Response, what: str, *, has_hint: bool = False) -> ServerRefused:
    """The error for a status that says no; with `has_hint` it says how one signs in."""
    proxy = str(response.extensions.get("proxy", ""))
    host, status = host_of(str(response.url)), response.status_code
    hint = secret_hint(host) if has_hint and status in (401, 403) else ""
    return ServerRefused(host, status, what, proxy, hint)


def host_of(url: str) -> str:
    """`host[:port]` of a URL, for messages."""
    with contextlib.suppress(httpx.InvalidURL, ValueError):
        parsed = httpx.URL(url)
        return f"{parsed.host}:{parsed.port}" if parsed.port else parsed.host
    return "the server"


def _target(response: httpx.Response) -> str:
    location = response.headers.get("location", "")
    here = str(response.url)
    if not location:
        raise BadReply(host_of(here), "a redirect without a target")
    try:
        return str(response.url.join(location).copy_with(fragment=None))
    except (httpx.InvalidURL, ValueError) as error:
        raise BadReply(host_of(here), "a redirect to a URL that is none") from error
