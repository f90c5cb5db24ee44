"""One process or connection of an MCP server, from its start to its end."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ... import aio
from ...core.errors import SpecError
from .transports import StdioTransport, over_http

if TYPE_CHECKING:
    import mcp_types
    from mcp import Client

    from .config import MCP

_log = logging.getLogger("batch_agent")
_MOST_PAGES = 1000
_SHOWN_CHARACTERS = 500
_Opened = tuple["Client", "list[mcp_types.Tool]"]


class McpConnection:
    """One process or connection, from its start to its end. A task of its own opens and closes it, because the SDK's
    scopes may not change hands; whoever wants to call waits for it and then calls directly."""

    def __init__(self, server: "MCP") -> None:
        loop = asyncio.get_running_loop()
        self._server = server
        self._opened: asyncio.Future[_Opened] = loop.create_future()
        self._over = asyncio.Event()
        self._is_retired = False
        self._calls = 0
        self.refused_tools: set[str] = set()
        """Tools whose calls it refuses although its session is new: another session would not help."""
        self._stdio = None if server.is_remote else StdioTransport(server, self._over)
        self.task = loop.create_task(self._live())

    @property
    def problem(self) -> str:
        """Why we ended it, if we did for what it wrote."""
        return "" if self._stdio is None else self._stdio.problem

    @property
    def is_over(self) -> bool:
        """It takes no more calls."""
        return self._is_retired or self._over.is_set()

    @contextmanager
    def calling(self) -> Iterator[None]:
        """While a call is under way."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            if self._is_retired and not self._calls:
                self.end()

    def retire(self) -> None:
        """It takes no more calls, and ends when those under way have ended."""
        self._is_retired = True
        if not self._calls:
            self.end()

    def end(self) -> None:
        self._over.set()
        if not self._opened.done():
            self.task.cancel()

    def kill(self) -> None:
        """Where there is no time for a graceful end."""
        self.task.cancel()

    async def opened(self) -> _Opened:
        """Raises SpecError, for all who wait."""
        return await asyncio.shield(self._opened)

    async def _live(self) -> None:
        clock = asyncio.timeout(self._server.start_timeout)
        try:
            async with clock, self._client() as client:
                listed = await _listed(client)
                clock.reschedule(None)
                self._opened.set_result((client, listed))
                await self._over.wait()
        except Exception as error:  # noqa: BLE001 - the SDK raises whatever its parts do, in groups
            self._failed(_reason(error, self._server if clock.expired() else None))
        finally:
            self._over.set()
            self._opened.cancel()

    def _client(self) -> "Client":
        from mcp import Client

        return Client(over_http(self._server) if self._stdio is None else self._stdio.open())

    def _failed(self, reason: str) -> None:
        if self._opened.done():
            _log.debug("MCP server %r: %s", self._server.shown, reason)
            return
        wrote = "" if self._stdio is None else self._stdio.err.strip()[-_SHOWN_CHARACTERS:]
        self._opened.set_exception(
            SpecError(
                f"The MCP server {self._server.shown!r} cannot be used: {reason}."
                + (f" It wrote: {wrote}" if wrote else " Try it by itself first.")
            )
        )
        self._opened.exception()  # seen: whoever waited may be cancelled by now


async def _listed(client: "Client") -> "list[mcp_types.Tool]":
    tools: list[mcp_types.Tool] = []
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return tools


def _reason(error: BaseException, late: "MCP | None") -> str:
    if late is not None:
        return f"it did not answer within {late.start_timeout:g} s (start_timeout)"
    cause = aio.unwrap_group(error)
    return f"{cause}".strip(" .") or type(cause).__name__
