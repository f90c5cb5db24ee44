"""Where requests go, and what may be shown of it."""

import asyncio
from base64 import b64encode
from collections.abc import Awaitable
from typing import Protocol

from yarl import URL

from ...core.errors import BackendError
from ...core.safe_text import masked, masked_bytes
from ..error_mapping import translate_failure, translate_status
from .transport import LARGEST_BODY, LARGEST_PAGE, ConnectionDropped, Headers, Transport, TransportResponse

_SHORTEST_SECRET = 12
_KEY_HEADERS = ("Authorization", "x-api-key", "X-Amz-Security-Token")


class Signer(Protocol):
    """Signs each request, for servers that take no plain key."""

    async def sign(self, method: str, url: URL, body: bytes) -> Headers:
        """Raises BackendError where there are no credentials."""
        ...


class ServerClient:
    """Where requests go: an address, a wire with its key, and a signature where one is asked for."""

    def __init__(self, wire: Transport, root: URL, signer: Signer | None = None) -> None:
        self.root = root
        self._wire = wire
        self._signer = signer
        self._urls: dict[str, URL] = {}
        self._secrets = _secrets(wire.headers, root)

    def url(self, path: str) -> URL:
        found = self._urls.get(path)
        if found is None:
            found = self._urls[path] = _below(self.root, path)
        return found

    def ask(self, url: URL, body: bytes, headers: Headers | None) -> Awaitable[TransportResponse]:
        """The answer to a POST, as soon as its head is there. Raises OSError, BackendError where nobody can sign it."""
        return self._send("POST", url, body, headers)

    async def page(self, url: URL, within: float) -> bytes:
        """What a GET brings. Raises BackendError, also for any other status than 200."""
        try:
            async with asyncio.timeout(within):
                try:
                    answer = await self._send("GET", url, b"", None)
                except (
                    ConnectionDropped
                ):  # an idle connection that the server has given up: a page may be asked for twice
                    answer = await self._send("GET", url, b"", None)
                return await _good(answer, url, LARGEST_PAGE)
        except BackendError as error:
            raise self.without_secrets(error) from None
        except OSError as error:
            raise self.without_secrets(translate_failure(error, display_url(url))) from None

    async def try_post(self, url: URL, body: bytes, within: float, headers: Headers | None = None) -> bytes | None:
        """What a POST brings; None for one that fails, in whatever way."""
        try:
            async with asyncio.timeout(within):
                return await _good(await self.ask(url, body, headers), url)
        except (BackendError, OSError):
            return None

    @property
    def is_closed(self) -> bool:
        return self._wire.is_closed

    async def aclose(self) -> None:
        await self._wire.aclose()

    def _send(self, method: str, url: URL, body: bytes, headers: Headers | None) -> Awaitable[TransportResponse]:
        if self._signer is None:
            return self._wire.send(method, url, body, headers)
        return self._signed(self._signer, method, url, body, headers or {})

    async def _signed(self, signer: Signer, method: str, url: URL, body: bytes, headers: Headers) -> TransportResponse:
        signed = await signer.sign(method, url, body)
        return await self._wire.send(method, url, body, {**headers, **signed})

    def without_secrets(self, error: BackendError) -> BackendError:
        """The same error, in case that its words hold a key or a password that was sent."""
        said = str(error)
        clean = masked(said, self._secrets)
        if clean == said:
            return error
        return BackendError(error.kind, clean, retry_after=error.retry_after, status=error.status)


async def _good(answer: TransportResponse, url: URL, most: int = LARGEST_BODY) -> bytes:
    """The body of an answer with a good status. Raises BackendError for others."""
    try:
        body = await answer.read(most)
        if answer.status != 200:
            said = redact_key(body, answer.sent_headers)
            raise translate_status(answer.status, answer.headers, said, display_url(url))
        return body
    finally:
        answer.close()


def _below(root: URL, path: str) -> URL:
    return root.with_path(root.raw_path.rstrip("/") + path, encoded=True).with_query(root.query)


def _secrets(headers: Headers, root: URL) -> tuple[str, ...]:
    """What must not be shown, as it may be quoted."""
    found = [headers.get(name, "").removeprefix("Bearer ") for name in _KEY_HEADERS]
    if root.password:
        found += [root.password, b64encode(f"{root.user}:{root.password}".encode()).decode()]
    found += [value for value in root.query.values() if len(value) >= _SHORTEST_SECRET]
    return tuple(filter(None, found))


def display_url(url: URL) -> str:
    """A URL as it may be shown: without what may be secret in it."""
    return str(url.with_user(None).with_query(None)) if url.absolute else str(url)


def redact_key(said: bytes, sent: Headers) -> bytes:
    """A server's words, in case that it quotes the key which it was sent."""
    return masked_bytes(said, [sent.get(header, "").removeprefix("Bearer ") for header in _KEY_HEADERS])
