"""Which proxy the environment names for a server: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY."""

import os
from collections.abc import Mapping
from ipaddress import ip_address, ip_network

from yarl import URL

from ...core.errors import BackendError, ErrorKind

_SCHEMES = ("http", "https")


def proxy_of(url: URL, environ: Mapping[str, str] = os.environ) -> URL | None:
    """None for a server that is reached directly: this machine, a name without a dot, which only a node of the same
    cluster or network knows, and what NO_PROXY names. Raises BackendError for a proxy that cannot be used."""
    host = (url.host or "").rstrip(".").lower()
    name, said = _named(url.scheme, environ)
    if not said or _is_near(host) or _is_exempt(host, url.port, _setting("NO_PROXY", environ)):
        return None
    try:
        proxy = URL(said if "://" in said else f"http://{said}")
    except ValueError:
        proxy = URL()
    if proxy.scheme not in _SCHEMES or not proxy.host:
        kind = f"a proxy of the kind {proxy.scheme!r}" if proxy.scheme else "no proxy"
        raise BackendError(
            ErrorKind.BAD_REQUEST,
            f"{name} names {kind}, and only http:// and https:// proxies can be used. To reach {host} without one, "
            f"add it to NO_PROXY.",
        )
    return proxy


def _named(scheme: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """The variable that counts, and what it says."""
    for name in (f"{scheme.upper()}_PROXY", "ALL_PROXY"):
        if said := _setting(name, environ):
            return name, said
    return "", ""


def _setting(name: str, environ: Mapping[str, str]) -> str:
    """Small letters go before capitals. A CGI program's HTTP_PROXY is a header of who asks it, and no setting."""
    small = environ.get(name.lower())
    if small is not None:
        return small.strip()
    return "" if name == "HTTP_PROXY" and "REQUEST_METHOD" in environ else environ.get(name, "").strip()


def _is_near(host: str) -> bool:
    if host.endswith(".localhost") or ("." not in host and ":" not in host):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _is_exempt(host: str, port: int | None, no_proxy: str) -> bool:
    """`no_proxy`: names (with all below them), addresses, networks as in 10.0.0.0/8, each maybe with a port; or *."""
    return any(_matches(entry.strip().lower(), host, port) for entry in no_proxy.split(",") if entry.strip())


def _matches(entry: str, host: str, port: int | None) -> bool:
    if entry == "*":
        return True
    name, colon, number = entry.rpartition(":")
    if colon and number.isdecimal() and (":" not in name or name.endswith("]")):
        if port != int(number):
            return False
        entry = name
    entry = entry.strip("[]")
    try:
        return ip_address(host) in ip_network(entry, strict=False)
    except ValueError:
        name = entry.removeprefix("*").lstrip(".").rstrip(".")
        return bool(name) and (host == name or host.endswith(f".{name}"))
