"""Recorder of exchanges: requests as they are sent, and responses as they are received, with secrets masked."""

import asyncio
import time
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from hashlib import blake2b
from types import TracebackType
from typing import Any, Self

from yarl import URL

from ...core.errors import BackendError
from ...core.options.backend_settings import is_secret_header
from ...core.requests import Delta, EncodedRequest, Exchange, Finished, Request, RequestObserver, Usage
from .client import ServerClient, has_secret_name, secret_part
from .json_body import BadJson, loads
from .transport import MAX_BODY_BYTES, MAX_STREAM_BYTES, Headers, TransportResponse

_MASK = "***"
_MIN_IMAGE_CHARS = 64
"""Shorter bodies have no image."""


def encoded(server: ServerClient, url: URL, body: bytes, headers: Headers) -> EncodedRequest:
    """A POST to a server as it can be shown."""
    shown = {name: _masked_value(value) if is_secret_header(name) else value for name, value in headers.items()}
    return EncodedRequest("POST", server.mask(str(url.with_user(None))), shown, _data(server, body))


def _masked_response_headers(headers: Headers) -> dict[str, str]:
    """With plain names: orjson refuses those of a response, which are of a subclass of `str`."""
    return {str(name): _masked_value(value) if has_secret_name(name) else value for name, value in headers.items()}


def _masked_value(value: str) -> str:
    return value.removesuffix(secret_part(value)) + _MASK


def _data(server: ServerClient, body: bytes) -> Any:
    """JSON data of a body; its text if it is not JSON, and Base64 if it is not text."""
    try:
        text = server.mask(body.decode())
    except UnicodeDecodeError:
        return {"base64": server.mask(b64encode(body).decode())}
    try:
        data = loads(text.encode()) if text else None
        return without_images(data) if len(text) > _MIN_IMAGE_CHARS else data
    except BadJson:
        return text


def without_images(data: Any) -> Any:
    """JSON data of a request, with type, size and digest of each image instead of its bytes."""
    match data:
        case {"type": "base64", "media_type": str(kind), "data": str(encoded_image)}:
            return {**data, "data": _image_label(kind, encoded_image)}
        case {"format": str(kind), "source": {"bytes": str(encoded_image)}}:
            return {**data, "source": {"bytes": _image_label(f"image/{kind}", encoded_image)}}
        case {"url": str(url)} if url.startswith("data:image/") and ";base64," in url:
            kind, _, encoded_image = url.removeprefix("data:").partition(";base64,")
            return {**data, "url": _image_label(kind, encoded_image)}
        case dict():
            return {name: without_images(value) for name, value in data.items()}
        case list():
            return [without_images(value) for value in data]
        case _:
            return data


def _image_label(kind: str, encoded_image: str) -> str:
    if encoded_image.startswith("<"):
        return encoded_image  # a label already: nothing was read
    try:
        image = b64decode(encoded_image)
    except ValueError:
        return encoded_image
    return f"<image, {kind}, {len(image):,} bytes, blake2b {blake2b(image, digest_size=16).hexdigest()[:12]}>"


class ExchangeRecorder:
    """Client for one request of a turn. A request that is sent again is another exchange."""

    def __init__(self, server: ServerClient, request: Request, observe: RequestObserver) -> None:
        self._server = server
        self._request = request
        self._observe = observe
        self._sent: tuple[URL, bytes, Headers] | None = None
        """The request in progress: URL, body and headers."""
        self._response: _RecordedResponse | None = None
        self._at = self._started = 0.0
        self.usage: Usage | None = None

    def url(self, path: str) -> URL:
        return self._server.url(path)

    async def post(self, url: URL, body: bytes, headers: Headers | None) -> TransportResponse:
        self.end(None)  # of an earlier request, which the server rejected because it streams
        self._sent = url, body, {**self._server.headers, **(headers or {})}
        self._at, self._started = time.time(), time.monotonic()
        try:
            response = await self._server.post(url, body, headers)
        except BaseException as error:
            self.end(error)
            raise
        self._response = _RecordedResponse(response)
        self._sent = url, body, self._response.sent_headers
        return self._response

    def redact(self, error: BackendError) -> BackendError:
        return self._server.redact(error)

    def end(self, error: BaseException | None) -> None:
        """Ends the exchange in progress, if there is one."""
        sent, response = self._sent, self._response
        if sent is None:
            return
        self._sent = self._response = None
        self._observe(
            Exchange(
                self._request,
                encoded(self._server, *sent),
                self._at,
                time.monotonic() - self._started,
                None if response is None else response.status,
                {} if response is None else _masked_response_headers(response.headers),
                None if response is None else _data(self._server, response.body),
                self.usage,
                None if error is None else self._server.mask(_message(error)),
                self._server.mask,
            )
        )


def _message(error: BaseException) -> str:
    if isinstance(error, BackendError):
        return f"{error.kind}: {error}"
    if isinstance(error, asyncio.CancelledError):
        return "cancelled, by a timeout or by the end of the run"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class _RecordedResponse:
    """Response that keeps the part of its body that was read. Its head is copied: a connection is used again."""

    def __init__(self, response: TransportResponse) -> None:
        self._response = response
        self._parts: list[bytes] = []
        self.status = response.status
        self.headers: Headers = dict(response.headers)
        self.sent_headers: Headers = dict(response.sent_headers)

    @property
    def body(self) -> bytes:
        return b"".join(self._parts)

    @property
    def content_type(self) -> str:
        return self._response.content_type

    @property
    def is_complete(self) -> bool:
        return self._response.is_complete

    async def read(self, limit: int = MAX_BODY_BYTES) -> bytes:
        body = await self._response.read(limit)
        self._parts.append(body)
        return body

    async def chunk(self, limit: int = MAX_STREAM_BYTES) -> bytes:
        part = await self._response.chunk(limit)
        self._parts.append(part)
        return part

    def close(self) -> None:
        self._response.close()


class RecordedRequest(AsyncIterator[Delta]):
    """A request whose exchanges are recorded. `deltas`: the request, which is sent by `recorder`."""

    def __init__(self, deltas: AbstractAsyncContextManager[AsyncIterator[Delta]], recorder: ExchangeRecorder) -> None:
        self._context = deltas
        self._recorder = recorder

    async def __aenter__(self) -> Self:
        try:
            self._deltas = await self._context.__aenter__()
        except BaseException as error:
            self._recorder.end(error)
            raise
        return self

    async def __anext__(self) -> Delta:
        try:
            delta = await anext(self._deltas)
        except StopAsyncIteration:
            raise
        except BaseException as error:
            self._recorder.end(error)
            raise
        if isinstance(delta, Finished):
            self._recorder.usage = delta.usage
        return delta

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._context.__aexit__(kind, error, trace)
        finally:
            self._recorder.end(error)
