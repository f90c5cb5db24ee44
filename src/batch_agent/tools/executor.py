"""Runs the tool calls of all agents of a run. One execution serves every agent that may share it."""

import asyncio
import itertools
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from functools import partial
from typing import Any, TypeVar

from .. import aio
from ..aio import is_being_cancelled, is_failure
from ..core.coordinator import CallOutcome, SharedCalls
from ..core.errors import StoreError
from ..core.messages import ToolCall, ToolSource, ToolSpec
from ..core.protocols import Journal
from ..core.results import ToolUse
from .cache import ResultCache, ToolOutcome
from .call_key import call_key
from .disk_cache import Remembered, ToolDiskCache, memory_key, shared_name
from .parameters import BadArguments
from .result_text import ToolTimeout, describe_error, replace_surrogates
from .runner import ToolRunner
from .session import AgentToolSession
from .single_flight import Found, InFlightCall, SingleFlight, cancel_all
from .subsets import check_names
from .threads import DaemonThreads
from .tool import Tool
from .write_claims import ClaimEntry, WriteClaim

_CHARS_PER_TOKEN = 4
_CACHE_BYTES = 256 * 1024 * 1024
_MOST_NOTED = 10_000
_LONGEST_NOTED = 2_000
"""Characters of arguments that are worth remembering as they were written."""
_ELSEWHERE = 0
"""The order of what another process looked for: before anything that an agent has written here."""

_log = logging.getLogger("batch_agent")

T = TypeVar("T")
Summarize = Callable[[str, int], Awaitable[str]]
"""A shorter version of a text, of at most so many tokens."""


class ToolExecutor:
    """The tools of one run, in the order in which the user gave them."""

    def __init__(
        self,
        tools: Sequence[Tool],
        *,
        timeout: float | None,
        max_tokens: int,
        cache_bytes: int = _CACHE_BYTES,
        summarize: Summarize | None = None,
        memory: ToolDiskCache | None = None,
        commons: SharedCalls | None = None,
    ) -> None:
        """`commons`: what calls are shared through with other processes, and rates kept together."""
        self._threads = DaemonThreads()
        check_names(tools)
        self._tools = {tool.name: ToolRunner(tool, timeout, self._threads, commons) for tool in tools}
        self._max_tokens = max_tokens
        self._summarize = summarize
        self._memory = memory
        self._commons = commons
        self._made: Counter[tuple[str, str]] = Counter()
        self._written: dict[tuple[str, str], tuple[str, bytes]] = {}
        """Keys of calls, by the tool's name and the text of the arguments."""
        self._flights = SingleFlight()
        self._adopted: set[asyncio.Task[Any]] = set()
        self._orders = itertools.count(_ELSEWHERE + 1)
        self._cache = ResultCache(cache_bytes, aio.now)
        self.identity = secrets.token_hex(8)
        """Of sessions without a journal, in the place of the run's."""
        self.specs: tuple[ToolSpec, ...] = tuple(tool.spec for tool in tools)
        self.may_start_early = any(tool.sharing.is_shared for tool in tools)

    @property
    def uses(self) -> tuple[ToolUse, ...]:
        """What each tool was asked, did and saved, so far."""
        return tuple(equipped.ledger.use() for equipped in self._tools.values())

    def session(self, agent: str, journal: Journal | None = None) -> AgentToolSession:
        return AgentToolSession(self, agent, journal)

    @property
    def pure_calls(self) -> dict[tuple[str, str], int]:
        """What was asked of pure tools, by tool and arguments, and how often."""
        return dict(self._made)

    async def prewarm(self, calls: Sequence[tuple[str, str]]) -> None:
        """Makes calls ahead of any agent: of pure tools, and only those that can still be made."""
        for name, text in calls:
            equipped = self._tools.get(name)
            if equipped is None or equipped.tool.sharing.effect != "pure":
                continue
            try:
                arguments = equipped.tool.arguments.read(text)
            except BadArguments:
                continue
            equipped.ledger.prewarmed += 1
            await self.shared(equipped.tool, arguments, text, -1)

    def adopt(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """A task that ends with the fabric, if not before."""
        task = asyncio.get_running_loop().create_task(work)
        self._adopted.add(task)
        task.add_done_callback(self._adopted.discard)
        return task

    async def aclose(self) -> None:
        await cancel_all(self._adopted)
        await self._flights.aclose()
        for equipped in self._tools.values():
            if equipped.batcher is not None:
                await equipped.batcher.aclose()
        self._threads.close()

    def tool(self, name: str) -> Tool | None:
        equipped = self._tools.get(name)
        return equipped.tool if equipped is not None else None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    def next_order(self) -> int:
        """A number for what happens now, larger than all before: two things may happen at one time of the clock."""
        return next(self._orders)

    def found(self, tool: Tool, text: str, after: int) -> ToolOutcome | InFlightCall | None:
        """What a call that was written in the same way gave, or is about to give, looked for after `after`. None: it
        has to be read. Most calls of a run repeat others to the letter."""
        key = self._written.get((tool.name, text))
        if key is None:
            return None
        outcome = self._cache.get(key)
        if outcome is not None and outcome.order > after:
            return outcome
        flight = self._flights.find(key)
        return flight if flight is not None and flight.order > after else None

    def _note(self, name: str, text: str, key: tuple[str, bytes]) -> None:
        if len(self._written) >= _MOST_NOTED:
            self._written.clear()
        if len(text) <= _LONGEST_NOTED:
            self._written[name, text] = key

    def shared(self, tool: Tool, arguments: dict[str, Any], text: str, after: int) -> Awaitable[Found]:
        """A result that others may have asked for too, looked for after `after`. `text`: what the model wrote."""
        try:
            key, version = call_key(tool.name, arguments, text), self._version(tool, arguments)
        except ValueError:  # arguments without an end are like no others
            return self.executed(tool, arguments)
        if tool.sharing.version is None and tool.sharing.is_shared:
            self._note(tool.name, text, key)
        outcome = self._cache.get(key)
        if outcome is not None and outcome.order > after and outcome.version == version:
            return _cached(outcome)
        flight = self._flights.find(key)
        if flight is not None and flight.order > after and flight.version == version:
            return flight.found("shared")
        if self._commons is not None and after < _ELSEWHERE and (name := shared_name(tool, key, version)) is not None:
            return self._shared_by_all(self._commons, name, tool, arguments, key, version)
        order = self.next_order()
        fly = partial(self._fly, tool, arguments, key, order, version)
        return self._flights.start(key, order, version, fly, self._tools[tool.name].overdue).found("executed")

    async def executed(self, tool: Tool, arguments: dict[str, Any]) -> Found:
        """As `alone`, with where it is from."""
        return await self.alone(tool, arguments), "executed"

    async def alone(
        self, tool: Tool, arguments: dict[str, Any], claim: WriteClaim | None = None, flight: InFlightCall | None = None
    ) -> ToolOutcome:
        """One execution for one call. Whatever the tool does, it comes to an outcome. `claim`: of a write, taken when
        it is its turn; raises what that raises. `flight`: of an execution that several wait for."""
        equipped = self._tools[tool.name]
        order, started = self.next_order(), aio.now()
        entry = ClaimEntry(claim, None if flight is None else flight.extend)
        timed_out = False
        try:
            text, is_error = await equipped.text(arguments, entry, claim), False
        except BaseException as error:  # a user's tool may raise anything
            if is_being_cancelled():  # whatever the tool makes of it
                raise asyncio.CancelledError from error
            if not is_failure(error) or (claim is not None and claim.failure is error):
                raise
            text, is_error, timed_out = describe_error(error), True, isinstance(error, ToolTimeout)
        seconds = aio.now() - (started if entry.began is None else entry.began)
        return ToolOutcome(await self._shaped(tool, text, is_error), is_error, order, seconds, timed_out=timed_out)

    def account(self, tool: Tool, call: ToolCall, source: ToolSource, outcome: ToolOutcome) -> None:
        self._tools[tool.name].ledger.called(source, outcome.seconds, is_error=outcome.is_error)
        if self._memory is not None and tool.sharing.effect == "pure" and len(self._made) < _MOST_NOTED:
            self._made[tool.name, call.arguments] += 1

    async def _shared_by_all(
        self,
        commons: SharedCalls,
        name: str,
        tool: Tool,
        arguments: dict[str, Any],
        key: tuple[str, bytes],
        version: Hashable,
    ) -> Found:
        """As `shared`, for an agent that has written nothing: what others find may be older than what is written here,
        so nobody who has written joins, nor is given it later."""
        sources: list[ToolSource] = []

        async def make() -> CallOutcome:
            found = await self._fly(tool, arguments, key, self.next_order(), version, flight)
            is_kept = tool.sharing.keeps_errors or not found.is_error
            good = max(0.0, found.expires - aio.now()) if is_kept else 0.0
            return CallOutcome(found.content, found.is_error, found.seconds, good, found.timed_out)

        async def fly(_: InFlightCall) -> ToolOutcome:
            made, source = await commons.call(name, make)
            sources.append(source)
            expires = aio.now() + made.ttl
            timed_out = made.timed_out
            outcome = ToolOutcome(made.content, made.is_error, _ELSEWHERE, made.seconds, version, expires, timed_out)
            if source != "executed":
                self._cache.put(key, outcome)
            return outcome

        flight = self._flights.start(key, _ELSEWHERE, version, fly, self._tools[tool.name].overdue)
        outcome, _ = await flight.found("shared")
        return outcome, sources[0] if sources else "executed"

    async def _fly(
        self,
        tool: Tool,
        arguments: dict[str, Any],
        key: tuple[str, bytes],
        order: int,
        version: Hashable,
        flight: InFlightCall,
    ) -> ToolOutcome:
        known_as = None if self._memory is None else memory_key(tool, self._max_tokens, key[1])
        while True:
            began = aio.now()
            if self._memory is None or known_as is None:
                found = await self.alone(tool, arguments, flight=flight)
            else:
                found = await self._recalled_or_alone(self._memory, known_as, tool, arguments, flight)
            if not found.timed_out or flight.extend(began, self._tools[tool.name].limit or 0.0) is None:
                break  # else somebody came late to a batch that was under way: it is made again
        if found.is_error and not tool.sharing.keeps_errors:
            return found
        expires = began + tool.sharing.seconds_good
        outcome = ToolOutcome(found.content, found.is_error, order, found.seconds, version, expires, found.timed_out)
        self._cache.put(key, outcome)
        return outcome

    async def _recalled_or_alone(
        self, memory: ToolDiskCache, key: bytes, tool: Tool, arguments: dict[str, Any], flight: InFlightCall
    ) -> ToolOutcome:
        try:
            if (known := await memory.recall(key)) is not None:
                return ToolOutcome(known.content, False, self.next_order(), known.seconds)
            found = await self.alone(tool, arguments, flight=flight)
            if not found.is_error:
                await memory.remember(key, Remembered(found.content, found.seconds))
        except StoreError as error:  # a cache that fails is one less, and no more
            _log.warning("%s It is not used any more.", error)
            self._memory = None
            return await self.alone(tool, arguments, flight=flight)
        return found

    def _version(self, tool: Tool, arguments: dict[str, Any]) -> Hashable:
        try:
            return tool.sharing.version(arguments) if tool.sharing.version is not None else None
        except BaseException as error:  # a user's function; the execution will meet the same trouble
            if not is_failure(error):
                raise
            return object() if not isinstance(error, OSError) else ("gone", error.errno)

    async def _shaped(self, tool: Tool, text: str, is_error: bool) -> str:
        tokens = tool.max_tokens or self._max_tokens
        most = tokens * _CHARS_PER_TOKEN
        if len(text) <= most:
            return replace_surrogates(text)
        if tool.summarize and not is_error and self._summarize is not None:
            return replace_surrogates(await self._summarize(text, tokens))
        return replace_surrogates(f"{text[:most]}\n[cut here: {most} of {len(text)} characters are shown]")


async def _cached(outcome: ToolOutcome) -> Found:
    return outcome, "cached"
