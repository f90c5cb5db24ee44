"""Selection of the transport for a server: plain HTTP directly, TLS and proxies of the environment through aiohttp."""

import os
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_address, ip_network

from yarl import URL

from ...core.errors import BackendError, ErrorKind
from ...lazy_imports import lazy_modules
from .transport import Headers, Transport

with lazy_modules(globals()):
    from . import aiohttp_transport, connection_pool

_SCHEMES = ("http", "https")


def proxy_of(url: URL, environ: Mapping[str, str] = os.environ) -> URL | None:
    """The proxy for `url`. None for servers that are reached directly: this machine, names without a dot (nodes of the
    same cluster or network) and entries of NO_PROXY. Raises BackendError for a proxy that cannot be used."""
    host = (url.host or "").rstrip(".").lower()
    name, value = _proxy_variable(url.scheme, environ)
    if not value or _is_local(host) or _is_exempt(host, url.port, _setting("NO_PROXY", environ)):
        return None
    try:
        proxy = URL(value if "://" in value else f"http://{value}")
    except ValueError:
        proxy = URL()
    if proxy.scheme not in _SCHEMES or not proxy.host:
        kind = f"a {proxy.scheme!r} proxy" if proxy.scheme else "an invalid proxy URL"
        raise BackendError(
            ErrorKind.BAD_REQUEST,
            f"{name} is set to {kind}; only http:// and https:// proxies are supported. To reach {host} without a "
            "proxy, add it to NO_PROXY.",
        )
    return proxy


def _proxy_variable(scheme: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """Name and value of the variable that applies."""
    for name in (f"{scheme.upper()}_PROXY", "ALL_PROXY"):
        if value := _setting(name, environ):
            return name, value
    return "", ""


def _setting(name: str, environ: Mapping[str, str]) -> str:
    """Lower-case variables take precedence. In a CGI program HTTP_PROXY holds a header of its client, so it is
    ignored."""
    lower_case = environ.get(name.lower())
    if lower_case is not None:
        return lower_case.strip()
    return "" if name == "HTTP_PROXY" and "REQUEST_METHOD" in environ else environ.get(name, "").strip()


@lru_cache(maxsize=64)
def _is_local(host: str) -> bool:
    if host.endswith(".localhost") or ("." not in host and ":" not in host):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _is_exempt(host: str, port: int | None, no_proxy: str) -> bool:
    """`no_proxy`: domains (with their subdomains), addresses, networks as in 10.0.0.0/8, optionally with a port; or
    *."""
    return any(_matches(entry.strip().lower(), host, port) for entry in no_proxy.split(",") if entry.strip())


def _matches(entry: str, host: str, port: int | None) -> bool:
    if entry == "*":
        return True
    name, colon, entry_port = entry.rpartition(":")
    if colon and entry_port.isdecimal() and (":" not in name or name.endswith("]")):
        if port != int(entry_port):
            return False
        entry = name
    entry = entry.strip("[]")
    try:
        return ip_address(host) in ip_network(entry, strict=False)
    except ValueError:
        name = entry.removeprefix("*").lstrip(".").rstrip(".")
        return bool(name) and (host == name or host.endswith(f".{name}"))


def open_transport(root: URL, headers: Headers, *, keep_alive: bool = True) -> Transport:
    """A transport without limits on connections (slots bound them) and on waiting (the turn timeout does). Raises
    BackendError for a proxy in the environment that cannot be used."""
    all_headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", **headers}
    proxy = proxy_of(root)
    if root.scheme == "http" and proxy is None:
        return connection_pool.ConnectionPool(root, all_headers, keep_alive=keep_alive)
    return aiohttp_transport.AiohttpTransport(all_headers, keep_alive=keep_alive, proxy=proxy)
