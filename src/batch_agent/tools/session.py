"""One agent's view of the tools: what it may share, and what must be its own."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..core.interfaces import CallsPast, Journal
from ..core.messages import ToolCall, ToolResult, ToolSource
from .cache import Outcome
from .flights import cancel_all
from .schema import BadArguments
from .tool import Tool

if TYPE_CHECKING:
    from .fabric import ToolFabric

_NOTHING_PAST = CallsPast()
_NEVER = float("-inf")
_UNKNOWN = (
    "It is not known whether this call was made: the program ended while it ran, and it was not made again. "
    "Check before you repeat it."
)


class FabricSession:
    """What an agent reads is never older than what it wrote itself."""

    def __init__(self, fabric: "ToolFabric", agent: str, journal: Journal | None) -> None:
        self._fabric = fabric
        self._agent = agent
        self._journal = journal
        self._wrote_at = _NEVER
        self._history: dict[str, tuple[str, ...]] = {}
        self._early: dict[int, tuple[ToolCall, asyncio.Task[ToolResult]]] = {}

    def start(self, position: int, call: ToolCall) -> None:
        tool = self._fabric.tool(call.name)
        if tool is None or not tool.sharing.is_shared or not call.arguments.strip():
            return  # no arguments yet may also mean: cut off
        self._early[position] = call, self._fabric.adopt(self._answer(call, _NOTHING_PAST))

    async def abandon(self) -> None:
        started, self._early = self._early, {}
        await cancel_all([task for _, task in started.values()])

    async def results(self, calls: Sequence[ToolCall], past: CallsPast | None = None) -> tuple[ToolResult, ...]:
        past = past or _NOTHING_PAST
        early = self._still_wanted(calls)
        try:
            if len(calls) == 1:
                return (await self._result(calls[0], past, early.get(0)),)
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(self._result(call, past, early.get(at))) for at, call in enumerate(calls)]
            return tuple(task.result() for task in running)
        finally:
            await self.abandon()

    def _still_wanted(self, calls: Sequence[ToolCall]) -> dict[int, "asyncio.Task[ToolResult]"]:
        """The started calls that the answer came to: what a server streamed may differ from it."""
        return {
            at: started[1]
            for at, call in enumerate(calls)
            if (started := self._early.get(at)) is not None
            and (started[0].name, started[0].arguments) == (call.name, call.arguments)
        }

    async def _result(self, call: ToolCall, past: CallsPast, early: "asyncio.Task[ToolResult] | None") -> ToolResult:
        return await self._answer(call, past) if early is None else replace(await early, call=call)

    async def _answer(self, call: ToolCall, past: CallsPast) -> ToolResult:
        started = _now()
        tool = self._fabric.tool(call.name)
        if tool is None:
            return ToolResult(call, self._fabric.unknown(call.name), True)
        try:
            arguments = tool.arguments.read(call.arguments)
        except BadArguments as error:
            return ToolResult(call, str(error), True)
        if tool.sharing.effect == "write":
            return await self._write(tool, call, arguments, past)
        outcome, source = await self._ask(tool, call, arguments)
        self._fabric.account(tool, call, source, outcome)
        return ToolResult(call, outcome.content, outcome.is_error, _now() - started, source)

    async def _ask(self, tool: Tool, call: ToolCall, arguments: dict[str, Any]) -> tuple[Outcome, ToolSource]:
        sharing = tool.sharing
        if sharing.history_arg is not None:
            # The function gets what this agent asked of it before, so agents with the same history may share.
            history = self._history.get(tool.name, ())
            self._history[tool.name] = (*history, call.arguments)
            return await self._fabric.shared(tool, {**arguments, sharing.history_arg: history}, _NEVER)
        if not sharing.is_shared:
            return await self._fabric.alone(tool, arguments), "executed"
        return await self._fabric.shared(tool, arguments, self._wrote_at if sharing.effect == "read" else _NEVER)

    async def _write(self, tool: Tool, call: ToolCall, arguments: dict[str, Any], past: CallsPast) -> ToolResult:
        """Made once, whatever happens in between: claimed before, settled after."""
        if (known := _known(call, past)) is not None:
            return replace(known, call=call, source="recalled")
        key_arg = tool.sharing.idempotency_arg
        if call.id in past.claimed and key_arg is None:
            result = ToolResult(call, _UNKNOWN, True, source="recalled")
        else:
            if self._journal is not None:
                await self._journal.claim(call)
            if key_arg is not None:
                arguments[key_arg] = f"{self._agent}-{past.turn}-{call.id}"
            outcome = await self._fabric.alone(tool, arguments)
            self._wrote_at = _now()
            self._fabric.account(tool, call, "executed", outcome)
            result = ToolResult(call, outcome.content, outcome.is_error, outcome.seconds)
        if self._journal is not None:
            self._journal.settle(result)
        return result


def _known(call: ToolCall, past: CallsPast) -> ToolResult | None:
    """What is on record for this very call, or for the same one of an earlier life of the agent."""
    if call.id in past.settled:
        return past.settled[call.id]
    same = (call.name, call.arguments)
    return next((made for made in past.inherited if (made.call.name, made.call.arguments) == same), None)


def _now() -> float:
    return asyncio.get_running_loop().time()
