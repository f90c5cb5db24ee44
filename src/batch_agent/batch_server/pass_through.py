"""Requests that are sent to an OpenAI-compatible server unchanged, and responses that are returned unchanged."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

from ..backends.connect import connect
from ..backends.dialects.dialect import StreamDecoder
from ..backends.dialects.openai.encoder import OpenAIChat
from ..backends.dialects.response_body import openai_usage, read_object
from ..backends.endpoints.endpoint_identity import check_distinct, labelled
from ..backends.endpoints.endpoint_pool import EndpointPool
from ..backends.endpoints.endpoint_watcher import open_watched_pool
from ..backends.http_backend import HttpBackend
from ..core.errors import BackendError, ErrorKind
from ..core.json import dumps
from ..core.messages import Prompt, User
from ..core.options.backend_settings import NamedBackend, NamedBackends, endpoints_in, has_source
from ..core.protocols.backend import Backend, Traits
from ..core.requests import Delta, Finished, Request, Sampling, TextDelta, Usage

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
_ROOT = "/v1"
_PATH = "path"
_NO_PROMPT = Prompt("")


def pass_through_request(url: str, body: Mapping[str, Any], model: str, key: str, turn: int = 0) -> Request:
    """The request for a line. Its only message is the body, by which the ledger and the pace count it."""
    max_tokens = body.get("max_completion_tokens") or body.get("max_tokens")
    sampling = Sampling(
        max_tokens=max_tokens if isinstance(max_tokens, int) else None, extra={_PATH: url.removeprefix(_ROOT)}
    )
    return Request(_NO_PROMPT, (User(dumps(body).decode()),), model, sampling, agent=key, turn=turn)


class PassThrough:
    """Dialect of requests that are bodies already. The text of a reply is the body of the response."""

    stream_type = ""

    def path(self, request: Request) -> str:
        return str(request.sampling.extra[_PATH])

    def headers(self, request: Request) -> Mapping[str, str] | None:
        return None

    def encode(self, request: Request) -> bytes:
        (message,) = request.messages
        assert isinstance(message, User)
        return message.text.encode()

    def decode_reply(self, body: bytes, lane: str = "standard") -> list[Delta]:
        usage = openai_usage(read_object(body).get("usage")) or Usage()
        return [TextDelta(body.decode()), Finished("stop", usage)]

    def decoder(self, lane: str = "standard") -> StreamDecoder:
        raise AssertionError("lines of batches are not streamed")


async def open_line_backend(
    url: NamedBackends, model: str | None, notify: Callable[[str], None]
) -> tuple["LineBackend", bool]:
    """Opens the backend of a URL, or of several URLs that serve the same model. Also returns whether it takes requests
    unchanged. Raises SpecError and BackendError."""

    async def open_one(endpoint: NamedBackend) -> Backend:
        backend = await connect(endpoint, model, uses_tools=False, notify=notify)
        if isinstance(backend, HttpBackend) and isinstance(backend.dialect, OpenAIChat):
            backend.dialect = PassThrough()
        return backend

    given = endpoints_in(url)
    if any(map(has_source, given)):
        pool = await open_watched_pool(given, open_one, notify)
    else:
        named = labelled(check_distinct(given))
        if len(named) == 1:
            backend = await open_one(given[0])
            return LineBackend(backend), _is_pass_through(backend)
        pool = await EndpointPool.open(list(named), lambda label: open_one(named[label]), notify)
    found = {_is_pass_through(member.backend) for member in pool.members if member.backend is not None}
    if len(found) > 1:
        await pool.aclose()
        raise BackendError(ErrorKind.BAD_REQUEST, "The endpoints must all be OpenAI-compatible, or none of them.")
    return LineBackend(pool), found.pop()


def _is_pass_through(backend: Backend | None) -> bool:
    return isinstance(backend, HttpBackend) and isinstance(backend.dialect, PassThrough)


class LineBackend:
    """Backend for requests written by others. A route or model that the server does not have is a fault of the request,
    and says nothing about the server."""

    def __init__(self, server: Backend) -> None:
        self.server = server

    @property
    def traits(self) -> Traits:
        return self.server.traits

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[Delta]]:
        return _LineStream(self.server.stream(request))

    async def leave(self, agent: str) -> None:
        await self.server.leave(agent)

    async def aclose(self) -> None:
        await self.server.aclose()


class _LineStream:
    __slots__ = ("_stream",)

    def __init__(self, stream: AbstractAsyncContextManager[AsyncIterator[Delta]]) -> None:
        self._stream = stream

    async def __aenter__(self) -> AsyncIterator[Delta]:
        try:
            return await self._stream.__aenter__()
        except BackendError as error:
            if error.kind is ErrorKind.NOT_FOUND:
                error.kind = ErrorKind.BAD_REQUEST
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stream.__aexit__(kind, error, trace)
