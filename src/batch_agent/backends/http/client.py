"""HTTP client for one server, which keeps secrets out of errors."""

import asyncio
import re
from base64 import b64encode
from collections.abc import AsyncGenerator, Awaitable
from copy import copy
from typing import Protocol

from yarl import URL

from ...core.errors import BackendError
from ...core.options.backend_settings import is_secret_header
from ...core.safe_text import masked, masked_bytes
from ..http_errors import translate_failure, translate_status
from .transport import MAX_BODY_BYTES, MAX_PAGE_BYTES, ConnectionDropped, Headers, Transport, TransportResponse

_MIN_SECRET_LENGTH = 12
_MIN_MASKED_LENGTH = 8
"""Characters. A shorter key, such as the "EMPTY" of local servers, is no secret, and occurs in ordinary text."""
_MAX_FILE_BYTES = 4 * 2**30
"""Limit of a file that is read line by line."""
_SECRET_HEADER = re.compile(r"authorization$|cookie$|api-?key$|(^|-)(key|token|secret)$", re.IGNORECASE)
_SCHEME = re.compile(r"(Bearer|Basic|AWS4-HMAC-SHA256) ")


class Signer(Protocol):
    """Signs each request, for servers that do not accept a plain API key."""

    async def sign(self, method: str, url: URL, body: bytes) -> Headers:
        """Raises BackendError if there are no credentials."""
        ...


class RequestClient(Protocol):
    """Client that sends the requests of turns."""

    def url(self, path: str) -> URL: ...

    def post(self, url: URL, body: bytes, headers: Headers | None) -> Awaitable[TransportResponse]:
        """Sends a POST, and returns the response as soon as its head has arrived. Raises OSError, and BackendError if
        the request cannot be signed."""
        ...

    def redact(self, error: BackendError) -> BackendError:
        """The same error without any key or password that was sent to the server."""
        ...


class ServerClient:
    """Client for one server: its root URL, a transport that sends the API key, and a signer if the server needs one."""

    def __init__(self, transport: Transport, root: URL, signer: Signer | None = None, key_advice: str = "") -> None:
        """`key_advice`: what to do if the server does not accept the key."""
        self.root = root
        self._key_advice = key_advice
        self._transport = transport
        self._signer = signer
        self._urls: dict[str, URL] = {}
        self._secrets = _secrets(transport.headers, root)

    def url(self, path: str) -> URL:
        found = self._urls.get(path)
        if found is None:
            found = self._urls[path] = _join(self.root, path)
        return found

    def post(self, url: URL, body: bytes, headers: Headers | None) -> Awaitable[TransportResponse]:
        return self._send("POST", url, body, headers)

    async def get(self, url: URL, timeout: float) -> bytes:
        """The body of a GET. Raises BackendError, also for any status other than 200."""
        return await self.call("GET", url, timeout)

    async def call(
        self, method: str, url: URL, timeout: float, body: bytes = b"", headers: Headers | None = None
    ) -> bytes:
        """The body of a response outside of the inference API. A POST is sent once. Raises BackendError, also for any
        status other than 200."""
        try:
            async with asyncio.timeout(timeout):
                try:
                    response = await self._send(method, url, body, headers)
                except ConnectionDropped:  # an idle connection that the server has closed: a GET may be repeated
                    if method != "GET":
                        raise
                    response = await self._send(method, url, body, headers)
                return await _read_ok(response, url, MAX_PAGE_BYTES)
        except BackendError as error:
            raise self.redact(error) from None
        except OSError as error:
            raise self.redact(translate_failure(error, display_url(url))) from None

    async def lines(self, url: URL, timeout: float) -> AsyncGenerator[bytes, None]:
        """The lines of the body of a GET, as they arrive. `timeout`: seconds between two parts of it. Raises
        BackendError, also for any status other than 200, and for a body that is truncated."""
        response: TransportResponse | None = None
        rest = b""
        try:
            async with asyncio.timeout(timeout):
                response = await self._send("GET", url, b"", None)
                if response.status != 200:
                    await _read_ok(response, url)
            while True:
                async with asyncio.timeout(timeout):
                    chunk = await response.chunk(_MAX_FILE_BYTES)
                *lines, rest = (rest + chunk).split(b"\n") if chunk else (rest, b"")
                for line in filter(bytes.strip, lines):
                    yield line
                if not chunk:
                    return
        except BackendError as error:
            raise self.redact(error) from None
        except OSError as error:
            raise self.redact(translate_failure(error, display_url(url))) from None
        finally:
            if response is not None:
                response.close()

    async def post_or_none(self, url: URL, body: bytes, timeout: float, headers: Headers | None = None) -> bytes | None:
        """The body of a POST; None if it fails in any way."""
        try:
            async with asyncio.timeout(timeout):
                return await _read_ok(await self.post(url, body, headers), url)
        except (BackendError, OSError):
            return None

    @property
    def is_closed(self) -> bool:
        return self._transport.is_closed

    async def aclose(self) -> None:
        await self._transport.aclose()

    def _send(self, method: str, url: URL, body: bytes, headers: Headers | None) -> Awaitable[TransportResponse]:
        if self._signer is None:
            return self._transport.send(method, url, body, headers)
        return self._signed(self._signer, method, url, body, headers or {})

    async def _signed(self, signer: Signer, method: str, url: URL, body: bytes, headers: Headers) -> TransportResponse:
        signed = await signer.sign(method, url, body)
        return await self._transport.send(method, url, body, {**headers, **signed})

    @property
    def headers(self) -> Headers:
        """Headers that every request carries. Those of a signer are not among them."""
        return self._transport.headers

    def mask(self, text: str) -> str:
        """A URL or a body without any key or password that is sent to the server."""
        return masked(text, [secret for secret in self._secrets if len(secret) >= _MIN_MASKED_LENGTH])

    def redact(self, error: BackendError) -> BackendError:
        """The error without keys and passwords, and with what to do about a wrong key. May be called twice."""
        text = str(error)
        redacted = masked(text, self._secrets)
        if error.status == 401 and self._key_advice not in redacted:
            redacted = f"{redacted} {self._key_advice}"
        if redacted == text:
            return error
        changed = copy(error)
        changed.args = (redacted,)
        return changed


async def _read_ok(response: TransportResponse, url: URL, limit: int = MAX_BODY_BYTES) -> bytes:
    """The body of a response with status 200. Raises BackendError for any other status."""
    try:
        body = await response.read(limit)
        if response.status != 200:
            text = redact_key(body, response.sent_headers)
            raise translate_status(response.status, response.headers, text, display_url(url))
        return body
    finally:
        response.close()


def _join(root: URL, path: str) -> URL:
    return root.with_path(root.raw_path.rstrip("/") + path, encoded=True).with_query(root.query)


def _secrets(headers: Headers, root: URL) -> tuple[str, ...]:
    """Secrets in every form in which an error may quote them."""
    found = _secrets_in(headers)
    if root.password:
        found += [root.password, b64encode(f"{root.user}:{root.password}".encode()).decode()]
    found += [value for value in root.query.values() if len(value) >= _MIN_SECRET_LENGTH]
    return tuple(filter(None, found))


def display_url(url: URL) -> str:
    """A URL for messages: without user, password and query, which may be secret."""
    return str(url.with_user(None).with_query(None)) if url.absolute else str(url)


def redact_key(text: bytes, sent: Headers) -> bytes:
    """The body of an error response without the API key, which some servers quote."""
    return masked_bytes(text, _secrets_in(sent))


def has_secret_name(header: str) -> bool:
    """Whether a header holds a secret, by its name."""
    return _SECRET_HEADER.search(header) is not None


def secret_part(value: str) -> str:
    """The value of a header without the name of its scheme, such as Bearer."""
    scheme = _SCHEME.match(value)
    return value if scheme is None else value[scheme.end() :]


def _secrets_in(headers: Headers) -> list[str]:
    """Keys, and the values of headers that are not known to be public, if they are too long to occur by chance."""
    return [
        secret_part(value)
        for name, value in headers.items()
        if has_secret_name(name) or (is_secret_header(name) and len(value) >= _MIN_MASKED_LENGTH)
    ]
