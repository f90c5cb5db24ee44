"""Who may ask a server that is meant for few."""

import ipaddress
import socket
from functools import cache


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine can reach it there."""
    address = _address(host)
    return address.is_loopback if address is not None else host == "localhost"


def is_known(asked: str, host: str) -> bool:
    """Whether a request for the host `asked`, as its header names it, is meant for a server at `host`. A page of
    somebody else can have its own name lead here; it cannot have a number do so, or a name of this machine."""
    name = _name(asked).lower()
    if _address(name) is not None or name == "localhost" or name == host.lower():
        return True
    return not is_loopback(host) and name in _own_names()


@cache
def _own_names() -> frozenset[str]:
    return frozenset({socket.gethostname().lower(), socket.getfqdn().lower()})


def _name(asked: str) -> str:
    """Without the port."""
    if asked.startswith("["):
        return asked[1:].partition("]")[0]
    return asked.partition(":")[0]


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
