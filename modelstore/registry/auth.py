"""Who we are to a registry: challenges, tokens, and to whom a secret may go.

Owns the one rule that matters: an Authorization header is computed for one URL at a time, and only
the registry's own origin, or the token service that it names, ever gets one. Pure but for the
fetching of a token, which is passed in. Ollama's signing protocol (an ed25519 key that is
registered at ollama.com or Hugging Face) is not spoken.
Source: the token authentication of the distribution project; Ollama's `server/auth.go`.
"""

import base64
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode, urlsplit

import msgspec

from modelstore.errors import BadReply, SignInRequired
from modelstore.names import HUGGING_FACE

# (url, Authorization or "") → (status, body)
FetchToken = Callable[[str, str], tuple[int, bytes]]

_PARAMETER = re.compile(r'([A-Za-z]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s",]+))')


@dataclass(frozen=True, slots=True)
class Challenge:
    """A parsed `WWW-Authenticate: Bearer …`."""

    realm: str
    service: str = ""
    scope: str = ""


@dataclass(frozen=True, slots=True)
class Secret:
    """What the user has given us for a registry: user and password, or a token."""

    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)

    @property
    def header(self) -> str:
        """The value of an Authorization header; empty without a secret."""
        if self.token:
            return f"Bearer {self.token}"
        if not self.user and not self.password:
            return ""
        pair = f"{self.user}:{self.password}".encode()
        return "Basic " + base64.b64encode(pair).decode("ascii")


class _TokenReply(msgspec.Struct):
    token: str = ""
    access_token: str = ""


def parse_challenge(header: str) -> Challenge | None:
    """The Bearer challenge in a WWW-Authenticate header; None when there is none."""
    kind, _, rest = header.strip().partition(" ")
    if kind.lower() != "bearer":
        return None
    found = {name.lower(): quoted or bare for name, quoted, bare in _PARAMETER.findall(rest)}
    if not found.get("realm"):
        return None
    return Challenge(found["realm"], found.get("service", ""), found.get("scope", ""))


def origin_of(url: str) -> tuple[str, str, int]:
    """(scheme, host, port), by which it is decided who may see a secret."""
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    return scheme, (parts.hostname or "").lower(), parts.port or (443 if scheme == "https" else 80)


def is_same_site(url: str, other: str) -> bool:
    """True for equal origins, and for the two names of Hugging Face over https."""
    first, second = origin_of(url), origin_of(other)
    if first == second:
        return True
    is_hugging_face = first[1] in HUGGING_FACE and second[1] in HUGGING_FACE
    return is_hugging_face and first[0] == second[0] == "https" and first[2] == second[2]


class Auth:
    """Authorization for one registry. Safe to share between threads."""

    def __init__(self, base_url: str, secret: Secret, fetch_token: FetchToken) -> None:
        self._base_url = base_url
        self._secret = secret
        self._fetch_token = fetch_token
        self._lock = threading.Lock()
        self._tokens: dict[str, str] = {}  # by scope
        self._latest = ""
        self._wants_basic = False

    def twin(self, fetch_token: FetchToken) -> "Auth":
        """The same standing, with another way to fetch tokens."""
        made = Auth(self._base_url, self._secret, fetch_token)
        with self._lock:
            made._tokens, made._latest = dict(self._tokens), self._latest
            made._wants_basic = self._wants_basic
        return made

    @property
    def base_url(self) -> str:
        """`scheme://host[:port]` of the registry."""
        return self._base_url

    def header(self, url: str) -> str:
        """The Authorization for `url`; empty for every host but the registry's own."""
        if not is_same_site(url, self._base_url):
            return ""
        with self._lock:
            if self._latest:
                return f"Bearer {self._latest}"
            return self._secret.header if self._secret.token or self._wants_basic else ""

    def answer(self, challenge_header: str, default_scope: str, *, used: str = "") -> None:
        """Gets what a 401 asks for, once for each scope; `used` is the header that was refused.

        Raises: SignInRequired, BadReply, and what fetching raises.
        """
        host = origin_of(self._base_url)[1]
        challenge = parse_challenge(challenge_header)
        with self._lock:
            if challenge is None:
                self._answer_basic(challenge_header, host)
                return
            scope = challenge.scope or default_scope
            known = self._tokens.get(scope, "")
            if not known or used == f"Bearer {known}":
                known = self._tokens[scope] = self._token(challenge, scope, host)
            if used == f"Bearer {known}":
                raise SignInRequired(
                    host, "the token that it gave is not enough; " + secret_hint(host)
                )
            self._latest = known

    def _answer_basic(self, challenge_header: str, host: str) -> None:
        is_basic = challenge_header.strip().lower().startswith("basic")
        if self._wants_basic or not is_basic or not self._secret.user:
            raise SignInRequired(host, secret_hint(host))
        self._wants_basic = True

    def _token(self, challenge: Challenge, scope: str, host: str) -> str:
        query = [("service", challenge.service)] if challenge.service else []
        query += [("scope", one) for one in scope.split()]
        separator = "&" if urlsplit(challenge.realm).query else "?"
        url = challenge.realm + separator + urlencode(query)
        status, body = self._fetch_token(url, self._header_for_realm(challenge.realm))
        if status in (401, 403):
            raise SignInRequired(host, secret_hint(host))
        if status != 200:
            raise BadReply(host, f"its token service answered with HTTP status {status}")
        try:
            reply = msgspec.json.decode(body, type=_TokenReply)
        except (msgspec.MsgspecError, ValueError) as error:
            raise BadReply(host, "its token service did not answer with a token") from error
        token = reply.token or reply.access_token
        if not token or not token.isascii() or not token.isprintable():
            raise BadReply(host, "its token service did not answer with a token")
        return token

    def _header_for_realm(self, realm: str) -> str:
        # The token service that a registry names acts for it, wherever it is; but what would
        # travel in the open, or is not a pair for such services, stays with the registry itself.
        if is_same_site(realm, self._base_url):
            return self._secret.header
        is_sealed = origin_of(realm)[0] == "https" and not self._secret.token
        return self._secret.header if is_sealed else ""


def challenge_of(headers: Mapping[str, str]) -> str:
    """The WWW-Authenticate header of a 401, or nothing."""
    return headers.get("www-authenticate", "")


def secret_hint(host: str) -> str:
    """What a refusal by this host may be about."""
    if host in HUGGING_FACE:
        return "a private or gated model needs the daemon's setting HF_TOKEN"
    return (
        "it needs a user and password, as https://user:password@host in the daemon's setting "
        "LOCALRUN_REGISTRIES; keys that are registered at ollama.com are not supported"
    )
