"""Whoever asked for a run whose work is shared: posts the inputs as jobs, and collects what became of them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from .. import aio
from ..aio import RunDeadline
from ..core.agent_config import Job
from ..core.coordinator import Completion, Updates
from ..core.errors import ErrorKind, LeaseLost, StoreError
from ..core.events import AgentFinished
from ..core.facts import Fact
from ..core.protocols import EventSink, WorkSource
from ..core.results import AgentError, AgentResult
from ..engine.engine import Deliver, Fit
from .session import ClusterSession

_MOST_OUT = 20_000
"""Jobs that are posted and not delivered, at most: what comes after waits with its owner."""
_AT_ONCE = 256
_LAST_WORDS = 1.0
"""Seconds after the deadline for agents that have ended to be heard of."""

T = TypeVar("T")

Retell = Callable[[Job, Sequence[Fact], Completion], Awaitable[AgentResult | None]]
"""The result of an agent, from its facts and how it ended. None: they do not tell of an end."""


class Submitter:
    """Every input becomes exactly one delivered result, whoever worked on it."""

    def __init__(
        self,
        joined: ClusterSession,
        inputs: WorkSource,
        fit: Fit | None,
        retell: Retell,
        deliver: Deliver,
        events: EventSink | None,
        deadline: RunDeadline,
    ) -> None:
        self._joined = joined
        self._deadline = deadline
        self._gives_up_at = None if deadline.at is None else deadline.at + _LAST_WORDS
        self._inputs = inputs
        self._fit = fit
        self._retell = retell
        self._deliver = deliver
        self._events = events
        self._out: dict[str, Job] = {}
        """What is to be posted or was, and is not delivered."""
        self._own: dict[str, AgentResult] = {}
        """What was done in this process, until everybody knows."""
        self._to_post: asyncio.Queue[Job] = asyncio.Queue()
        self._ended: asyncio.Queue[tuple[Completion, bool] | None] = asyncio.Queue()
        """With whether it had ended before this run. None: no more inputs."""
        self._room = asyncio.Semaphore(_MOST_OUT)

    async def finished_here(self, result: AgentResult) -> None:
        """An agent came to its end in this process; it may be another caller's. Raises StoreError."""
        if result.key in self._out:
            self._own[result.key] = result
        try:
            await self._joined.end(result)
        except LeaseLost:
            self._own.pop(result.key, None)

    async def collect(self) -> None:
        """Returns when every input has its result. Raises StoreError, and what the inputs raised, after what was asked
        is done."""
        joined = self._joined
        joined.member.on_news(self._read)
        with aio.ungrouped():
            async with joined.callers.with_me(joined.member.name), asyncio.TaskGroup() as group:
                taking = group.create_task(self._take_all())
                posting = group.create_task(self._post_all())
                is_done = await self._deliver_all()
                posting.cancel()
                if not is_done:
                    taking.cancel()
        if not is_done:
            await self._fail_what_is_left()
        elif (broken := taking.result()) is not None:
            raise broken

    async def _take_all(self) -> Exception | None:
        """Reads the inputs, as far ahead as there is room; gives what they raised."""
        broken = None
        while broken is None:
            await self._room.acquire()
            try:
                job = await self._inputs.take()
            except Exception as error:  # noqa: BLE001 - the user's iterator: what was asked is finished first
                job, broken = None, error
            if job is None:
                break
            if self._fit is not None and job.problem is None:
                job = await self._fit(job)
            if job.problem is not None:
                await self._hand_over(AgentResult(job.index, job.key, job.input, error=job.problem), resumed=False)
            else:
                self._out[job.key] = job
                self._to_post.put_nowait(job)
        self._ended.put_nowait(None)
        return broken

    async def _post_all(self) -> None:
        """What has come while the last jobs were posted goes together."""
        while True:  # until all is delivered
            jobs = [await self._to_post.get(), *islice(_there(self._to_post), _AT_ONCE)]
            for ending in (await self._joined.submit(jobs)).values():
                self._ended.put_nowait((ending, True))

    async def _deliver_all(self) -> bool:
        """False: the deadline came first."""
        has_all = False
        while self._out or not has_all:
            try:
                async with asyncio.timeout_at(self._gives_up_at) as clock:
                    ended = [await self._next_ended(), *_there(self._ended)]
            except TimeoutError:
                if not clock.expired():
                    raise
                return False
            has_all = has_all or None in ended
            ours = {each[0].key: each for each in ended if each is not None and each[0].key in self._out}
            async with asyncio.TaskGroup() as group:
                telling = {key: group.create_task(self._told(ending)) for key, (ending, _) in ours.items()}
            for key, (_, resumed) in ours.items():
                result = telling[key].result()
                if result is None:
                    self._post_again(self._out[key], is_known=resumed)
                    continue
                del self._out[key]
                await self._hand_over(result, resumed=resumed)
        return True

    async def _fail_what_is_left(self) -> None:
        """What is posted and not done, here or elsewhere, and the inputs that were not posted."""
        error = AgentError(ErrorKind.BUDGET, str(self._deadline.error))
        for job in list(self._out.values()):
            own = self._own.pop(job.key, None) or AgentResult(job.index, job.key, job.input, error=error)
            await self._hand_over(replace(own, index=job.index, input=job.input), resumed=False)
        self._out.clear()
        while self._inputs.is_bounded and (left := await self._inputs.take()) is not None:
            failed = AgentResult(left.index, left.key, left.input, error=left.problem or error)
            await self._hand_over(failed, resumed=False)

    async def _next_ended(self) -> tuple[Completion, bool] | None:
        while True:
            try:
                async with asyncio.timeout(self._joined.member.ttl):
                    return await self._ended.get()
            except TimeoutError:
                await self._post_what_is_missing()

    async def _post_what_is_missing(self) -> None:
        """A server that was killed may have lost the last second of what it was told: jobs, or that they had ended."""
        if await self._joined.hub.pending_count() < len(self._out) - self._to_post.qsize():
            for job in self._out.values():
                self._to_post.put_nowait(job)

    def _post_again(self, job: Job, *, is_known: bool) -> None:
        """The server has lost what the agent said since it told of its end. `is_known`: but still tells of it."""
        if is_known:
            raise StoreError(
                f"The store has lost what agent {job.key} said (input {job.index}). Give the run another run_id to do "
                "all of it again."
            )
        self._to_post.put_nowait(job)

    async def _told(self, ending: Completion) -> AgentResult | None:
        own, job = self._own.pop(ending.key, None), self._out[ending.key]
        if own is not None and ending.worker == self._joined.member.name:
            return replace(own, index=job.index, input=job.input)  # another caller may have posted it as its own
        return await self._retell(job, await self._joined.hub.facts(ending.key), ending)

    async def _hand_over(self, result: AgentResult, *, resumed: bool) -> None:
        if self._events is not None:
            self._events.emit(AgentFinished(result, resumed))
        await self._deliver(result)
        self._room.release()

    def _read(self, news: Updates) -> None:
        for ending in news.completions:
            self._ended.put_nowait((ending, False))


def _there(queue: "asyncio.Queue[T]") -> Iterator[T]:
    """What can be had without waiting."""
    while not queue.empty():
        yield queue.get_nowait()
