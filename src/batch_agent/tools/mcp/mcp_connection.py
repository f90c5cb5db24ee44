"""Connection to an MCP server: a process or an HTTP session."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ... import aio
from ...core.errors import SpecError
from .server_config import McpConfig
from .transports import StdioTransport, open_http

if TYPE_CHECKING:
    import mcp_types
    from mcp import Client


_log = logging.getLogger("batch_agent")
_MAX_PAGES = 1000
_MAX_STDERR_CHARS = 500
_Opened = tuple["Client", "list[mcp_types.Tool]"]


class McpConnection:
    """One process or HTTP session. A task of its own opens and closes it, because the SDK's cancel scopes must be left
    by the task that entered them; callers wait for it and then call the client directly."""

    def __init__(self, config: McpConfig) -> None:
        loop = asyncio.get_running_loop()
        self._config = config
        self._opened: asyncio.Future[_Opened] = loop.create_future()
        self._closed = asyncio.Event()
        self._is_retired = False
        self._calls = 0
        self.rejected_tools: set[str] = set()
        """Tools whose calls the server rejects in a new session too: another session would not help."""
        self._stdio = None if config.is_remote else StdioTransport(config, self._closed)
        self.task = loop.create_task(self._serve())

    @property
    def problem(self) -> str:
        """Why this side ended the server, if its output was the reason."""
        return "" if self._stdio is None else self._stdio.problem

    @property
    def is_closed(self) -> bool:
        """Whether it accepts no more calls."""
        return self._is_retired or self._closed.is_set()

    @contextmanager
    def track_call(self) -> Iterator[None]:
        """Context of one call."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            if self._is_retired and not self._calls:
                self.close()

    def retire(self) -> None:
        """Accepts no more calls, and ends when those in progress have ended."""
        self._is_retired = True
        if not self._calls:
            self.close()

    def close(self) -> None:
        self._closed.set()
        if not self._opened.done():
            self.task.cancel()

    def kill(self) -> None:
        """Ends it without waiting for a graceful close."""
        self.task.cancel()

    async def opened(self) -> _Opened:
        """The client and its tools. Raises SpecError for every waiter."""
        return await asyncio.shield(self._opened)

    async def _serve(self) -> None:
        clock = asyncio.timeout(self._config.start_timeout)
        try:
            async with clock, self._client() as client:
                tools = await _list_tools(client)
                clock.reschedule(None)
                self._opened.set_result((client, tools))
                await self._closed.wait()
        except Exception as error:  # noqa: BLE001 - the SDK raises whatever its parts do, in groups
            self._fail(_reason(error, self._config if clock.expired() else None))
        finally:
            self._closed.set()
            self._opened.cancel()

    def _client(self) -> "Client":
        from mcp import Client

        return Client(open_http(self._config) if self._stdio is None else self._stdio.open())

    def _fail(self, reason: str) -> None:
        if self._opened.done():
            _log.debug("MCP server %r: %s", self._config.display_name, reason)
            return
        wrote = "" if self._stdio is None else self._stdio.err.strip()[-_MAX_STDERR_CHARS:]
        self._opened.set_exception(
            SpecError(
                f"The MCP server {self._config.display_name!r} cannot be used: {reason}."
                + (f" It wrote: {wrote}" if wrote else " Try it by itself first.")
            )
        )
        self._opened.exception()  # mark as retrieved: the waiters may be cancelled by now


async def _list_tools(client: "Client") -> "list[mcp_types.Tool]":
    tools: list[mcp_types.Tool] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return tools


def _reason(error: BaseException, timed_out: McpConfig | None) -> str:
    if timed_out is not None:
        return f"it did not answer within {timed_out.start_timeout:g} s (start_timeout)"
    cause = aio.unwrap_group(error)
    return f"{cause}".strip(" .") or type(cause).__name__
