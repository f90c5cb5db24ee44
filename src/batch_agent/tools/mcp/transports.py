"""Transports to MCP servers: stdio of a child process, and HTTP."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from ...supervisor import Program, ProgramCommand, ProgramError, ProgramLimits, Stdin, start_program
from .mcp_errors import MAX_MESSAGE_BYTES
from .server_config import McpConfig

_EXIT_SECONDS = 2.0
"""Time for a server to exit once its stdin is closed, as the protocol asks it to."""
_GRACE_SECONDS = 2.0
"""Between SIGTERM and SIGKILL."""


class StdioTransport:
    """A command, run under a supervisor (supervisor/), so that everything it starts ends with it, and with us."""

    def __init__(self, config: McpConfig, closed: asyncio.Event) -> None:
        """`closed` is set when the server ends, before any caller sees the closed streams."""
        self._config = config
        self._closed = closed
        self._program: Program | None = None
        self.problem = ""
        """Why the server was ended, if its output was the reason."""

    @property
    def err(self) -> str:
        """The beginning and the end of the server's stderr; empty before it was started."""
        return "" if self._program is None else self._program.err

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        """Message streams for the SDK."""
        import anyio

        stack = AsyncExitStack()
        limits = ProgramLimits(max_bytes=sys.maxsize, max_line_bytes=MAX_MESSAGE_BYTES, grace=_GRACE_SECONDS)
        self._program = program = await stack.enter_async_context(start_program(self._command(), limits))
        incoming, messages = anyio.create_memory_object_stream[Any](0)
        write, outgoing = anyio.create_memory_object_stream[Any](0)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read, program, incoming)
                tasks.start_soon(self._write, program, outgoing, incoming)
                try:
                    yield messages, write
                finally:
                    with anyio.CancelScope(shield=True):
                        await _close(program)
                    tasks.cancel_scope.cancel()
        finally:
            for stream in (incoming, messages, write, outgoing):
                stream.close()
            with anyio.CancelScope(shield=True):
                await stack.aclose()

    def _command(self) -> ProgramCommand:
        from mcp.client.stdio import get_default_environment

        config = self._config
        return ProgramCommand(config.command, get_default_environment() | dict(config.env), config.cwd, Stdin.PIPE)

    async def _read(self, program: Program, incoming: Any) -> None:
        import anyio

        try:
            async for line in program.lines():
                if line.strip():
                    await incoming.send(_message(line))
        except ProgramError as error:  # a message that is too long
            self.problem = str(error)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the session has closed its end
        finally:
            self._closed.set()
            program.discard_output()
            incoming.close()

    async def _write(self, program: Program, outgoing: Any, incoming: Any) -> None:
        try:
            async for sent in outgoing:
                text = sent.message.model_dump_json(by_alias=True, exclude_unset=True)
                await program.write(text.encode(errors="replace") + b"\n")
        except OSError:  # the server has closed its stdin, and will answer no more calls even if it lives on
            self._closed.set()
            incoming.close()


@asynccontextmanager
async def open_http(config: McpConfig) -> AsyncIterator[Any]:
    """Message streams over HTTP. There is no read timeout: callers limit their calls."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    from .http_client import SessionClient

    timeout = httpx2.Timeout(30.0, read=None, pool=None)
    async with (
        SessionClient(headers=dict(config.headers), timeout=timeout) as http,
        streamable_http_client(str(config.server), http_client=http, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
    ):
        yield streams


def _message(line: bytes) -> Any:
    """The message in a line, or the error of an invalid line: sessions accept both."""
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error


async def _close(program: Program) -> None:
    """Closes stdin and waits for the server to exit. If that is cancelled, the server is killed."""
    program.close_input()
    try:
        async with asyncio.timeout(_EXIT_SECONDS):
            await program.wait()
    except (TimeoutError, ProgramError):
        pass
    except asyncio.CancelledError:
        program.kill()
        raise
