"""How an MCP server is reached: as a process of ours, or over HTTP."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from ...supervisor import Program, ProgramCommand, ProgramError, ProgramLimits, Stdin, start_program
from .errors import LARGEST_MESSAGE

if TYPE_CHECKING:
    from .config import MCP

_EXIT_SECONDS = 2.0
"""For a server to end by itself once its stdin is closed, as the protocol asks it to."""
_GRACE_SECONDS = 2.0
"""Between SIGTERM and SIGKILL."""


class StdioTransport:
    """A command, run under a warden (processes/): whatever it starts ends with it, and with us, however we end."""

    def __init__(self, server: "MCP", over: asyncio.Event) -> None:
        """`over` is set when the server ends, before anybody else hears of it."""
        self._server = server
        self._over = over
        self._program: Program | None = None
        self.problem = ""
        """Why the server was ended, if it was ended for what it wrote."""

    @property
    def err(self) -> str:
        """What the server wrote to stderr, if it was started: the beginning and the end."""
        return "" if self._program is None else self._program.err

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        """The streams of messages, as the SDK wants them."""
        import anyio

        stack = AsyncExitStack()
        limits = ProgramLimits(most_bytes=sys.maxsize, most_line_bytes=LARGEST_MESSAGE, grace=_GRACE_SECONDS)
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
                        await _farewell(program)
                    tasks.cancel_scope.cancel()
        finally:
            for stream in (incoming, messages, write, outgoing):
                stream.close()
            with anyio.CancelScope(shield=True):
                await stack.aclose()

    def _command(self) -> ProgramCommand:
        from mcp.client.stdio import get_default_environment

        server = self._server
        return ProgramCommand(server.command, get_default_environment() | dict(server.env), server.cwd, Stdin.PIPE)

    async def _read(self, program: Program, incoming: Any) -> None:
        import anyio

        try:
            async for line in program.lines():
                if line.strip():
                    await incoming.send(_message(line))
        except ProgramError as error:  # a message without an end
            self.problem = str(error)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # nobody listens any more
        finally:
            self._over.set()
            program.mute()
            incoming.close()

    async def _write(self, program: Program, outgoing: Any, incoming: Any) -> None:
        try:
            async for sent in outgoing:
                text = sent.message.model_dump_json(by_alias=True, exclude_unset=True)
                await program.write(text.encode(errors="replace") + b"\n")
        except OSError:  # it does not read any more, and may live on: no call is answered any more
            self._over.set()
            incoming.close()


@asynccontextmanager
async def over_http(server: "MCP") -> AsyncIterator[Any]:
    """How long a call may take is for its caller to say; nobody waits for the answer to a farewell."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    from .http_client import SessionClient

    patience = httpx2.Timeout(30.0, read=None, pool=None)
    async with (
        SessionClient(headers=dict(server.headers), timeout=patience) as http,
        streamable_http_client(str(server.server), http_client=http, max_sse_event_size=LARGEST_MESSAGE) as streams,
    ):
        yield streams


def _message(line: bytes) -> Any:
    """A message, or the error of a line that is none: sessions take both."""
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error


async def _farewell(program: Program) -> None:
    """Closes stdin and waits for the server to end; when that is cancelled, it is killed at once."""
    program.close_input()
    try:
        async with asyncio.timeout(_EXIT_SECONDS):
            await program.ended()
    except (TimeoutError, ProgramError):
        pass
    except asyncio.CancelledError:
        program.hurry()
        raise
