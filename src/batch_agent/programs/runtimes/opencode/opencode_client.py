"""Client of `opencode serve`: one server process with a session per agent."""

import asyncio
import secrets
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import aiohttp
import orjson

from ....core.errors import SpecError
from ....core.program_runtime import ProgramFailed
from ....supervisor import Program, ProgramCommand, ProgramError, ProgramLimits, start_program
from ..environment import last_output
from .opencode_config import AGENT, PROVIDER
from .session_messages import SessionMessage, read_messages

_START_TIMEOUT = 120.0
_HEALTH_TIMEOUT = 2.0  # a request during startup may never be answered
_POLL_INTERVAL = 0.1
_REQUEST_TIMEOUT = 120.0  # generous, because twenty agents may start at once on a busy machine
_ABORT_TIMEOUT = 30.0
_EXIT_TIMEOUT = 5.0
_LISTENING = b"listening on "
_MAX_SHOWN_BYTES = 2_000
_GRACE = 3.0
_MAX_RESPONSE_BYTES = 256 * 2**20
"""Covers all messages of a session, including everything that its tools read."""


class OpenCodeClient:
    """HTTP client of a server. Requests raise ProgramFailed, which is retryable if the server has exited."""

    def __init__(self, program: Program, client: aiohttp.ClientSession) -> None:
        self._program = program
        self._client = client
        self._is_abandoned = False

    async def is_unusable(self) -> bool:
        """Whether the server has exited or was abandoned."""
        return self._is_abandoned or await _exit_report(self._program, 0) is not None

    def abandon(self) -> None:
        """Marks a server that no longer responds to commands."""
        self._is_abandoned = True

    async def session(self, folder: Path) -> str:
        """Creates a session for the agent that works in `folder`."""
        body = await self._request(
            "POST", "/session", folder, {"title": AGENT}
        )  # otherwise the model is asked for a title
        name = _field(body, "id")
        if not isinstance(name, str):
            raise ProgramFailed(f"OpenCode did not create a session: {_error_message(body)}.")
        return name

    async def prompt(self, folder: Path, session: str, model: str, text: str) -> None:
        """Sends a prompt, and returns when the agent has finished."""
        lines = {
            "agent": AGENT,
            "model": {"providerID": PROVIDER, "modelID": model},
            "parts": [{"type": "text", "text": text}],
        }
        await self._request("POST", f"/session/{session}/message", folder, lines, seconds=None)

    async def messages(self, folder: Path, session: str) -> list[SessionMessage]:
        return read_messages(await self._request("GET", f"/session/{session}/message", folder))

    async def abort(self, folder: Path, session: str) -> None:
        """Aborts a session, and returns when its work has stopped."""
        await self._request("POST", f"/session/{session}/abort", folder, seconds=_ABORT_TIMEOUT)

    async def dispose(self, folder: Path) -> None:
        """Releases everything that the server holds for a directory."""
        await self._request("POST", "/instance/dispose", folder, seconds=_ABORT_TIMEOUT)

    async def check_config(self, folder: Path) -> None:
        """Makes the server read its configuration for a directory, which fails if it is invalid."""
        await self._request("GET", "/config", folder)

    async def _request(
        self,
        method: Literal["GET", "POST"],
        path: str,
        folder: Path,
        body: Mapping[str, Any] | None = None,
        seconds: float | None = _REQUEST_TIMEOUT,
    ) -> bytes:
        if self._client.closed:
            raise ProgramFailed("This `opencode serve` has been stopped.", retryable=True)
        headers = {"Content-Type": "application/json"}
        data = None if body is None else orjson.dumps(body)
        try:
            async with asyncio.timeout(seconds):
                sent = self._client.request(method, path, params={"directory": str(folder)}, data=data, headers=headers)
                async with sent as response:
                    read = await _read(response)
                    if response.status >= 400:
                        raise ProgramFailed(f"OpenCode rejected {method} {path}: {_error_message(read)}.")
                    return read
        except TimeoutError as error:
            raise ProgramFailed(f"OpenCode did not answer {method} {path} in {seconds} s.", retryable=True) from error
        except aiohttp.ClientError as error:
            raise ProgramFailed(await self._explain(error), retryable=True) from error

    async def _explain(self, error: aiohttp.ClientError) -> str:
        ending = await _exit_report(self._program, _EXIT_TIMEOUT)
        return (
            f"The connection to OpenCode was lost: {error}."
            if ending is None
            else f"`opencode serve` exited while agents were running: {ending}"
        )


async def _read(response: aiohttp.ClientResponse) -> bytes:
    read = bytearray()
    async for chunk in response.content.iter_any():
        read += chunk
        if len(read) > _MAX_RESPONSE_BYTES:
            raise ProgramFailed(f"OpenCode answered {response.url.path} with more than {_MAX_RESPONSE_BYTES:,} bytes.")
    return bytes(read)


@asynccontextmanager
async def opencode_server(program: str, environment: Mapping[str, str], cwd: Path) -> AsyncIterator[OpenCodeClient]:
    """Starts a server and waits until it is healthy. Raises SpecError."""
    password = secrets.token_urlsafe(24)
    command = ProgramCommand(
        [program, "serve", "--hostname", "127.0.0.1", "--port", "0"],
        {**environment, "OPENCODE_SERVER_PASSWORD": password},
        cwd,
    )
    async with AsyncExitStack() as stack:
        try:
            started = await stack.enter_async_context(start_program(command, ProgramLimits(grace=_GRACE)))
            client = await stack.enter_async_context(_client(await _address(started), password))
        except ProgramError as error:
            raise SpecError(f"`opencode serve` cannot be started: {error}") from error
        await _until_healthy(started, client)
        yield OpenCodeClient(started, client)


async def _address(program: Program) -> str:
    """The address that the server prints. Further output is discarded."""
    lines = []
    try:
        async with asyncio.timeout(_START_TIMEOUT):
            async for line in program.lines():
                lines.append(line)
                if _LISTENING in line:
                    program.discard_output()
                    return line.partition(_LISTENING)[2].decode(errors="replace").strip()
            ended = await program.wait()
    except TimeoutError as error:
        raise SpecError(
            f"`opencode serve` did not start in {_START_TIMEOUT:.0f} s. {_output_of(lines, program.err)}"
        ) from error
    raise SpecError(f"`opencode serve` exited immediately, exit status {ended.code}. {_output_of(lines, ended.err)}")


async def _until_healthy(program: Program, client: aiohttp.ClientSession) -> None:
    """Polls until the server responds: it prints its address earlier, and does not announce when it is ready."""
    try:
        async with asyncio.timeout(_START_TIMEOUT):
            while not await _is_healthy(client):
                if (ending := await _exit_report(program, _POLL_INTERVAL)) is not None:
                    raise SpecError(f"`opencode serve` exited immediately: {ending}")
    except TimeoutError as error:
        raise SpecError(
            f"`opencode serve` did not respond in {_START_TIMEOUT:.0f} s. {_last_output(program.err)}"
        ) from error


async def _is_healthy(client: aiohttp.ClientSession) -> bool:
    try:
        async with asyncio.timeout(_HEALTH_TIMEOUT), client.get("/global/health") as response:
            return response.status == 200
    except (TimeoutError, aiohttp.ClientError):
        return False


async def _exit_report(program: Program, seconds: float) -> str | None:
    """Describes how the process exited, if it exits within `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            ended = await program.wait()
    except TimeoutError:
        return None
    except ProgramError as error:
        return str(error)
    return f"exit status {ended.code}. {_last_output(ended.err)}"


def _client(address: str, password: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        address,
        headers={"Authorization": f"Basic {b64encode(f'opencode:{password}'.encode()).decode()}"},
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=None),
    )


def _field(body: bytes, name: str) -> Any:
    try:
        read = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return read.get(name) if isinstance(read, dict) else None


def _output_of(lines: list[bytes], err: str) -> str:
    return _last_output("\n".join([*(line.decode(errors="replace") for line in lines), err]))


def _last_output(text: str) -> str:
    return f"Last output: {last_output(text)}"


def _error_message(body: bytes) -> str:
    """The message of an error response, if the response has OpenCode's usual form."""
    data = _field(body, "data")
    message = data.get("message") if isinstance(data, dict) else None
    return str(message) if message else body[:_MAX_SHOWN_BYTES].decode(errors="replace")
