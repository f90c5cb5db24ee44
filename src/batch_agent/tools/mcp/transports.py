"""How an MCP server is reached: as a process of ours, or over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import IO, TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from .server import MCP

_TELLS_ITS_GROUP = 'echo $$ >&2; exec "$0" "$@"'


@asynccontextmanager
async def over_stdio(server: "MCP", log: IO[str], over: asyncio.Event) -> AsyncIterator[Any]:
    """A shell notes its id, which is that of the process group, and becomes the server."""
    from mcp import StdioServerParameters
    from mcp.client.stdio import stdio_client

    started = StdioServerParameters(
        command="/bin/sh", args=["-c", _TELLS_ITS_GROUP, *server.command], env=dict(server.env), cwd=server.cwd
    )
    async with stdio_client(started, errlog=log) as (messages, write):  # type: ignore[arg-type]
        yield _Watched(messages, over), write


@asynccontextmanager
async def over_http(server: "MCP") -> AsyncIterator[Any]:
    """How long a call may take is for its caller to say; nobody waits for the answer to a farewell."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    from .http_client import SessionClient

    patience = httpx2.Timeout(30.0, read=None, pool=None)
    async with (
        SessionClient(headers=dict(server.headers), timeout=patience) as http,
        streamable_http_client(str(server.server), http_client=http) as streams,
    ):
        yield streams


class _Watched:
    """The messages of a server; when they end, `over` is set before anybody else hears of it."""

    def __init__(self, messages: Any, over: asyncio.Event) -> None:
        self._messages = messages
        self._over = over

    async def receive(self) -> Any:
        return await self._messages.receive()

    async def aclose(self) -> None:
        await self._messages.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._messages.__anext__()
        except StopAsyncIteration:
            self._over.set()
            raise

    async def __aenter__(self) -> Self:
        await self._messages.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> bool | None:
        ended: bool | None = await self._messages.__aexit__(*raised)
        return ended
