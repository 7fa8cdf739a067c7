"""What the daemon's settings say about registries, as one value for all operations."""

from dataclasses import dataclass, field

from modelstore.names import HUGGING_FACE
from modelstore.registry.address import Policy, Registry
from modelstore.registry.auth import Secret, origin_of

# One address that does not answer; a host may have several.
CONNECT_TIMEOUT_S = 10.0
# Without bytes for so long a connection counts as dead. Source: Ollama's downloads.
STALL_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a connection may take; tests have shorter ones."""

    connect_s: float = CONNECT_TIMEOUT_S
    stall_s: float = STALL_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Access:
    """What the daemon's settings say about registries; made once, for all operations."""

    registries: tuple[Registry, ...] = ()
    hf_token: str = field(default="", repr=False)
    pace: Pace = field(default_factory=Pace)

    def policy(self, *, insecure: bool = False) -> Policy:
        """Whom an operation may contact; `insecure` as its request had it."""
        return Policy(self.registries, insecure)

    def secret(self, base_url: str) -> Secret:
        """What the user has given for the registry that `base_url` is at, or leads to."""
        scheme, host, port = origin_of(base_url)
        if scheme != "https":
            return Secret()  # it would travel in the open
        entry = self.policy().listed(host, port)
        if entry is not None and (entry.user or entry.password):
            return Secret(entry.user, entry.password)
        return Secret(token=self.hf_token) if host in HUGGING_FACE else Secret()

    def authorization(self, url: str) -> str:
        """The Authorization for a request outside the registry protocol, such as for a file."""
        return self.secret(url).header
