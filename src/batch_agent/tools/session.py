"""One agent's view of the tools: what it may share, and what must be its own."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from .. import aio
from ..core.messages import ToolCall, ToolResult, ToolSource
from ..core.protocols import CallHistory, Journal
from .cache import ToolOutcome
from .call_key import same_arguments
from .parameters import BadArguments
from .single_flight import Found, cancel_all
from .tool import Tool
from .write_claims import WriteClaim

if TYPE_CHECKING:
    from .executor import ToolExecutor

_NOTHING_PAST = CallHistory()
_NEVER = -1
_NONE_EARLY: Mapping[int, tuple[ToolCall, "asyncio.Task[ToolResult]"]] = {}
_UNKNOWN = (
    "It is not known whether this call was made: the program ended while it ran, and it was not made again. "
    "Check before you repeat it."
)
_TIMED_OUT = "It is not known whether this call was made, or still will be. Check before you repeat it."
_NOT_MADE = "This call was not made."
LAST_WRITES = 3.0
"""Seconds for which an agent that is cancelled waits for a write whose function was entered: its outcome would not be
known otherwise."""


class AgentToolSession:
    """What an agent reads is never older than what it wrote itself."""

    __slots__ = ("_agent", "_asked", "_early", "_fabric", "_inherited", "_journal", "_only", "_wrote")

    def __init__(
        self, fabric: "ToolExecutor", agent: str, journal: Journal | None, only: Sequence[str] | None = None
    ) -> None:
        """`only`: the names of the tools that there are for this agent; None: all."""
        self._fabric = fabric
        self._only = only
        self._agent = agent
        self._journal = journal
        self._wrote = _NEVER
        self._inherited: tuple[ToolResult, ...] = ()
        self._asked: tuple[tuple[str, str], ...] = ()
        self._early: Mapping[int, tuple[ToolCall, asyncio.Task[ToolResult]]] = _NONE_EARLY

    def start(self, position: int, call: ToolCall) -> None:
        tool = self._tool(call.name)
        if tool is None or not tool.sharing.is_shared or not call.arguments.strip():
            return  # no arguments yet may also mean: cut off
        started = call, self._fabric.adopt(self._answer(call, _NOTHING_PAST))
        self._early = {**self._early, position: started}

    async def abandon(self) -> None:
        started, self._early = self._early, _NONE_EARLY
        await cancel_all([task for _, task in started.values()])

    async def results(self, calls: Sequence[ToolCall], past: CallHistory | None = None) -> tuple[ToolResult, ...]:
        past = past or _NOTHING_PAST
        if self._wrote == _NEVER and self._wrote_elsewhere(past):
            self._wrote = self._fabric.next_order()
            await self.abandon()  # what was started early did not know of it
        if self._inherited or past.inherited:
            self._inherited = tuple(past.inherited)
        early = self._still_wanted(calls)
        try:
            if len(calls) == 1:
                only = self._answer(calls[0], past) if not early else self._result(calls[0], past, early.get(0))
                return (await only,)
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(self._result(call, past, early.get(at))) for at, call in enumerate(calls)]
            return tuple(task.result() for task in running)
        finally:
            if self._early:
                await self.abandon()

    def _wrote_elsewhere(self, past: CallHistory) -> bool:
        """In another process: what is kept here, or by others, may be older than that."""
        if past.settled or past.claimed or past.inherited:
            return True
        tools = (self._fabric.tool(record.name) for record in past.earlier)
        return any(tool is not None and tool.sharing.effect == "write" for tool in tools)

    def _still_wanted(self, calls: Sequence[ToolCall]) -> dict[int, "asyncio.Task[ToolResult]"]:
        """The started calls that the answer came to; what a server streamed may differ, and is called off."""
        wanted: dict[int, asyncio.Task[ToolResult]] = {}
        for at, (started, task) in self._early.items():
            if at < len(calls) and (started.name, started.arguments) == (calls[at].name, calls[at].arguments):
                wanted[at] = task
            else:
                task.cancel()
        return wanted

    async def _result(self, call: ToolCall, past: CallHistory, early: "asyncio.Task[ToolResult] | None") -> ToolResult:
        return await self._answer(call, past) if early is None else replace(await early, call=call)

    async def _answer(self, call: ToolCall, past: CallHistory) -> ToolResult:
        started = aio.now()
        tool = self._tool(call.name)
        if tool is None:
            return self._no_such_tool(call)
        known = self._fabric.found(tool, call.arguments, self._after(tool)) if tool.sharing.is_shared else None
        source: ToolSource = "cached"
        if known is None:
            try:
                arguments = tool.arguments.read(call.arguments)
            except BadArguments as error:
                return ToolResult(call, str(error), True)
            if tool.sharing.effect == "write":
                return await self._write(tool, call, arguments, past)
            outcome, source = await self._ask(tool, call, arguments, past)
        elif isinstance(known, ToolOutcome):
            outcome = known
        else:
            outcome, source = await known.found("shared")
        self._fabric.account(tool, call, source, outcome)
        return ToolResult(call, outcome.content, outcome.is_error, aio.now() - started, source)

    def _no_such_tool(self, call: ToolCall) -> ToolResult:
        names = self._fabric.names if self._only is None else self._only
        known = ", ".join(names) or "none"
        return ToolResult(call, f"There is no tool {call.name!r}. The tools are: {known}.", True)

    def _after(self, tool: Tool) -> int:
        """What is older must not be given to this agent."""
        return self._wrote if tool.sharing.effect == "read" else _NEVER

    def _tool(self, name: str) -> Tool | None:
        return self._fabric.tool(name) if self._only is None or name in self._only else None

    def _ask(self, tool: Tool, call: ToolCall, arguments: dict[str, Any], past: CallHistory) -> Awaitable[Found]:
        sharing, text = tool.sharing, call.arguments
        if sharing.history_arg is not None:
            # The function gets what this agent asked of it before, so agents with the same history may share.
            asked = [(earlier.name, earlier.arguments) for earlier in past.earlier] or self._asked
            history = tuple(arguments for name, arguments in asked if name == tool.name)
            self._asked += ((tool.name, text),)
            return self._fabric.shared(tool, {**arguments, sharing.history_arg: history}, text, _NEVER)
        if not sharing.is_shared:
            return self._fabric.executed(tool, arguments)
        return self._fabric.shared(tool, arguments, text, self._after(tool))

    async def _write(self, tool: Tool, call: ToolCall, arguments: dict[str, Any], past: CallHistory) -> ToolResult:
        """Claimed right before the function is entered, settled after. A call that was claimed and not settled is made
        again only if the tool says that it may be."""
        if (known := past.settled.get(call.id) or self._made_before(call)) is not None:
            return replace(known, call=call, source="restored")
        if call.id in past.claimed and not tool.sharing.is_repeatable:
            return self._settled(ToolResult(call, _UNKNOWN, True, source="restored"))
        if tool.sharing.idempotency_arg is not None:
            run = self._fabric.identity if self._journal is None else await self._journal.identity()
            arguments[tool.sharing.idempotency_arg] = _key(run, self._agent, past, call)
        claim = WriteClaim(self._journal, call)
        work = self._fabric.alone(tool, arguments, claim)
        if self._journal is None or not self._journal.is_durable:
            return self._made(tool, call, claim, await work)
        task = self._fabric.adopt(work)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done() or not task.cancelled():
                await self._last_write(tool, call, claim, task)
            raise
        return self._made(tool, call, claim, task.result())

    async def _last_write(
        self, tool: Tool, call: ToolCall, claim: WriteClaim, task: "asyncio.Task[ToolOutcome]"
    ) -> None:
        """The agent is cancelled. A call that waits for its turn is given up, and will be made another time; one whose
        function was entered has a moment to end."""
        try:
            if not claim.give_up():
                await asyncio.wait([task], timeout=LAST_WRITES)
        finally:
            await cancel_all([task])
            if not task.cancelled() and task.exception() is None and not claim.give_up():
                self._made(tool, call, claim, task.result())

    def _made(self, tool: Tool, call: ToolCall, claim: WriteClaim, outcome: ToolOutcome) -> ToolResult:
        self._wrote = self._fabric.next_order()
        self._fabric.account(tool, call, "executed", outcome)
        content = outcome.content
        if outcome.timed_out:
            content = f"{content} {_NOT_MADE if claim.give_up() else _TIMED_OUT}"
        return self._settled(ToolResult(call, content, outcome.is_error, outcome.seconds))

    def _settled(self, result: ToolResult) -> ToolResult:
        if self._journal is not None:
            self._journal.settle(result)
        return result

    def _made_before(self, call: ToolCall) -> ToolResult | None:
        """What an earlier life of this agent has made; it stands for one call of this one."""
        for at, made in enumerate(self._inherited):
            if made.call.name == call.name and same_arguments(made.call.arguments, call.arguments):
                self._inherited = self._inherited[:at] + self._inherited[at + 1 :]
                return made
        return None


def _key(run: str, agent: str, past: CallHistory, call: ToolCall) -> str:
    """The same for the same call of the same run, turn and life, also in another process; servers repeat their ids."""
    what = blake2b(call.arguments.encode(errors="surrogatepass"), digest_size=8).hexdigest()
    key = f"{agent}-{past.life}-{past.turn}-{call.id}-{what}"
    return f"{run}-{key}" if run else key
