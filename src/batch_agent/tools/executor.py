"""Executor of the tool calls of all agents of a run. One execution serves every agent that may share it."""

import asyncio
import itertools
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from .. import aio
from ..aio import cancel_all, is_being_cancelled, is_failure
from ..core.agent_config import Job
from ..core.errors import StoreError
from ..core.facts import Fact
from ..core.messages import ToolCall, ToolSource, ToolSpec
from ..core.protocols.tool_set import Journal
from ..core.results import ToolUse
from ..core.shared_calls import CallOutcome, SharedCalls
from ..media.image_files import ImageFolder
from .agent_tools import AgentToolSession
from .cache import ResultCache, ToolOutcome
from .call_key import call_key
from .disk_cache import StoredResult, ToolDiskCache, disk_cache_key, shared_call_name
from .parameters import BadArguments
from .reference_order import ReferenceOrder
from .result_text import RenderedResult, ToolTimeout, describe_error, replace_surrogates
from .single_flight import InFlightCall, SingleFlight, SourcedOutcome
from .subsets import check_names
from .threads import DaemonThreads
from .tool import Tool
from .tool_runner import ToolRunner
from .write_claims import ClaimEntry, WriteClaim

_CACHE_BYTES = 256 * 1024 * 1024
_MAX_KEYS = 10_000
_MAX_KEY_CHARS = 2_000
"""Arguments longer than this are not remembered by their text."""
_OTHER_PROCESS = 0
"""Order number of results from other processes, which is below that of every write here."""

_log = logging.getLogger("batch_agent")

T = TypeVar("T")
Summarize = Callable[[str, int], Awaitable[str]]
"""Shortens a text to a maximum of tokens."""


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
        disk_cache: ToolDiskCache | None = None,
        shared_calls: SharedCalls | None = None,
        checkpoint_dir: Path | None = None,
    ) -> None:
        """`shared_calls`: shares calls and rate limits with other processes. `checkpoint_dir`: where images that tools
        make are kept."""
        self._images = ImageFolder(checkpoint_dir)
        self._threads = DaemonThreads()
        check_names(tools)
        self._runners = {
            tool.name: ToolRunner(tool, timeout, max_tokens, self._threads, shared_calls) for tool in tools
        }
        self._max_tokens = max_tokens
        self._summarize = summarize
        self._disk_cache = disk_cache
        self._shared_calls = shared_calls
        self._pure_calls: Counter[tuple[str, str]] = Counter()
        self._keys: dict[tuple[str, str], tuple[str, bytes]] = {}
        """Keys of calls, by the tool's name and the text of the arguments."""
        self._flights = SingleFlight()
        self._spawned: set[asyncio.Task[Any]] = set()
        self._orders = itertools.count(_OTHER_PROCESS + 1)
        self._cache = ResultCache(cache_bytes, aio.now)
        self.references = ReferenceOrder(shared_calls)
        self.identity = secrets.token_hex(8)
        """Stands in for the run's identity in sessions without a journal."""
        self.specs: tuple[ToolSpec, ...] = tuple(tool.spec for tool in tools)
        self.may_start_early = any(tool.is_shared for tool in tools)

    @property
    def uses(self) -> tuple[ToolUse, ...]:
        """Statistics of each tool so far."""
        return tuple(runner.stats.summary() for runner in self._runners.values())

    def session(self, agent: str, journal: Journal | None = None, job: Job | None = None) -> AgentToolSession:
        return AgentToolSession(self, agent, journal, job=job)

    def recall(self, facts: Sequence[Fact]) -> None:
        self.references.recall(facts)

    @property
    def pure_calls(self) -> dict[tuple[str, str], int]:
        """How often each call of a pure tool was made, by tool and arguments."""
        return dict(self._pure_calls)

    async def prewarm(self, calls: Sequence[tuple[str, str]]) -> None:
        """Makes calls before any agent does. Skips calls of tools that are not pure, and arguments that no longer
        fit."""
        for name, text in calls:
            runner = self._runners.get(name)
            if runner is None or runner.tool.sharing.effect != "pure" or not runner.tool.is_shared:
                continue
            try:
                arguments = runner.tool.arguments.read(text)
            except BadArguments:
                continue
            runner.stats.prewarmed += 1
            await self.run_shared(runner.tool, arguments, text, -1)

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Starts a task that is cancelled when the executor is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)
        return task

    async def aclose(self) -> None:
        await cancel_all(self._spawned)
        await self._flights.aclose()
        for runner in self._runners.values():
            if runner.batcher is not None:
                await runner.batcher.aclose()
        self._threads.close()
        self._images.close()

    def tool(self, name: str) -> Tool | None:
        runner = self._runners.get(name)
        return runner.tool if runner is not None else None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._runners)

    def next_order(self) -> int:
        """A sequence number for an event that happens now; two events may have the same time."""
        return next(self._orders)

    def lookup(self, tool: Tool, text: str, after: int) -> ToolOutcome | InFlightCall | None:
        """The outcome, or the execution in progress, of a call with the same text of arguments that started after
        `after`. None: the arguments have to be parsed. Most calls of a run repeat others to the letter."""
        key = self._keys.get((tool.name, text))
        if key is None:
            return None
        outcome = self._cache.get(key)
        if outcome is not None and outcome.order > after:
            return outcome
        flight = self._flights.find(key)
        return flight if flight is not None and flight.order > after else None

    def _remember_key(self, name: str, text: str, key: tuple[str, bytes]) -> None:
        if len(self._keys) >= _MAX_KEYS:
            self._keys.clear()
        if len(text) <= _MAX_KEY_CHARS:
            self._keys[name, text] = key

    def run_shared(self, tool: Tool, arguments: dict[str, Any], text: str, after: int) -> Awaitable[SourcedOutcome]:
        """An outcome that calls share: cached, in progress or new, and started after `after`. `text`: the arguments as
        the model wrote them."""
        try:
            key, version = call_key(tool.name, arguments, text), self._version(tool, arguments)
        except ValueError:  # arguments that contain themselves have no key
            return self.run_unshared(tool, arguments)
        if tool.sharing.version is None and tool.sharing.is_shared:
            self._remember_key(tool.name, text, key)
        outcome = self._cache.get(key)
        if outcome is not None and outcome.order > after and outcome.version == version:
            return _cached(outcome)
        flight = self._flights.find(key)
        if flight is not None and flight.order > after and flight.version == version:
            return flight.wait("shared")
        if self._shared_calls is not None and after < _OTHER_PROCESS:
            name = shared_call_name(tool, key, version)
            if name is not None:
                return self._run_across_processes(self._shared_calls, name, tool, arguments, key, version)
        order = self.next_order()
        execute = partial(self._execute, tool, arguments, key, order, version)
        message = self._runners[tool.name].timeout_message
        return self._flights.start(key, order, version, execute, message).wait("executed")

    async def run_unshared(self, tool: Tool, arguments: dict[str, Any]) -> SourcedOutcome:
        """Like `run`, with the source."""
        return await self.run(tool, arguments), "executed"

    async def run(
        self, tool: Tool, arguments: dict[str, Any], claim: WriteClaim | None = None, flight: InFlightCall | None = None
    ) -> ToolOutcome:
        """One execution for one call. An error of the tool is an outcome. `claim`: of a write, taken when it is the
        call's turn; its errors are raised. `flight`: of an execution with several waiters."""
        runner = self._runners[tool.name]
        order, started = self.next_order(), aio.now()
        entry = ClaimEntry(claim, None if flight is None else flight.extend)
        timed_out = False
        try:
            output, is_error = await self._kept(await runner.run(arguments, entry, claim)), False
        except BaseException as error:  # a user's tool may raise anything
            if is_being_cancelled():  # whatever the tool makes of it
                raise asyncio.CancelledError from error
            if not is_failure(error) or (claim is not None and claim.failure is error):
                raise
            output = RenderedResult(describe_error(error))
            is_error, timed_out = True, isinstance(error, ToolTimeout)
        seconds = aio.now() - (started if entry.started_at is None else entry.started_at)
        text = await self._shorten(runner, output, is_error)
        return ToolOutcome(text, is_error, order, seconds, timed_out=timed_out, images=output.images)

    async def _kept(self, output: RenderedResult) -> RenderedResult:
        """The output, with its images stored as files. Facts have their paths, so images take no memory until they are
        sent."""
        if all(image.data is None for image in output.images):
            return output
        images = await asyncio.to_thread(lambda: tuple(self._images.save(image) for image in output.images))
        return RenderedResult(output.text, images)

    def record(self, tool: Tool, call: ToolCall, source: ToolSource, outcome: ToolOutcome) -> None:
        self._runners[tool.name].stats.record_call(source, outcome.seconds, is_error=outcome.is_error)
        if self._disk_cache is not None and tool.sharing.effect == "pure" and len(self._pure_calls) < _MAX_KEYS:
            self._pure_calls[tool.name, call.arguments] += 1

    async def _run_across_processes(
        self,
        shared_calls: SharedCalls,
        name: str,
        tool: Tool,
        arguments: dict[str, Any],
        key: tuple[str, bytes],
        version: Hashable,
    ) -> SourcedOutcome:
        """Like `run_shared`, for an agent that has written nothing. A result of another process may be older than a
        write here, so an agent that has written neither joins this execution nor gets its result from the cache."""
        sources: list[ToolSource] = []

        async def make() -> CallOutcome:
            outcome = await self._execute(tool, arguments, key, self.next_order(), version, flight)
            is_cached = tool.sharing.keeps_errors or not outcome.is_error
            ttl = max(0.0, outcome.expires - aio.now()) if is_cached else 0.0
            return CallOutcome(
                outcome.content, outcome.is_error, outcome.seconds, ttl, outcome.timed_out, outcome.images
            )

        async def execute(_: InFlightCall) -> ToolOutcome:
            made, source = await shared_calls.call(name, make)
            sources.append(source)
            expires = aio.now() + made.ttl
            outcome = ToolOutcome(
                made.content, made.is_error, _OTHER_PROCESS, made.seconds, version, expires, made.timed_out, made.images
            )
            if source != "executed":
                self._cache.put(key, outcome)
            return outcome

        message = self._runners[tool.name].timeout_message
        flight = self._flights.start(key, _OTHER_PROCESS, version, execute, message)
        outcome, _ = await flight.wait("shared")
        return outcome, sources[0] if sources else "executed"

    async def _execute(
        self,
        tool: Tool,
        arguments: dict[str, Any],
        key: tuple[str, bytes],
        order: int,
        version: Hashable,
        flight: InFlightCall,
    ) -> ToolOutcome:
        disk_key = None if self._disk_cache is None else disk_cache_key(tool, self._max_tokens, key[1])
        while True:
            began = aio.now()
            if self._disk_cache is None or disk_key is None:
                made = await self.run(tool, arguments, flight=flight)
            else:
                made = await self._run_with_disk_cache(self._disk_cache, disk_key, tool, arguments, flight)
            if not made.timed_out or flight.extend(began, self._runners[tool.name].limit or 0.0) is None:
                break  # else a waiter joined a batch that was already running: execute again
        if made.is_error and not tool.sharing.keeps_errors:
            return made
        expires = began + tool.sharing.effective_ttl
        outcome = ToolOutcome(
            made.content, made.is_error, order, made.seconds, version, expires, made.timed_out, made.images
        )
        self._cache.put(key, outcome)
        return outcome

    async def _run_with_disk_cache(
        self, cache: ToolDiskCache, key: bytes, tool: Tool, arguments: dict[str, Any], flight: InFlightCall
    ) -> ToolOutcome:
        try:
            if (stored := await cache.get(key)) is not None:
                return ToolOutcome(stored.content, False, self.next_order(), stored.seconds)
            made = await self.run(tool, arguments, flight=flight)
            if not made.is_error and not made.images:
                await cache.put(key, StoredResult(made.content, made.seconds))
        except StoreError as error:  # the run does not depend on the cache
            _log.warning("%s It is not used any more.", error)
            self._disk_cache = None
            return await self.run(tool, arguments, flight=flight)
        return made

    def _version(self, tool: Tool, arguments: dict[str, Any]) -> Hashable:
        try:
            return tool.sharing.version(arguments) if tool.sharing.version is not None else None
        except BaseException as error:  # a user's function; the execution will fail in the same way
            if not is_failure(error):
                raise
            return object() if not isinstance(error, OSError) else ("gone", error.errno)

    async def _shorten(self, runner: ToolRunner, output: RenderedResult, is_error: bool) -> str:
        text, shown = output.text, runner.max_chars
        if len(text) <= shown and output.is_whole:
            return replace_surrogates(text)
        if runner.tool.summarize and not is_error and self._summarize is not None:
            return replace_surrogates(await self._summarize(text, runner.max_tokens))
        if output.is_whole:
            return replace_surrogates(f"{text[:shown]}\n[cut here: {shown} of {len(text)} characters are shown]")
        rest = "and the tool's iterator was not read further"
        return replace_surrogates(f"{text[:shown]}\n[cut here: {shown} characters are shown, {rest}]")


async def _cached(outcome: ToolOutcome) -> SourcedOutcome:
    return outcome, "cached"
