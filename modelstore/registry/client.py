"""The registry protocol for one model: manifests, blobs, and requests that others build upon.

Owns the paths below `/v2/`, the answer to a 401, and where the bytes of a blob really are. One
`RegistryClient` serves one operation and is then closed; nothing here touches the disk.
Source: the OCI distribution specification, and what Ollama makes of it.
"""

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Self

import httpx

from modelstore.digest import Digest
from modelstore.errors import HostUnreachable, ManifestNotFound, SignInRequired
from modelstore.names import ModelName
from modelstore.registry.access import Access
from modelstore.registry.auth import Auth, challenge_of, secret_hint
from modelstore.registry.web import Body, Web, read_all, refused

# Real manifests stay below 1 MiB; a registry must not fill our memory.
MANIFEST_LIMIT_BYTES = 4 << 20
_TOKEN_LIMIT_BYTES = 1 << 20

_MANIFEST_TYPES = ", ".join(
    [
        "application/vnd.docker.distribution.manifest.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
    ]
)
# A location that a registry redirected to is signed for some time only.
_EXPIRED = (400, 401, 403, 404, 410)


class RegistryClient:
    """One model at its registry. Safe to share between threads; a context manager.

    Every request raises AddressNotAllowed, HostUnreachable, BadReply and SignInRequired, and
    Stopped once `stop` is set.
    """

    def __init__(
        self,
        name: ModelName,
        access: Access,
        *,
        insecure: bool = False,
        stop: threading.Event | None = None,
    ) -> None:
        """Raises: InvalidName for a host that no URL can have."""
        self._name = name
        self._access = access
        self._insecure = insecure
        policy = access.policy(insecure=insecure)
        self._base_urls = list(policy.base_urls(name.host))
        self._web = Web(policy, stop=stop, pace=access.pace)
        self._auth = self._make_auth()
        self._locations: dict[Digest, str] = {}

    @property
    def repository(self) -> str:
        """`namespace/model`."""
        return f"{self._name.namespace}/{self._name.model}"

    @property
    def host(self) -> str:
        """`host[:port]` of the registry, for messages."""
        return self._name.host

    def manifest(self) -> bytes:
        """The manifest's bytes, exactly as the registry has them.

        Raises: ManifestNotFound, ServerRefused.
        """
        path = f"manifests/{self._name.tag}"
        with self.send("GET", path, headers={"Accept": _MANIFEST_TYPES}) as response:
            if response.status_code == 404:
                raise ManifestNotFound(self._name.full())
            if response.status_code != 200:
                raise refused(response, "the manifest", has_hint=True)
            return read_all(response, MANIFEST_LIMIT_BYTES)

    @contextlib.contextmanager
    def blob(self, digest: Digest, byte_range: str = "") -> Iterator[httpx.Response]:
        """A reply with status 200 or 206 and the blob's bytes; `byte_range` such as `0-99`.

        Raises: ServerRefused.
        """
        headers = {"Range": f"bytes={byte_range}"} if byte_range else {}
        what = f"blob {digest.text[:19]}"
        if location := self._locations.get(digest):
            with self._web.open("GET", location, headers=headers) as response:
                if response.status_code in (200, 206):
                    yield response
                    return
                if response.status_code not in _EXPIRED:
                    raise refused(response, what)
            self._locations.pop(digest, None)
        with self.send("GET", f"blobs/{digest.text}", headers=headers) as response:
            if response.status_code not in (200, 206):
                raise refused(response, what)
            if not str(response.url).startswith(self._auth.base_url + "/"):
                self._locations[digest] = str(response.url)
            yield response

    @contextlib.contextmanager
    def send(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: Body = None,
        follow: bool = True,
    ) -> Iterator[httpx.Response]:
        """The reply, of whatever status, to a request for `path` below `/v2/<repository>/`.

        A full URL of this registry, such as an upload's `Location`, is taken as it is; elsewhere
        no Authorization goes along. A 401 is answered once, and then the request sent again, so
        `content` must be bytes, or an iterable that can be iterated twice.
        """
        while True:
            with contextlib.ExitStack() as stack:
                try:
                    response = stack.enter_context(
                        self._send(method, path, headers=headers, content=content, follow=follow)
                    )
                except HostUnreachable:
                    if len(self._base_urls) == 1:
                        raise
                else:
                    del self._base_urls[1:]
                    yield response
                    return
            # An insecure registry that does not answer with https: it speaks http.
            del self._base_urls[0]
            self._auth = self._make_auth()

    def twin(self, stop: threading.Event) -> "RegistryClient":
        """Another client that knows what this one has found out, with connections of its own."""
        made = RegistryClient(self._name, self._access, insecure=self._insecure, stop=stop)
        made._base_urls = self._base_urls[:1]
        made._auth = self._auth.twin(made._fetch_token)
        return made

    def close(self) -> None:
        """Closes all connections."""
        self._web.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _send(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None,
        content: Body,
        follow: bool,
    ) -> Iterator[httpx.Response]:
        url = path if "://" in path else f"{self._auth.base_url}/v2/{self.repository}/{path}"
        pulls = method in ("GET", "HEAD")
        scope = f"repository:{self.repository}:{'pull' if pulls else 'pull,push'}"
        for is_last in (False, True):
            used = self._auth.header(url)
            with self._web.open(
                method,
                url,
                headers=headers,
                content=content,
                authorization=self._auth.header,
                follow=follow and pulls,
            ) as response:
                if response.status_code != 401:
                    yield response
                    return
                if is_last:
                    raise SignInRequired(
                        self.host,
                        f"it refuses what it was told about us; {secret_hint(self.host)}",
                    )
                challenge = challenge_of(response.headers)
            self._auth.answer(challenge, scope, used=used)

    def _make_auth(self) -> Auth:
        base_url = self._base_urls[0]
        return Auth(base_url, self._access.secret(base_url), self._fetch_token)

    def _fetch_token(self, url: str, authorization: str) -> tuple[int, bytes]:
        # A redirect gets no secret: only the service that was named does.
        with self._web.open(
            "GET", url, authorization=lambda at: authorization if at == url else ""
        ) as response:
            return response.status_code, read_all(response, _TOKEN_LIMIT_BYTES)
