"""Whom an address of the network belongs to.

Limits are kept by it where a client says nothing else of itself, and nobody is to be his own upstream.
"""

from ipaddress import IPv6Address, IPv6Network, ip_address

# What one subscriber is given of IPv6: a client has any address in it that it likes.
PREFIX = 64

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
EVERYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104  (to be known, not to be listened on)


def is_served_by(host: str, listens: str) -> bool:
    """Whether who listens somewhere is reached by a name of a host, as far as that is known without asking anybody."""
    return host == listens or (host in LOOPBACK and listens in LOOPBACK | EVERYWHERE)


def belongs_to(address: str) -> str:
    """An address of IPv4, also one that is written as IPv6; of IPv6 the network; any other text as it is."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(IPv6Network((int(found), PREFIX), strict=False))
