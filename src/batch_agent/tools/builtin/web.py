"""Built-in tool that fetches web pages."""

import asyncio
import socket
from collections.abc import Collection, Mapping
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from ..tool import Tool, make_tool
from .html_text import charset_in, decode, plain, readable
from .http_session import RequestFailed, RequestMayPass, SharedSession, first_chars, read_up_to, user_agent
from .ssrf_guard import Guard, PrivateAddress, checked

_MAX_BYTES = 2_000_000
_MAX_REDIRECTS = 5
_MAX_RETRY_AFTER = 5.0
_MAX_ERROR_CHARS = 20_000
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HTML = frozenset({"text/html", "application/xhtml+xml"})
_TEXT_ENDINGS = ("json", "xml", "yaml", "javascript", "x-ndjson", "toml", "sql", "octet-stream")
"""The last is the type of files that a server does not know; their contents decide."""


def http_get_tool(
    allow_private: bool | Collection[str] = False,
    *,
    timeout: float = 30.0,
    resolver: AbstractResolver | None = None,
) -> Tool:
    """A tool `http_get` that reaches public addresses only. `allow_private`: True for all addresses, or the networks to
    allow, such as "10.1.0.0/16". `timeout`: of a whole fetch, including redirects."""
    guard = Guard(allow_private)

    def open_session() -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, resolver=resolver, socket_factory=guard.open_socket),
            headers={"User-Agent": user_agent(), "Accept-Encoding": "gzip"},
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            auto_decompress=False,  # a few bytes may expand to gigabytes
            trust_env=False,  # a proxy would bypass the guard
        )

    sessions = SharedSession(open_session)

    async def http_get(url: str) -> str:
        """Fetch a web page, or another text from the web, and read it.

        Args:
            url: The whole address, beginning with http:// or https://.
        """
        address = checked(url)
        try:
            async with asyncio.timeout(timeout), sessions.use() as session:
                return await _follow(session, address)
        except TimeoutError as error:
            if isinstance(error, aiohttp.ClientError):
                raise _translated(error, url) from error
            raise TimeoutError(f"{url} took longer than {timeout:g} s; try another source") from error
        except (aiohttp.ClientError, OSError) as error:
            raise _translated(error, url) from error

    return make_tool(
        http_get,
        effect="read",
        ttl=300,
        rate_limit=10,
        rate_key=_host,
        retries=2,
        retry_on=(RequestMayPass,),
    )


def _host(arguments: Mapping[str, Any]) -> str:
    try:
        return checked(arguments["url"]).host or ""
    except (ValueError, PermissionError):
        return ""  # it will not be fetched


async def _follow(session: aiohttp.ClientSession, address: URL) -> str:
    for _ in range(_MAX_REDIRECTS + 1):
        async with session.get(address, allow_redirects=False) as response:
            location = response.headers.get("Location")
            if response.status not in _REDIRECTS or location is None:
                return await _result(response)
        try:
            address = checked(str(address.join(URL(location))))
        except (ValueError, PermissionError) as error:
            raise RequestFailed(f"{address} redirects to an address that is not fetched: {error}") from error
    raise RequestFailed(f"{address} leads on and on: more than {_MAX_REDIRECTS} redirects")


async def _result(response: aiohttp.ClientResponse) -> str:
    if response.status >= 400:
        raise await _http_error(response)
    kind = response.content_type
    if not (kind.startswith("text/") or kind.endswith(_TEXT_ENDINGS)):
        return _described(kind, response.headers.get("Content-Length"))
    data, is_cut = await _body(response)
    text = decode(data, response.charset or (charset_in(data) if kind in _HTML else None))
    if text is None:
        return _described(kind, response.headers.get("Content-Length"))
    if kind in _HTML:
        text = await asyncio.to_thread(readable, text)
    cut = f"\n[cut here: only the first {_MAX_BYTES} bytes were read]" if is_cut else ""
    return text + cut if text.strip() else f"[nothing to read: {response.status} with no text]{cut}"


async def _http_error(response: aiohttp.ClientResponse) -> Exception:
    """The error for a status >= 400. Waits for Retry-After, if that is short."""
    data, _ = await _body(response)
    detail = first_chars(plain((decode(data, response.charset) or "")[:_MAX_ERROR_CHARS]))
    status = f"{response.status} {response.reason or ''}".strip()
    message = f"{status} from {response.url}: {detail or 'no further words'}"
    if response.status != 429 and response.status < 500:
        return RequestFailed(message)
    seconds = _retry_after(response)
    if seconds > _MAX_RETRY_AFTER:
        return RequestFailed(f"{message}\n[it asks to wait for {seconds:g} s; try another source]")
    if seconds:
        await asyncio.sleep(seconds)
    return RequestMayPass(message)


def _retry_after(response: aiohttp.ClientResponse) -> float:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isascii() and value.isdigit() else 0.0


async def _body(response: aiohttp.ClientResponse) -> tuple[bytes, bool]:
    """The beginning of the body, and whether there is more."""
    data = await read_up_to(response, _MAX_BYTES)
    return data[:_MAX_BYTES], len(data) > _MAX_BYTES


def _described(kind: str, length: str | None) -> str:
    return f"[{kind}, {length or 'an unknown number of'} bytes: not a text]"


def _translated(error: Exception, url: str) -> Exception:
    if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, PrivateAddress):
        return PermissionError(f"{url} leads to {error.os_error} ({error.host}): only public addresses are fetched")
    if isinstance(error, aiohttp.ClientConnectorDNSError) and error.os_error.errno == socket.EAI_NONAME:
        return RequestFailed(f"there is no host {error.host!r}; check the address")
    if isinstance(error, aiohttp.InvalidURL | aiohttp.ClientSSLError):
        return RequestFailed(f"{url} cannot be fetched: {error}")
    return RequestMayPass(f"{url} cannot be fetched: {error or type(error).__name__}")
