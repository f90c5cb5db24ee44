"""Check of the Host header, against DNS rebinding."""

import ipaddress
import socket
from functools import cache


def is_loopback(host: str) -> bool:
    """Whether the host is reachable only from this machine."""
    address = _address(host)
    return address.is_loopback if address is not None else host == "localhost"


def is_known(header: str, host: str) -> bool:
    """Whether a request with this Host header is meant for a server at `host`. A foreign page can make its own domain
    name resolve to this server, but not an IP address or a name of this machine."""
    name = _name(header).lower()
    if _address(name) is not None or name == "localhost" or name == host.lower():
        return True
    return not is_loopback(host) and name in _own_names()


@cache
def _own_names() -> frozenset[str]:
    return frozenset({socket.gethostname().lower(), socket.getfqdn().lower()})


def _name(header: str) -> str:
    """The host name without the port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
