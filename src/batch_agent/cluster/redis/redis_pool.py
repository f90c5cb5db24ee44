"""Connection pools of redis-py for `store=` URLs: a server, or a primary found through Sentinel. Imports redis-py."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from redis.asyncio import ConnectionPool
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff

from ...core.errors import SpecError
from ...core.safe_text import public_url
from ...core.validation import host_name

_CONNECT_TIMEOUT = 5.0
_MAX_CONNECTIONS = 1_000
_SENTINEL_MARK = "+sentinel"
_SENTINEL_PORT = 26379
_SENTINEL_OPTION = "sentinel_"
"""Prefix of options for the Sentinels, such as sentinel_password."""

_FILES = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
_DATABASE = re.compile(r"/?[0-9]*/?")
_UNKNOWN_OPTION = re.compile(r"unexpected keyword argument '(\w+)'")


def open_pool(url: str) -> ConnectionPool:
    """Creates a pool without connecting. Raises SpecError."""
    try:
        parts = urlsplit(url)
        pool = _sentinel_pool(parts) if parts.scheme.endswith(_SENTINEL_MARK) else ConnectionPool(**_options(url))
        untyped: Any = pool
        untyped.make_connection()  # does not connect, but fails for options that it does not know
    except TypeError as error:
        raise SpecError(f"{public_url(url)!r} has an option that redis-py does not know: {_unknown(error)}.") from None
    except ValueError:  # the message may contain part of the password
        raise SpecError(
            f"{public_url(url)!r} is not a Redis URL. Use redis://USER:PASSWORD@HOST:PORT/DATABASE, rediss:// for TLS, "
            "redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/SERVICE/DATABASE, or unix:///PATH; percent-encode "
            "special characters in the password."
        ) from None
    _check_files(pool, url)
    for host in _hosts(pool):
        host_name(repr(public_url(url)), host)
    return pool


async def close_pool(pool: ConnectionPool) -> None:
    await pool.disconnect()
    if isinstance(pool, SentinelConnectionPool):
        for sentinel in pool.sentinel_manager.sentinels:
            await sentinel.aclose()


def _hosts(pool: ConnectionPool) -> list[str]:
    if isinstance(pool, SentinelConnectionPool):
        sentinels = pool.sentinel_manager.sentinels
        return [sentinel.connection_pool.connection_kwargs["host"] for sentinel in sentinels]
    return [pool.connection_kwargs.get("host", "")]


def _check_files(pool: ConnectionPool, url: str) -> None:
    """Checks that files exist. Otherwise a missing file would look like an unreachable server."""
    for name in _FILES:
        path = pool.connection_kwargs.get(name)
        if path is not None and not Path(path).exists():
            raise SpecError(f"{public_url(url)!r}: there is no {path!r} ({name}).")


def _unknown(error: TypeError) -> str:
    found = _UNKNOWN_OPTION.search(str(error))
    name = found[1] if found else str(error)
    return f"{name} (TLS has the scheme rediss://)" if name in _FILES else name


def _sentinel_pool(url: SplitResult) -> SentinelConnectionPool:
    """Creates a pool that asks the Sentinels for the primary whenever it connects. Raises ValueError."""
    scheme = url.scheme.removesuffix(_SENTINEL_MARK)
    credentials, mark, hosts = url.netloc.rpartition("@")
    service, _, database = url.path.strip("/").partition("/")
    if not service:
        raise ValueError
    options = _options(f"{scheme}://{credentials}{mark}server/{database}?{url.query}")
    connection = options.pop("connection_class", None)
    for name in ("host", "port"):
        options.pop(name, None)
    own = {name: options.pop(name) for name in list(options) if name.startswith(_SENTINEL_OPTION)}
    asked = {name: value for name, value in options.items() if name.startswith(("socket_", "ssl_", "retry"))}
    asked |= {name.removeprefix(_SENTINEL_OPTION): value for name, value in own.items()}
    is_tls = connection is not None
    untyped: Any = Sentinel  # redis-py has types for neither
    sentinels = untyped([_address(each) for each in hosts.split(",")], sentinel_kwargs={**asked, "ssl": is_tls})
    pool: Any = SentinelConnectionPool
    opened: SentinelConnectionPool = pool(unquote(service), sentinels, **options, ssl=is_tls)
    return opened


def _address(text: str) -> tuple[str, int]:
    host, mark, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    host = host if mark else text
    if not host:
        raise ValueError
    return host.strip("[]"), int(port) if mark else _SENTINEL_PORT


def _options(url: str) -> dict[str, Any]:
    """Raises ValueError."""
    parts: Mapping[str, Any] = parse_url(url)
    url_parts = urlsplit(url)
    if url_parts.scheme != "unix" and not _DATABASE.fullmatch(url_parts.path):  # redis-py would take database 0
        raise ValueError
    return {
        **parts,
        "protocol": 2,
        "decode_responses": False,
        "socket_timeout": None,  # redis-py applies it with wait_for, which in Python 3.11 may swallow a cancellation
        "socket_connect_timeout": _CONNECT_TIMEOUT,
        "retry": Retry(NoBackoff(), 0),
        "max_connections": _MAX_CONNECTIONS,
    }
