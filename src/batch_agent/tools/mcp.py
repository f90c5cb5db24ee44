"""The tools of MCP servers. One session with each server is shared by all agents of a run."""

import asyncio
import logging
import os
import shlex
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import orjson

from ..core.errors import SpecError
from .policy import Pace, Sharing
from .raw_arguments import RawArguments, sound_name
from .tool import Tool

if TYPE_CHECKING:
    import mcp_types
    from mcp import Client

_log = logging.getLogger("batch_agent")
_MOST_RESTARTS = 3
"""In a row, without a call that was answered."""
_MOST_PAGES = 1000
_FAREWELL_SECONDS = 5.0
_SHOWN_CHARACTERS = 500
_TELLS_ITS_GROUP = 'echo $$ >&2; exec "$0" "$@"'
_SESSION_LOST = "Session terminated"
"""The SDK's words for a server that does not know our session any more."""


class MCPToolError(Exception):
    """The call failed, in the server's words."""


class MCPServerGone(Exception):
    """The server went away; the next call starts or reaches it again."""


@dataclass(frozen=True, slots=True, repr=False)
class MCP:
    """An MCP server, as a run's `tools` take it: a command to start, or the address of one that is running.

        MCP("npx -y some-server --flag"), MCP(["python", "server.py"], env={"KEY": "..."}), MCP("https://host/mcp")

    A command sees HOME, PATH and a few more variables of ours, and `env`. A server's tools keep their names, with
    `prefix` before them; `include` and `exclude` choose among them, by their names without it. Tools that the server
    calls read-only are shared by agents and, like those it calls idempotent, tried once more if it dies."""

    server: str | Sequence[str]
    _: KW_ONLY
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | Path | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    include: Collection[str] | None = None
    exclude: Collection[str] = ()
    timeout: float | None = None
    """Seconds for one call; None: the run's timeout_per_tool."""
    start_timeout: float = 60.0

    def __post_init__(self) -> None:
        if not self.is_remote and not self.command:
            raise SpecError("MCP needs a command, such as 'npx some-server', or the http(s) address of a server.")
        if self.is_remote and (self.env or self.cwd):
            raise SpecError(f"MCP server {self.server!r} is running already: env and cwd say nothing.")
        if not self.is_remote and self.headers:
            raise SpecError(f"MCP server {self.command[0]!r} is a command: headers say nothing; use env.")
        if isinstance(self.include, str) or isinstance(self.exclude, str):
            raise SpecError("include and exclude are collections of names, such as ['search'].")

    @property
    def is_remote(self) -> bool:
        return isinstance(self.server, str) and self.server.startswith(("http://", "https://"))

    @property
    def command(self) -> list[str]:
        return shlex.split(self.server) if isinstance(self.server, str) else list(self.server)

    def __repr__(self) -> str:
        return f"MCP({self.shown!r})"

    @property
    def shown(self) -> str:
        """Without what may be a secret: messages go to logs and models."""
        if self.is_remote:
            return str(self.server).partition("?")[0].rpartition("@")[2]
        program, *arguments = self.command
        return " ".join([program, *[part for part in arguments if not part.startswith("-")][:1]])

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Sequence[Tool]]:
        """Starts the server or reaches it, and lists its tools; leaving ends what was started. Raises SpecError."""
        _check(self)
        session = _Session(self)
        try:
            yield await session.tools()
        finally:
            await session.aclose()


class _Session:
    """What agents share. A server that has died is started again by the next call."""

    def __init__(self, server: MCP) -> None:
        self._server = server
        self._lives = [_Life(server)]
        self._restarts_left = _MOST_RESTARTS

    async def tools(self) -> list[Tool]:
        _, listed = await self._lives[-1].opened()
        names = {tool.name for tool in listed}
        unknown = sorted({*(self._server.include or ()), *self._server.exclude} - names)
        if unknown:
            raise SpecError(
                f"The MCP server {self._server.shown!r} has no tool {unknown[0]!r}; it has {', '.join(sorted(names))}."
            )
        wanted = names if self._server.include is None else set(self._server.include)
        return [self._tool(tool) for tool in listed if tool.name in wanted - set(self._server.exclude)]

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Raises MCPToolError, MCPServerGone."""
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        life = self._living()
        try:
            client, _ = await life.opened()
        except SpecError as error:
            raise MCPServerGone(str(error)) from None
        try:
            result = await client.call_tool(name, arguments)
        except MCPError as error:
            if error.message == _SESSION_LOST:
                life.end()
            elif error.code != CONNECTION_CLOSED:
                raise MCPToolError(error.message) from None
            raise MCPServerGone(
                f"the MCP server went away while {name!r} was under way ({error.message}); it may or may not have been "
                "done. The next call reaches it again"
            ) from None
        self._restarts_left = _MOST_RESTARTS
        if result.is_error:
            raise MCPToolError(_text(result) or "the tool failed without saying why")
        return _text(result)

    async def aclose(self) -> None:
        self._restarts_left = 0
        tasks = [life.task for life in self._lives]
        for life in self._lives:
            life.end()
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for life in self._lives:
                life.kill()
            await asyncio.wait(tasks)
            raise

    def _living(self) -> "_Life":
        if self._lives[-1].is_over:
            if self._restarts_left == 0:
                raise MCPServerGone(f"the MCP server {self._server.shown!r} has ended for good; do without it")
            self._restarts_left -= 1
            self._lives = [*(life for life in self._lives if not life.task.done()), _Life(self._server)]
        return self._lives[-1]

    def _tool(self, listed: "mcp_types.Tool") -> Tool:
        async def call(**arguments: Any) -> str:
            return await self.call(listed.name, arguments)

        name = sound_name(self._server.prefix + listed.name)
        reads = listed.annotations is not None and bool(listed.annotations.read_only_hint)
        repeats = reads or (listed.annotations is not None and bool(listed.annotations.idempotent_hint))
        return Tool(
            name,
            listed.description or listed.title or "",
            call,
            RawArguments(listed.input_schema, name),
            Sharing("read" if reads else "write"),
            Pace(self._server.timeout, retries=int(repeats), retry_on=(MCPServerGone,) if repeats else ()),
        )


_Opened = tuple["Client", "list[mcp_types.Tool]"]


class _Life:
    """One process or connection, from its start to its end. A task of its own opens and closes it, because the SDK's
    scopes may not change hands; whoever wants to call waits for it and then calls directly."""

    def __init__(self, server: MCP) -> None:
        loop = asyncio.get_running_loop()
        self._server = server
        self._opened: asyncio.Future[_Opened] = loop.create_future()
        self._over = asyncio.Event()
        self._log = tempfile.TemporaryFile("a+")  # noqa: SIM115 - closed by the task
        self.task = loop.create_task(self._live())

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def end(self) -> None:
        self._over.set()
        if not self._opened.done():
            self.task.cancel()

    def kill(self) -> None:
        """Where there is no time for a graceful end."""
        if self._server.is_remote:
            self.task.cancel()
        elif not self.task.done():
            _kill_group(self._log)

    async def opened(self) -> _Opened:
        """Raises SpecError, for all who wait."""
        return await asyncio.shield(self._opened)

    async def _live(self) -> None:
        clock = asyncio.timeout(self._server.start_timeout)
        with self._log:
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
                _kill_group(self._log)

    def _client(self) -> "Client":
        from mcp import Client

        return Client(_http(self._server) if self._server.is_remote else _process(self._server, self._log, self._over))

    def _failed(self, reason: str) -> None:
        if self._opened.done():
            _log.debug("MCP server %r: %s", self._server.shown, reason)
            return
        wrote = _said(self._log)
        self._opened.set_exception(
            SpecError(
                f"The MCP server {self._server.shown!r} cannot be used: {reason}."
                + (f" It wrote: {wrote}" if wrote else " Try it by itself first.")
            )
        )
        self._opened.exception()  # seen: whoever waited may be cancelled by now


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


@asynccontextmanager
async def _process(server: MCP, log: IO[str], over: asyncio.Event) -> AsyncIterator[Any]:
    """A shell notes its id, which is that of the process group, and becomes the server."""
    from mcp import StdioServerParameters
    from mcp.client.stdio import stdio_client

    started = StdioServerParameters(
        command="/bin/sh", args=["-c", _TELLS_ITS_GROUP, *server.command], env=dict(server.env), cwd=server.cwd
    )
    async with stdio_client(started, errlog=log) as (messages, write):  # type: ignore[arg-type]
        yield _Watched(messages, over), write


@asynccontextmanager
async def _http(server: MCP) -> AsyncIterator[Any]:
    """How long a call may take is for its caller to say; nobody waits for the answer to a farewell."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    async def hurry(request: httpx2.Request) -> None:
        if request.method == "DELETE":
            request.extensions["timeout"] = httpx2.Timeout(_FAREWELL_SECONDS).as_dict()

    patience = httpx2.Timeout(30.0, read=None, pool=None)
    hooks = {"request": [hurry]}
    async with (
        httpx2.AsyncClient(headers=dict(server.headers), timeout=patience, event_hooks=hooks) as http,
        streamable_http_client(str(server.server), http_client=http) as streams,
    ):
        yield streams


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


def _check(server: MCP) -> None:
    try:
        from mcp import Client  # noqa: F401 - 1.x has none
    except ImportError as error:
        raise SpecError("MCP servers need a package: pip install 'batch-agent[mcp]' (mcp>=2).") from error
    if server.is_remote:
        return
    program = server.command[0]
    path = {**os.environ, **server.env}.get("PATH")
    found = shutil.which(program if os.sep not in program else os.path.join(server.cwd or "", program), path=path)
    if found is None:
        raise SpecError(f"The MCP server's command {program!r} is not installed; install it, or give its whole path.")


def _reason(error: BaseException, late: MCP | None) -> str:
    if late is not None:
        return f"it did not answer within {late.start_timeout:g} s (start_timeout)"
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{error}".strip(" .") or type(error).__name__


def _said(log: IO[str]) -> str:
    """The end of what the server wrote to stderr, after the line that is ours. The place in the file is the server's
    as well, so it is not moved."""
    _, _, text = os.pread(log.fileno(), 1_000_000, 0).decode(errors="replace").partition("\n")
    return text.strip()[-_SHOWN_CHARACTERS:]


def _kill_group(log: IO[str]) -> None:
    """Whatever the server left behind; a group's id is not given away while one of its processes lives."""
    group = os.pread(log.fileno(), 20, 0).partition(b"\n")[0]
    if group.isdigit():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(int(group), signal.SIGKILL)


def _text(result: "mcp_types.CallToolResult") -> str:
    """For the model. Structured content is left out where the text says the same, as servers are asked to do."""
    text = "\n".join(filter(None, map(_block, result.content)))
    if result.structured_content is None or _says(text, result.structured_content):
        return text
    return f"{text}\n{orjson.dumps(result.structured_content).decode()}".strip()


def _says(text: str, content: Any) -> bool:
    try:
        said = orjson.loads(text)
    except orjson.JSONDecodeError:
        said = text
    return content in (said, {"result": said}, {"result": text})


def _block(block: "mcp_types.ContentBlock") -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return f"[{block.type} {block.mime_type}, {len(block.data) * 3 // 4} bytes]"
        case "resource_link":
            return f"[resource {block.name}: {block.uri}]"
        case "resource":
            held = block.resource
            shown = getattr(held, "text", None)
            return (
                f"[resource {held.uri}]\n{shown}" if shown is not None else f"[resource {held.uri}, {held.mime_type}]"
            )
