"""Transports to MCP servers: stdio of a child process, and HTTP with a client that tells a lost session and an
unavailable server from a failed call."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, PARSE_ERROR

from ...core.json import loads
from ...supervisor import Program, ProgramCommand, ProgramError, ProgramLimits, Stdin, start_program
from .mcp_errors import MAX_MESSAGE_BYTES, McpRejection
from .server_config import McpConfig

_SESSION_HEADER = "mcp-session-id"
_SESSION_STATUSES = (400, 404, 410)
_SESSION_TERMS = ("session", "initiali")  # "Server not initialized"
_CALL_ERRORS = (METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR, PARSE_ERROR)
_UNAVAILABLE_STATUSES = (429, 502, 503, 504)
_MAX_MESSAGE_CHARS = 300
_CLOSE_SECONDS = 5.0
_MAX_ERROR_BYTES = 1024 * 1024


class SessionClient(httpx2.AsyncClient):
    """Client of one session. Proxies and certificates are those of the environment, as for any httpx client."""

    _is_rejected = False

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if request.method == "DELETE":
            if self._is_rejected:  # the server does not know the session that would be closed
                return httpx2.Response(200, request=request)
            request.extensions["timeout"] = httpx2.Timeout(_CLOSE_SECONDS).as_dict()
        response = await super().send(request, **options)
        if request.method != "POST":
            return response
        if response.status_code < 400:
            return await _bounded(response, request)
        body = await _read(response, _MAX_ERROR_BYTES)
        if body is None:
            body = b"an explanation that is too long to be read"
        text = body.decode(errors="replace")
        rejection = rejection_of(response.status_code, text, in_session=_SESSION_HEADER in request.headers)
        if rejection is None:
            return _with_body(response, request, body)
        self._is_rejected = self._is_rejected or rejection.is_of_session
        return _error(response.status_code, request, rejection.message, rejection.as_data())


async def _bounded(response: httpx2.Response, request: httpx2.Request) -> httpx2.Response:
    """The response, or an error if its JSON is larger than MAX_MESSAGE_BYTES. The SDK would read it whole; it limits
    only the events of a stream."""
    if not response.headers.get("content-type", "").lower().startswith("application/json"):
        return response
    body = await _read(response, MAX_MESSAGE_BYTES)
    if body is None:
        return _error(413, request, f"the result is larger than {MAX_MESSAGE_BYTES:,} bytes: ask for less")
    return _with_body(response, request, body)


async def _read(response: httpx2.Response, limit: int) -> bytes | None:
    """The decoded body; None if it is larger than `limit`, in which case the rest is not read."""
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > limit:
            await response.aclose()
            return None
        parts.append(part)
    await response.aclose()
    return b"".join(parts)


def _with_body(response: httpx2.Response, request: httpx2.Request, body: bytes) -> httpx2.Response:
    """The response with a body that was read and decoded."""
    encoding_headers = ("content-encoding", "content-length", "transfer-encoding")
    headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in encoding_headers]
    return httpx2.Response(response.status_code, headers=headers, content=body, request=request)


def _error(status: int, request: httpx2.Request, message: str, data: Any = None) -> httpx2.Response:
    """An error that the SDK raises for the caller."""
    error = {"code": INTERNAL_ERROR, "message": message, "data": data}
    return httpx2.Response(status, json={"jsonrpc": "2.0", "id": None, "error": error}, request=request)


def rejection_of(status: int, text: str, *, in_session: bool) -> McpRejection | None:
    """Classifies a response of status 400 or above; None if the server's JSON-RPC error explains it."""
    code, detail = _json_rpc_error(text)
    message = f"HTTP {status}: {detail.strip()[:_MAX_MESSAGE_CHARS] or 'no explanation'}"
    if in_session and status in _SESSION_STATUSES and code not in _CALL_ERRORS:
        names_session = any(term in detail.lower() for term in _SESSION_TERMS)
        return McpRejection(message, is_of_session=True, is_certain=status != 400 or names_session)
    if status in _UNAVAILABLE_STATUSES and code is None:
        return McpRejection(message, is_of_session=False, is_certain=status in (429, 503))
    return None


def _json_rpc_error(text: str) -> tuple[int | None, str]:
    """Code and message of a JSON-RPC error, which may lack an `id`; (None, `text`) for anything else."""
    try:
        error = json.loads(text)["error"]
        return int(error["code"]), str(error["message"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None, text


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
        """Why this side ended the server, if its output was the reason."""

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

    from .transports import SessionClient

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
        refused = error
    try:  # JavaScript writes half a character where a text was cut in the middle of one
        return SessionMessage(jsonrpc_message_adapter.validate_python(loads(line), by_name=False))
    except (ValueError, RecursionError):
        return refused


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
