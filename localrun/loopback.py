"""Whether an address is this machine's own. Pure: names are not resolved."""

import ipaddress


def is_loopback(host: str) -> bool:
    """True for a loopback address, with or without brackets or zone, and for `localhost`."""
    bare = host.strip("[]").partition("%")[0]
    if bare.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        return False
    # A dual-stack socket shows IPv4 peers as ::ffff:127.0.0.1.
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
