"""An HTTP answer whose head is there, whoever brought it."""

from collections.abc import Mapping
from typing import Protocol

import aiohttp


class Answer(Protocol):
    """Reading raises aiohttp.ClientError and OSError."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def sent_headers(self) -> Mapping[str, str]:
        """Of the request."""
        ...

    @property
    def content_type(self) -> str: ...

    @property
    def is_whole(self) -> bool:
        """It was read to its end."""
        ...

    async def read(self) -> bytes:
        """The whole body."""
        ...

    async def chunk(self) -> bytes:
        """What has come of the body; empty at its end."""
        ...

    def close(self) -> None:
        """Keeps the connection for another request if the answer is whole. If not, this aborts the request."""
        ...


class SessionAnswer:
    """An answer that aiohttp brought: from far away, signed, or through a proxy."""

    __slots__ = ("_response",)

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    @property
    def sent_headers(self) -> Mapping[str, str]:
        return self._response.request_info.headers

    @property
    def content_type(self) -> str:
        return self._response.content_type

    @property
    def is_whole(self) -> bool:
        return self._response.content.at_eof()

    async def read(self) -> bytes:
        return await self._response.read()

    async def chunk(self) -> bytes:
        return await self._response.content.readany()

    def close(self) -> None:
        if self.is_whole:
            self._response.release()
        else:
            self._response.close()
