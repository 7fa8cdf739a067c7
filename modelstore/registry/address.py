"""Which hosts may be contacted, and how: the policy behind every connection to a registry.

Owns the list of registries that the user has named (REGISTRIES), the rule about schemes, and the
rule about addresses: a host that is not listed is contacted over https and at public addresses
only. The check is made on resolved addresses, and the caller connects to exactly those, so that a
name cannot mean one machine while it is checked and another one later. No I/O but the resolver,
which is passed in.
"""

import ipaddress
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from modelstore.errors import AddressNotAllowed, HostUnreachable, InvalidName

Resolver = Callable[..., Iterable[tuple[Any, Any, Any, Any, tuple[Any, ...]]]]
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# IPv6 prefixes that carry an IPv4 address: what counts is where that one leads.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class Registry:
    """One entry of REGISTRIES; `scheme` is empty when none was given, `port` None means any."""

    host: str
    port: int | None = None
    scheme: str = ""
    user: str = ""
    password: str = field(default="", repr=False)

    def matches(self, host: str, port: int) -> bool:
        """Tells whether this entry is about that host and port."""
        return self.host == _plain(host) and self.port in (None, port)


def parse_registry(text: str) -> Registry:
    """An entry: `host[:port]`, `http://host:port` or `https://user:password@host`.

    Raises: ValueError with a sentence that does not repeat a password.
    """
    scheme, separator, rest = text.rpartition("://")
    scheme = scheme.lower()
    safe = rest.rpartition("@")[2]
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    if separator and scheme not in _PORTS:
        raise ValueError(f"`{safe}` has a scheme that is neither http nor https")
    if not host or parts.path not in ("", "/") or parts.query or not host.isascii():
        raise ValueError(f"`{safe}` is not host:port; write host:port or http://host:port")
    if parts.username is not None and scheme != "https":
        raise ValueError(f"a password for `{safe}` needs https://: it must not travel in the open")
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    return Registry(_plain(host), port, scheme, user, password)


def is_public(address: _Address) -> bool:
    """True for an address on the open internet: not loopback, private, shared, multicast, …"""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address.teredo is not None:
            inner = address.teredo[1]
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address.is_site_local:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


@dataclass(frozen=True, slots=True)
class Policy:
    """Whom one operation may contact. `insecure` allows http where a listed host left it open."""

    registries: tuple[Registry, ...] = ()
    insecure: bool = False
    resolver: Resolver = socket.getaddrinfo

    def listed(self, host: str, port: int) -> Registry | None:
        """The user's entry about this host, or None."""
        return next((entry for entry in self.registries if entry.matches(host, port)), None)

    def base_urls(self, name_host: str) -> tuple[str, ...]:
        """Where the registry of a name may be, in the order to try. Raises: InvalidName."""
        host, colon, port_text = name_host.partition(":")
        if colon and not (port_text.isdecimal() and 0 < int(port_text) < 65536):
            raise InvalidName(name_host, "the host has no port between 1 and 65535")
        for scheme in ("https", "http"):  # an entry without a port is about all of them
            entry = self.listed(host, int(port_text) if colon else _PORTS[scheme])
            if entry is not None:
                break
        schemes = ["https"]
        if entry is not None and entry.scheme == "http":
            schemes = ["http"]
        elif entry is not None and not entry.scheme and self.insecure:
            schemes = ["https", "http"]
        return tuple(f"{scheme}://{name_host}" for scheme in schemes)

    def check_url(self, scheme: str, host: str, port: int) -> None:
        """Refuses what is neither https nor allowed plain http. Raises: AddressNotAllowed."""
        if scheme == "https":
            return
        entry = self.listed(host, port)
        is_open = entry is not None and (
            entry.scheme == "http" or (not entry.scheme and self.insecure)
        )
        if scheme != "http" or not is_open:
            raise AddressNotAllowed(
                host, f"only https is; plain http needs http://{host}:{port} in {_SETTING}"
            )

    def addresses(self, host: str, port: int) -> list[str]:
        """The addresses of `host` to connect to; every one was checked.

        Raises: AddressNotAllowed when one of them is not public and the host not listed,
        HostUnreachable when the name is not known.
        """
        found = self._resolve(host, port)
        if found is None:
            raise HostUnreachable(host, "there is no such host, or no name server answers")
        self._check(host, port, found)
        return found

    def check_proxied(self, host: str, port: int) -> None:
        """The same check for a host that a proxy will contact, as far as its name is known here.

        Raises: AddressNotAllowed.
        """
        self._check(host, port, self._resolve(host, port) or [])

    def is_loopback(self, host: str, port: int) -> bool:
        """Tells whether all addresses of `host` are this machine's own."""
        found = self._resolve(host, port)
        return bool(found) and all(_parsed(text).is_loopback for text in found or [])

    def _resolve(self, host: str, port: int) -> list[str] | None:
        try:
            rows = list(self.resolver(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError):
            return None
        return list(dict.fromkeys(str(row[4][0]) for row in rows)) or None

    def _check(self, host: str, port: int, addresses: Iterable[str]) -> None:
        if self.listed(host, port) is not None:
            return
        for text in addresses:
            if not is_public(_parsed(text)):
                raise AddressNotAllowed(
                    host,
                    "its address is not a public one; to allow it, put "
                    f"{host}:{port} into {_SETTING} (http://{host}:{port} without TLS)",
                )


_SETTING = "the daemon's setting LOCALRUN_REGISTRIES"


def _plain(host: str) -> str:
    return host.lower().rstrip(".").strip("[]")


def _parsed(text: str) -> _Address:
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address
