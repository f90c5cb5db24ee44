"""Runs tool calls for all agents of a run. Whatever a tool does, the model gets a result."""

import asyncio
import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from ..core.errors import SpecError
from ..core.messages import ToolCall, ToolResult
from ..core.prompt import ToolSpec
from .schema import BadArguments
from .threads import DaemonThreads
from .tool import Tool

_CHARS_PER_TOKEN = 4


class ToolFabric:
    """The tools of one run, in the order in which the user gave them."""

    def __init__(self, tools: Sequence[Tool], *, timeout: float | None, max_tokens: int) -> None:
        self._tools = {tool.name: tool for tool in tools}
        if len(self._tools) < len(tools):
            names = [tool.name for tool in tools]
            twice = sorted({name for name in names if names.count(name) > 1})
            raise SpecError(f"Two tools have the same name: {', '.join(twice)}. Give one another with name=...")
        self._timeout = timeout
        self._max_tokens = max_tokens
        self._threads = DaemonThreads()
        self.specs: tuple[ToolSpec, ...] = tuple(tool.spec for tool in tools)
        self.may_start_early = any(tool.may_start_early for tool in tools)

    def session(self, agent: str) -> "FabricSession":
        return FabricSession(self)

    async def aclose(self) -> None:
        self._threads.close()

    def starts_early(self, call: ToolCall) -> bool:
        tool = self._tools.get(call.name)
        return tool is not None and tool.may_start_early

    async def run(self, call: ToolCall) -> ToolResult:
        started = asyncio.get_running_loop().time()
        content, is_error = await self._outcome(call)
        return ToolResult(call, content, is_error, asyncio.get_running_loop().time() - started)

    async def _outcome(self, call: ToolCall) -> tuple[str, bool]:
        tool = self._tools.get(call.name)
        if tool is None:
            return f"There is no tool {call.name!r}. The tools are: {', '.join(self._tools) or 'none'}.", True
        try:
            arguments = tool.arguments.read(call.arguments)
        except BadArguments as error:
            return str(error), True
        if tool.is_async:
            return await self._attempt(tool, arguments)
        async with self._threads.room:  # its clock starts when there is a thread for it
            return await self._attempt(tool, arguments)

    async def _attempt(self, tool: Tool, arguments: dict[str, Any]) -> tuple[str, bool]:
        limit = tool.timeout if tool.timeout is not None else self._timeout
        clock = asyncio.timeout(limit)
        try:
            async with clock:
                return self._cut(tool, await self._call(tool, arguments)), False
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # a user's tool may raise anything
            if isinstance(error, asyncio.CancelledError) and _is_being_cancelled():
                raise
            if isinstance(error, TimeoutError) and clock.expired():
                return f"{tool.name} took longer than its {limit:g} s (timeout_per_tool).", True
            return self._cut(tool, _describe(error)), True

    async def _call(self, tool: Tool, arguments: dict[str, Any]) -> str:
        if tool.is_async:
            return _as_text(await tool.function(**arguments))
        text = await self._threads.run(lambda: _as_text_or_awaitable(tool.function(**arguments)))
        return text if isinstance(text, str) else _as_text(await text)

    def _cut(self, tool: Tool, text: str) -> str:
        most = (tool.max_tokens or self._max_tokens) * _CHARS_PER_TOKEN
        return _sound(
            text if len(text) <= most else f"{text[:most]}\n[cut here: {most} of {len(text)} characters are shown]"
        )


class FabricSession:
    """One agent's view of the fabric."""

    def __init__(self, fabric: ToolFabric) -> None:
        self._fabric = fabric
        self._early: dict[int, tuple[ToolCall, asyncio.Task[ToolResult]]] = {}

    def start(self, position: int, call: ToolCall) -> None:
        if call.arguments.strip() and self._fabric.starts_early(call):  # nothing yet may also mean: cut off
            self._early[position] = call, asyncio.get_running_loop().create_task(self._fabric.run(call))

    async def abandon(self) -> None:
        tasks = [task for _, task in self._early.values()]
        self._early = {}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def results(self, calls: Sequence[ToolCall]) -> tuple[ToolResult, ...]:
        early = self._take(calls)
        try:
            if len(calls) == 1:
                return (await self._result(calls[0], early.get(0)),)
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(self._result(call, early.get(at))) for at, call in enumerate(calls)]
            return tuple(task.result() for task in running)
        finally:
            await self.abandon()

    def _take(self, calls: Sequence[ToolCall]) -> dict[int, "asyncio.Task[ToolResult]"]:
        """The started calls that are still wanted. What the server streamed may differ from what its answer came to."""
        return {
            at: started[1]
            for at, call in enumerate(calls)
            if (started := self._early.get(at)) is not None
            and (started[0].name, started[0].arguments) == (call.name, call.arguments)
        }

    async def _result(self, call: ToolCall, early: "asyncio.Task[ToolResult] | None") -> ToolResult:
        if early is None:
            return await self._fabric.run(call)
        return replace(await early, call=call)


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - the error is the tool's own, and so is its __str__
        return type(error).__name__


def _as_text_or_awaitable(value: Any) -> Any:
    """In the tool's thread, because reading a value may block as well; what a wrapped async tool gives is awaited
    on the loop."""
    return value if inspect.isawaitable(value) else _as_text(value)


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return "done"
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return f"[{len(value)} bytes of binary data]"
    try:
        return to_json(value, fallback=str).decode()
    except (PydanticSerializationError, ValueError):
        return str(value)


def _sound(text: str) -> str:
    """`text` without what no wire and no store can carry: halves of surrogate pairs, as odd file names give them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text
