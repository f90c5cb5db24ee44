"""Tool session of one agent, which decides what results it may share and what calls are its own."""

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Protocol, TypeVar

from ..aio import cancel_all, ungrouped
from ..core.agent_config import Job
from ..core.messages import Placement, ToolCall, ToolResult, ToolSource
from ..core.protocols.tool_set import CallHistory, Journal
from ..plan.row_keys import row_key
from .cache import ToolOutcome
from .call_key import same_arguments
from .parameters import BadArguments
from .reference_order import ReferenceOrder
from .single_flight import InFlightCall, SourcedOutcome
from .tool import Tool
from .tool_context import ArtifactFolders, ToolContext
from .write_claims import WriteClaim

T = TypeVar("T")
_NO_HISTORY = CallHistory()
_NEVER = -1
_NO_HEADINGS: frozenset[str] = frozenset()
_NONE_EARLY: Mapping[int, tuple[ToolCall, "asyncio.Task[ToolResult]"]] = {}
_UNKNOWN = (
    "It is not known whether this call was made: the program ended while it ran, and it was not made again. "
    "Check before you repeat it."
)
_TIMED_OUT = "It is not known whether this call was made, or still will be. Check before you repeat it."
_NOT_MADE = "This call was not made."
LAST_WRITES = 3.0
"""Seconds for which a cancelled agent waits for a write whose function was entered; without its outcome, it is not
known whether the write was made."""


class SessionExecutor(Protocol):
    """The part of the shared executor that a session uses."""

    identity: str
    references: ReferenceOrder

    @property
    def names(self) -> tuple[str, ...]: ...

    def tool(self, name: str) -> Tool | None: ...

    def next_order(self) -> int: ...

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]": ...

    def lookup(self, tool: Tool, text: str, after: int) -> ToolOutcome | InFlightCall | None: ...

    def run_shared(self, tool: Tool, arguments: dict[str, Any], text: str, after: int) -> Awaitable[SourcedOutcome]: ...

    def run_unshared(self, tool: Tool, arguments: dict[str, Any]) -> Awaitable[SourcedOutcome]: ...

    def run(
        self, tool: Tool, arguments: dict[str, Any], claim: WriteClaim | None = None
    ) -> Coroutine[Any, Any, ToolOutcome]: ...

    def record(self, tool: Tool, call: ToolCall, source: ToolSource, outcome: ToolOutcome) -> None: ...


class AgentToolSession:
    """Tool calls of one agent. The agent never reads a result that is older than its own latest write."""

    __slots__ = (
        "_agent",
        "_artifacts",
        "_asked",
        "_earlier_calls",
        "_early",
        "_executor",
        "_inherited",
        "_job",
        "_journal",
        "_last_write",
        "_only",
        "_placement",
    )

    def __init__(
        self,
        executor: SessionExecutor,
        agent: str,
        journal: Journal | None,
        only: Sequence[str] | None = None,
        job: Job | None = None,
        artifacts: ArtifactFolders | None = None,
        placement: Placement = "inline",
    ) -> None:
        """`only`: names of the tools that this agent has; None: all. `job`, `artifacts`: passed to tools that take a
        context. `placement`: for results of tools without a placement of their own."""
        self._placement = placement
        self._asked = _NO_HEADINGS
        """Headings of the references that the agent asked for."""
        self._job = job
        self._artifacts = artifacts
        self._executor = executor
        self._only = only
        self._agent = agent
        self._journal = journal
        self._last_write = _NEVER
        """Order number of the agent's latest write."""
        self._inherited: tuple[ToolResult, ...] = ()
        self._earlier_calls: tuple[tuple[str, str], ...] = ()
        self._early: Mapping[int, tuple[ToolCall, asyncio.Task[ToolResult]]] = _NONE_EARLY

    def start(self, position: int, call: ToolCall) -> None:
        tool = self._tool(call.name)
        if tool is None or not tool.is_shared or not call.arguments.strip():
            return  # empty arguments may also mean that the call was cut off
        started = call, self._executor.spawn(self._answer(call, _NO_HISTORY))
        self._early = {**self._early, position: started}

    def expected_readers(self, path: Sequence[str]) -> float:
        return self._executor.references.expected_readers(path)

    async def abandon(self) -> None:
        started, self._early = self._early, _NONE_EARLY
        await cancel_all([task for _, task in started.values()])

    async def results(self, calls: Sequence[ToolCall], past: CallHistory | None = None) -> tuple[ToolResult, ...]:
        past = past or _NO_HISTORY
        if self._last_write == _NEVER and self._wrote_elsewhere(past):
            self._last_write = self._executor.next_order()
            await self.abandon()  # calls that were started early did not take that write into account
        if self._inherited or past.inherited:
            self._inherited = tuple(past.inherited)
        early = self._matching_early(calls)
        try:
            if len(calls) == 1:
                only = self._answer(calls[0], past) if not early else self._result(calls[0], past, early.get(0))
                return (await only,)
            with ungrouped():
                async with asyncio.TaskGroup() as group:
                    running = [
                        group.create_task(self._result(call, past, early.get(at))) for at, call in enumerate(calls)
                    ]
            return tuple(task.result() for task in running)
        finally:
            if self._early:
                await self.abandon()

    def _wrote_elsewhere(self, past: CallHistory) -> bool:
        """Whether the agent wrote in another process. Results that are cached or shared here may be older than that
        write."""
        if past.settled or past.claimed or past.inherited:
            return True
        if not past.earlier:
            return False
        tools = (self._executor.tool(record.name) for record in past.earlier)
        return any(tool is not None and tool.sharing.effect == "write" for tool in tools)

    def _matching_early(self, calls: Sequence[ToolCall]) -> dict[int, "asyncio.Task[ToolResult]"]:
        """The early calls that are in the final reply. The streamed ones may differ; those are cancelled."""
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
        now = asyncio.get_running_loop().time
        started = now()
        tool = self._tool(call.name)
        if tool is None:
            return self._no_such_tool(call)
        is_shared = tool.is_shared
        known = self._executor.lookup(tool, call.arguments, self._after(tool)) if is_shared else None
        placement = (tool.sharing.placement or self._placement) if is_shared else "inline"
        heading = None if placement == "inline" else self._ask(tool, call.arguments)
        source: ToolSource = "cached"
        if known is None:
            try:
                arguments = tool.arguments.read(call.arguments)
            except BadArguments as error:
                return ToolResult(call, str(error), True)
            if tool.context_arg is not None:
                arguments[tool.context_arg] = await self._context(past)
            if tool.sharing.effect == "write":
                return await self._write(tool, call, arguments, past)
            outcome, source = await self._run(tool, call, arguments, past)
        elif isinstance(known, ToolOutcome):
            outcome = known
        else:
            outcome, source = await known.wait("shared")
        self._executor.record(tool, call, source, outcome)
        reference = None if heading is None else await self._executor.references.reference(heading, placement)
        seconds = now() - started
        return ToolResult(call, outcome.content, outcome.is_error, seconds, source, reference, outcome.images)

    def _ask(self, tool: Tool, text: str) -> str | None:
        """Heading of the reference that a call asks for; None for arguments that cannot be read."""
        heading = self._executor.references.on_call(tool, text, self._asked)
        if heading is not None:
            self._asked |= {heading}
        return heading

    def _no_such_tool(self, call: ToolCall) -> ToolResult:
        names = self._executor.names if self._only is None else self._only
        known = ", ".join(names) or "none"
        return ToolResult(call, f"There is no tool {call.name!r}. The tools are: {known}.", True)

    def _after(self, tool: Tool) -> int:
        """Order number that a result must exceed to be given to this agent."""
        return self._last_write if tool.sharing.effect == "read" else _NEVER

    def _tool(self, name: str) -> Tool | None:
        return self._executor.tool(name) if self._only is None or name in self._only else None

    def _run(
        self, tool: Tool, call: ToolCall, arguments: dict[str, Any], past: CallHistory
    ) -> Awaitable[SourcedOutcome]:
        sharing, text = tool.sharing, call.arguments
        if sharing.history_arg is not None:
            # The function gets the agent's earlier calls of it, so agents with the same history may share.
            calls = [(earlier.name, earlier.arguments) for earlier in past.earlier] or self._earlier_calls
            history = tuple(arguments for name, arguments in calls if name == tool.name)
            self._earlier_calls += ((tool.name, text),)
            arguments[sharing.history_arg] = history
            if tool.context_arg is None:
                return self._executor.run_shared(tool, arguments, text, _NEVER)
        if not tool.is_shared:
            return self._executor.run_unshared(tool, arguments)
        return self._executor.run_shared(tool, arguments, text, self._after(tool))

    async def _write(self, tool: Tool, call: ToolCall, arguments: dict[str, Any], past: CallHistory) -> ToolResult:
        """Claims the call right before the function is entered and settles it afterwards. A call that was claimed and
        not settled is repeated only if the tool is repeatable."""
        if (known := past.settled.get(call.id) or self._made_before(call)) is not None:
            return replace(known, call=call, source="restored")
        if call.id in past.claimed and not tool.sharing.is_repeatable:
            return self._settle(ToolResult(call, _UNKNOWN, True, source="restored"))
        if tool.sharing.idempotency_arg is not None:
            run = await self._identity()
            arguments[tool.sharing.idempotency_arg] = _idempotency_key(run, self._agent, past, call)
        claim = WriteClaim(self._journal, call)
        work = self._executor.run(tool, arguments, claim)
        if self._journal is None or not self._journal.is_durable:
            return self._record_write(tool, call, claim, await work)
        task = self._executor.spawn(work)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done() or not task.cancelled():
                await self._finish_write(tool, call, claim, task)
            raise
        return self._record_write(tool, call, claim, task.result())

    async def _finish_write(
        self, tool: Tool, call: ToolCall, claim: WriteClaim, task: "asyncio.Task[ToolOutcome]"
    ) -> None:
        """Ends a write of a cancelled agent. A call that still waits is withdrawn, and made when the agent resumes; one
        whose function was entered has LAST_WRITES seconds to end."""
        try:
            if not claim.give_up():
                await asyncio.wait([task], timeout=LAST_WRITES)
        finally:
            await cancel_all([task])
            if not task.cancelled() and task.exception() is None and not claim.give_up():
                self._record_write(tool, call, claim, task.result())

    def _record_write(self, tool: Tool, call: ToolCall, claim: WriteClaim, outcome: ToolOutcome) -> ToolResult:
        self._last_write = self._executor.next_order()
        self._executor.record(tool, call, "executed", outcome)
        content = outcome.content
        if outcome.timed_out:
            content = f"{content} {_NOT_MADE if claim.give_up() else _TIMED_OUT}"
        return self._settle(ToolResult(call, content, outcome.is_error, outcome.seconds, images=outcome.images))

    async def _identity(self) -> str:
        return self._executor.identity if self._journal is None else await self._journal.identity()

    async def _context(self, past: CallHistory) -> ToolContext:
        job = self._job or Job(0, self._agent, None, "")
        folders, run = self._artifacts or ArtifactFolders(), await self._identity()
        return ToolContext(job.input, row_key(job.key), job.index, past.turn or 1, run, job.key, folders)

    def _settle(self, result: ToolResult) -> ToolResult:
        if self._journal is not None:
            self._journal.settle(result)
        return result

    def _made_before(self, call: ToolCall) -> ToolResult | None:
        """The result of the same write by an earlier incarnation of this agent. It replaces one call."""
        for at, made in enumerate(self._inherited):
            if made.call.name == call.name and same_arguments(made.call.arguments, call.arguments):
                self._inherited = self._inherited[:at] + self._inherited[at + 1 :]
                return made
        return None


def _idempotency_key(run: str, agent: str, past: CallHistory, call: ToolCall) -> str:
    """The same for the same call of the same run, incarnation and turn, in every process. Call ids alone do not do:
    servers repeat them."""
    digest = blake2b(call.arguments.encode(errors="surrogatepass"), digest_size=8).hexdigest()
    key = f"{agent}-{past.life}-{past.turn}-{call.id}-{digest}"
    return f"{run}-{key}" if run else key
