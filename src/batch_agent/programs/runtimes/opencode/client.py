"""`opencode serve`: one program that works for many agents, each in a session of its own."""

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
from .config import AGENT, PROVIDER
from .messages import SessionMessage, read_messages

_STARTS_IN = 120.0
_ANSWERS_IN = 2.0  # a request that is sent while it starts may never be answered
_LOOK_AGAIN = 0.1
_SOON = 120.0  # for what takes moments, unless twenty agents begin at once on a busy machine
_STOPS_IN = 30.0
_ENDS_IN = 5.0
_LISTENS = b"listening on "
_SHOWN = 2_000
_GRACE = 3.0
_LARGEST = 256 * 2**20
"""Bytes of an answer: all messages of a session, with what its tools read."""


class OpenCodeClient:
    """How one that runs is spoken to. Whatever is asked raises ProgramFailed, retryable when it is gone."""

    def __init__(self, program: Program, client: aiohttp.ClientSession) -> None:
        self._program = program
        self._client = client
        self._is_given_up = False

    async def is_over(self) -> bool:
        """Ended, or of no more use."""
        return self._is_given_up or await _ending(self._program, 0) is not None

    def give_up(self) -> None:
        """It does not do any more what it is told."""
        self._is_given_up = True

    async def session(self, folder: Path) -> str:
        """A new one for the agent that works there."""
        body = await self._ask("POST", "/session", folder, {"title": AGENT})  # else the model would be asked for one
        name = _field(body, "id")
        if not isinstance(name, str):
            raise ProgramFailed(f"OpenCode gave no session: {_shown(body)}.")
        return name

    async def say(self, folder: Path, session: str, model: str, text: str) -> None:
        """Returns when the agent is done."""
        said = {
            "agent": AGENT,
            "model": {"providerID": PROVIDER, "modelID": model},
            "parts": [{"type": "text", "text": text}],
        }
        await self._ask("POST", f"/session/{session}/message", folder, said, seconds=None)

    async def messages(self, folder: Path, session: str) -> list[SessionMessage]:
        return read_messages(await self._ask("GET", f"/session/{session}/message", folder))

    async def abort(self, folder: Path, session: str) -> None:
        """Returns when nothing of it goes on."""
        await self._ask("POST", f"/session/{session}/abort", folder, seconds=_STOPS_IN)

    async def forget(self, folder: Path) -> None:
        """Whatever it holds of an agent's folder."""
        await self._ask("POST", "/instance/dispose", folder, seconds=_STOPS_IN)

    async def check_config(self, folder: Path) -> None:
        """Reads it for a folder."""
        await self._ask("GET", "/config", folder)

    async def _ask(
        self,
        method: Literal["GET", "POST"],
        path: str,
        folder: Path,
        body: Mapping[str, Any] | None = None,
        seconds: float | None = _SOON,
    ) -> bytes:
        if self._client.closed:
            raise ProgramFailed("This `opencode serve` is no more.", retryable=True)
        headers = {"Content-Type": "application/json"}
        data = None if body is None else orjson.dumps(body)
        try:
            async with asyncio.timeout(seconds):
                asked = self._client.request(
                    method, path, params={"directory": str(folder)}, data=data, headers=headers
                )
                async with asked as response:
                    read = await _read(response)
                    if response.status >= 400:
                        raise ProgramFailed(f"OpenCode refused {method} {path}: {_shown(read)}.")
                    return read
        except TimeoutError as error:
            raise ProgramFailed(f"OpenCode did not answer {method} {path} in {seconds} s.", retryable=True) from error
        except aiohttp.ClientError as error:
            raise ProgramFailed(await self._why(error), retryable=True) from error

    async def _why(self, error: aiohttp.ClientError) -> str:
        ending = await _ending(self._program, _ENDS_IN)
        return (
            f"OpenCode broke off: {error}."
            if ending is None
            else f"`opencode serve` ended while agents worked: {ending}"
        )


async def _read(response: aiohttp.ClientResponse) -> bytes:
    read = bytearray()
    async for chunk in response.content.iter_any():
        read += chunk
        if len(read) > _LARGEST:
            raise ProgramFailed(f"OpenCode answered {response.url.path} with more than {_LARGEST:,} bytes.")
    return bytes(read)


@asynccontextmanager
async def opencode_server(program: str, environment: Mapping[str, str], at: Path) -> AsyncIterator[OpenCodeClient]:
    """Raises SpecError if it does not get ready."""
    password = secrets.token_urlsafe(24)
    command = ProgramCommand(
        [program, "serve", "--hostname", "127.0.0.1", "--port", "0"],
        {**environment, "OPENCODE_SERVER_PASSWORD": password},
        at,
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
    """As it says itself. After that, nobody reads what it writes."""
    said = []
    try:
        async with asyncio.timeout(_STARTS_IN):
            async for line in program.lines():
                said.append(line)
                if _LISTENS in line:
                    program.discard_output()
                    return line.partition(_LISTENS)[2].decode(errors="replace").strip()
            ended = await program.wait()
    except TimeoutError as error:
        raise SpecError(f"`opencode serve` did not start in {_STARTS_IN:.0f} s. {_words(said, program.err)}") from error
    raise SpecError(f"`opencode serve` ended at once, exit status {ended.code}. {_words(said, ended.err)}")


async def _until_healthy(program: Program, client: aiohttp.ClientSession) -> None:
    """It says that it listens before it answers, and nothing tells when it does."""
    try:
        async with asyncio.timeout(_STARTS_IN):
            while not await _is_healthy(client):
                if (ending := await _ending(program, _LOOK_AGAIN)) is not None:
                    raise SpecError(f"`opencode serve` ended at once: {ending}")
    except TimeoutError as error:
        raise SpecError(f"`opencode serve` does not answer in {_STARTS_IN:.0f} s. {_last(program.err)}") from error


async def _is_healthy(client: aiohttp.ClientSession) -> bool:
    try:
        async with asyncio.timeout(_ANSWERS_IN), client.get("/global/health") as response:
            return response.status == 200
    except (TimeoutError, aiohttp.ClientError):
        return False


async def _ending(program: Program, seconds: float) -> str | None:
    """How it ended, if it does so within `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            ended = await program.wait()
    except TimeoutError:
        return None
    except ProgramError as error:
        return str(error)
    return f"exit status {ended.code}. {_last(ended.err)}"


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


def _words(said: list[bytes], err: str) -> str:
    return _last("\n".join([*(line.decode(errors="replace") for line in said), err]))


def _last(text: str) -> str:
    return f"Its last words: {last_output(text)}"


def _shown(body: bytes) -> str:
    """OpenCode's own words for an error, where they are in the usual place."""
    data = _field(body, "data")
    message = data.get("message") if isinstance(data, dict) else None
    return str(message) if message else body[:_SHOWN].decode(errors="replace")
