"""SSRF guard: keeps requests of a model away from private networks."""

import socket
from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from aiohttp import AddrInfoType
from yarl import URL

_GLOBAL_IPV6 = ip_network("2000::/3")
_TUNNELS = tuple(ip_network(text) for text in ("2001::/32", "2002::/16"))  # Teredo and 6to4 carry IPv4 addresses
_NAT64 = ip_network("64:ff9b::/96")
_NOT_PUBLIC = tuple(  # besides what `ipaddress` knows: metadata and wire servers of clouds, the 6to4 relay
    ip_network(text) for text in ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24")
)


class PrivateAddress(PermissionError):
    """A connection to a private address was refused before it was made."""


class Guard:
    """Checks the address that a socket connects to, so that neither DNS nor a redirect can bypass it."""

    def __init__(self, allow_private: bool | Collection[str] = False) -> None:
        """`allow_private` may also name networks, such as "10.1.0.0/16". Raises ValueError for an invalid network."""
        self._allows_all = allow_private is True
        self._allowed = () if isinstance(allow_private, bool) else tuple(ip_network(text) for text in allow_private)

    def open_socket(self, to: AddrInfoType) -> socket.socket:
        """For aiohttp's connector. Raises PrivateAddress."""
        family, kind, protocol, _, address = to
        if not self.allows(str(address[0])):
            # The same message for each address of a name, because only then aiohttp passes the error on unchanged.
            raise PrivateAddress("a private or reserved address")
        return socket.socket(family, kind, protocol)

    def allows(self, address: str) -> bool:
        if self._allows_all:
            return True
        try:
            found = ip_address(address)
        except ValueError:  # a name, which the system would resolve again
            return False
        return is_public(found) or any(found in network for network in self._allowed)


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address is on the public internet, including IPv4 addresses embedded in IPv6."""
    if isinstance(address, IPv4Address):
        outside = address.is_global and not address.is_multicast and not address.is_reserved
        return outside and not any(address in network for network in _NOT_PUBLIC)
    if address.ipv4_mapped is not None:
        return is_public(address.ipv4_mapped)
    if address in _NAT64:
        return is_public(IPv4Address(int(address) & 0xFFFFFFFF))
    return address in _GLOBAL_IPV6 and address.is_global and not any(address in network for network in _TUNNELS)


def checked(url: str) -> URL:
    """A URL that may be fetched, judged by its text. Raises ValueError, PermissionError."""
    try:
        address = URL(url.strip())
    except ValueError as error:
        raise ValueError(f"{url!r} is no URL: {error}") from error
    if address.scheme not in ("http", "https") or not address.host:
        raise ValueError(f"{url!r} is not a web address: it must begin with http:// or https:// and name a host")
    if address.user is not None or address.password is not None:
        raise PermissionError("URLs with a user name or a password in them are not fetched: leave them out")
    return address.with_fragment(None)
