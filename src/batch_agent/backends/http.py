"""Any HTTP server behind a dialect. Foreign exceptions end here: callers see BackendError only."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Protocol, Self

import aiohttp
from yarl import URL

from ..core.errors import BackendError
from ..core.load import Load
from ..core.requests import Delta, Request
from ..core.traits import Traits
from .answers import Answer, SessionAnswer
from .dialects.dialect import Decoder, Dialect
from .failures import translate_failure, translate_status
from .farewell import Farewells
from .lines import Lines

_STALE = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientConnectionResetError)
_STALE_SHOWS_WITHIN = 1.0
_FREE_RESENDS = 2
"""A server may close an idle connection just as a request goes out on it: sending again is not a retry."""
_END_COMES_WITHIN = 0.5
_SHORTEST_SECRET = 12
_NO_STREAMS = (400, 422, 501)
_KEY_HEADERS = ("Authorization", "x-api-key", "X-Amz-Security-Token")
Headers = Mapping[str, str]


class Signer(Protocol):
    """Signs each request, for servers that take no plain key."""

    async def sign(self, method: str, url: URL, body: bytes) -> Headers:
        """Raises BackendError where there are no credentials."""
        ...


class Server:
    """Where requests go: an address, a session with its key, and a signature where one is asked for."""

    def __init__(self, session: aiohttp.ClientSession, root: URL, signer: Signer | None = None) -> None:
        self.session = session
        self.root = root
        self._signer = signer
        self._urls: dict[str, URL] = {}
        self._secrets = _secrets(session.headers, root)
        self._lines: Lines | None = None
        self._is_near = root.scheme == "http" and signer is None

    def url(self, path: str) -> URL:
        found = self._urls.get(path)
        if found is None:
            found = self._urls[path] = _below(self.root, path)
        return found

    async def ask(self, url: URL, body: bytes, headers: Headers | None) -> Answer:
        """As `post`, over connections of our own where the server is spoken to in plain HTTP, and keeps them."""
        lines = self._lines
        if lines is None:
            connector = self.session.connector
            if not self._is_near or connector is None or connector.force_close:
                return SessionAnswer(await self.post(url, body, headers))
            lines = self._lines = Lines(self.root, self.session.headers)
        return await lines.post(url, body, headers)

    async def aclose(self) -> None:
        if self._lines is not None:
            self._lines.close()
        await self.session.close()

    def post(self, url: URL, body: bytes, headers: Headers | None) -> Awaitable[aiohttp.ClientResponse]:
        """Never follows a redirect: the key is for this server."""
        if self._signer is None:
            return self.session.post(url, data=body, headers=headers, allow_redirects=False)
        return self._post_signed(self._signer, url, body, headers or {})

    async def _post_signed(self, signer: Signer, url: URL, body: bytes, headers: Headers) -> aiohttp.ClientResponse:
        signed = await signer.sign("POST", url, body)
        return await self.session.post(url, data=body, headers={**headers, **signed}, allow_redirects=False)

    def without_secrets(self, error: BackendError) -> BackendError:
        """The same error, in case that its words hold a key or a password that was sent."""
        said = clean = str(error)
        for secret in self._secrets:
            clean = clean.replace(secret, "***")
        if clean == said:
            return error
        return BackendError(error.kind, clean, retry_after=error.retry_after, status=error.status)

    async def signed(self, url: URL) -> Headers:
        """The headers of a request without a body."""
        return await self._signer.sign("GET", url, b"") if self._signer is not None else {}


class HttpBackend:
    """One endpoint. Connections are reused; their number is bounded by the slots, not here."""

    def __init__(
        self,
        server: Server,
        dialect: Dialect,
        traits: Traits,
        farewells: Farewells | None = None,
        on_close: Callable[[], Awaitable[None]] | None = None,
        loads: Callable[[], Awaitable[Load | None]] | None = None,
        counts: Callable[[str], Awaitable[int | None]] | None = None,
    ) -> None:
        self.traits = traits
        self.server = server
        self._dialect = dialect
        self._farewells = farewells
        self._on_close = on_close
        self._loads = loads
        self._counts = counts
        self._streams = True

    def stream(self, request: Request) -> "Exchange":
        if not self._streams and request.stream:
            request = replace(request, stream=False)
        if self._farewells is not None:
            self._farewells.greet(request.agent)
        return Exchange(self.server, self._dialect, request, self._stop_streaming)

    def _stop_streaming(self) -> None:
        """The server refuses streams: from now on it is asked for whole answers."""
        self._streams = False

    async def load(self) -> Load | None:
        return await self._loads() if self._loads is not None else None

    async def count_tokens(self, text: str) -> int | None:
        return await self._counts(text) if self._counts is not None else None

    async def leave(self, agent: str) -> None:
        if self._farewells is not None:
            await self._farewells.leave(agent)

    async def aclose(self) -> None:
        try:
            if self._farewells is not None:
                await self._farewells.leave_all()
        finally:
            try:
                await self.server.aclose()
            finally:
                if self._on_close is not None:
                    await self._on_close()


class Exchange(AsyncIterator[Delta]):
    """One request and its deltas. Leaving it before the end closes the connection, which aborts the request."""

    __slots__ = (
        "_answer",
        "_body",
        "_decoder",
        "_dialect",
        "_headers",
        "_plain",
        "_ready",
        "_server",
        "_streamed",
        "_url",
    )

    def __init__(self, server: Server, dialect: Dialect, request: Request, on_no_streams: Callable[[], None]) -> None:
        self._server = server
        self._plain = (replace(request, stream=False), on_no_streams) if request.stream else None
        self._dialect = dialect
        self._streamed = request.stream
        self._url = server.url(dialect.path(request))
        self._body = dialect.encode(request)
        self._headers = dialect.headers(request)
        self._decoder: Decoder | None = None
        self._ready: list[Delta] = []
        self._answer: Answer | None = None

    async def __aenter__(self) -> Self:
        dialect = self._dialect
        try:
            started = asyncio.get_running_loop().time()
            try:
                answer = await self._server.ask(self._url, self._body, self._headers)
            except _STALE as error:
                answer = await self._resend(error, started)
            self._answer = answer
            if answer.status != 200:
                said = without_key(await answer.read(), answer.sent_headers)
                if self._plain is not None and answer.status in _NO_STREAMS and b"stream" in said.lower():
                    return await self._without_stream(*self._plain)
                raise translate_status(answer.status, answer.headers, said, shown(self._url))
            if self._streamed and answer.content_type == dialect.stream_type:
                self._decoder = dialect.decoder()
            else:
                body = await answer.read()
                self._abort()  # read to its end: the connection is free for the next request
                self._ready = dialect.decode_reply(body)
                self._ready.reverse()
        except BackendError as error:
            self._abort()
            raise self._server.without_secrets(error) from None
        except (aiohttp.ClientError, OSError) as error:
            self._abort()
            raise self._server.without_secrets(translate_failure(error, shown(self._url))) from None
        except BaseException:
            self._abort()
            raise
        return self

    async def _without_stream(self, request: Request, on_no_streams: Callable[[], None]) -> Self:
        on_no_streams()
        self._abort()
        self._plain, self._streamed = None, False
        self._url, self._body = self._server.url(self._dialect.path(request)), self._dialect.encode(request)
        return await self.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._answer is not None and self._decoder is not None and self._decoder.ended:
                await _read_to_the_end(self._answer)
        finally:
            self._abort()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        while not self._ready:
            if self._answer is None or self._decoder is None or self._decoder.ended:
                raise StopAsyncIteration
            await self._read_more(self._answer, self._decoder)
        return self._ready.pop()

    async def _read_more(self, answer: Answer, decoder: Decoder) -> None:
        try:
            chunk = await answer.chunk()
            self._ready = list(decoder.feed(chunk) if chunk else decoder.close())
        except BackendError as error:
            raise self._server.without_secrets(error) from None
        except (aiohttp.ClientError, OSError) as error:
            raise self._server.without_secrets(translate_failure(error, shown(self._url))) from None
        self._ready.reverse()

    async def _resend(self, error: Exception, started: float) -> Answer:
        now = asyncio.get_running_loop().time
        for _ in range(_FREE_RESENDS):
            if isinstance(error, aiohttp.ClientConnectorError) or now() - started >= _STALE_SHOWS_WITHIN:
                break
            started = now()
            try:
                return await self._server.ask(self._url, self._body, self._headers)
            except _STALE as again:
                error = again
        raise error

    def _abort(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.close()


async def _read_to_the_end(answer: Answer) -> None:
    """The end of a stream comes a packet after its last event; only a connection that was read so far is reused."""
    if answer.is_whole:
        return
    with suppress(aiohttp.ClientError, OSError):
        async with asyncio.timeout(_END_COMES_WITHIN):
            while await answer.chunk():
                pass


def _below(root: URL, path: str) -> URL:
    return root.with_path(root.raw_path.rstrip("/") + path, encoded=True).with_query(root.query)


def _secrets(headers: Headers, root: URL) -> tuple[str, ...]:
    """What must not be shown, as it may be quoted."""
    found = [headers.get(name, "").removeprefix("Bearer ") for name in _KEY_HEADERS]
    if root.password:
        found += [root.password, b64encode(f"{root.user}:{root.password}".encode()).decode()]
    found += [value for value in root.query.values() if len(value) >= _SHORTEST_SECRET]
    return tuple(filter(None, found))


def shown(url: URL) -> str:
    """A URL as it may be shown: without what may be secret in it."""
    return str(url.with_user(None).with_query(None)) if url.absolute else str(url)


def without_key(said: bytes, sent: Headers) -> bytes:
    """A server's words, in case that it quotes the key which it was sent."""
    for header in _KEY_HEADERS:
        key = sent.get(header, "").removeprefix("Bearer ").encode()
        said = said.replace(key, b"***") if key else said
    return said


def open_session(headers: Headers, *, keeps_alive: bool, use_proxy: bool) -> aiohttp.ClientSession:
    """A session without limits of its own: slots bound the connections, the turn timeout bounds the waiting."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=not keeps_alive),
        headers={"Content-Type": "application/json", "Accept-Encoding": "identity", **headers},
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
        cookie_jar=aiohttp.DummyCookieJar(loop=asyncio.get_running_loop()),
        trust_env=use_proxy,
    )
