"""Turn runner: sends one turn of an agent, and retries until it is answered or fails for good."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, assert_never

from ..agent.conversation import Generate
from ..aio import Deadlines
from ..core.agent_config import Job
from ..core.errors import AnswerLimitChanged, BackendError, ErrorKind
from ..core.events import RequestRetried, TurnEnded, TurnStarted
from ..core.facts import Replied
from ..core.fast_dataclass import dataclass
from ..core.options import Retry
from ..core.protocols.agent_executor import Slot
from ..core.protocols.backend import Backend
from ..core.protocols.event_sink import EventSink
from ..core.requests import Reply, Request
from ..core.run_failure import RunStopped
from ..schedule.health import Health, PauseAll, RetryAgent, StopRun
from ..schedule.retry import MAX_RETRY_AFTER, is_overload_refusal, retry_delay
from .admission import AdmissionController
from .prefix_warmup import PrefixWarmup
from .reply_assembly import OnCall, collect

LANE_FAILURES = frozenset({ErrorKind.CAPACITY, ErrorKind.TURN_TIMEOUT})
"""Failures for which a request may move to another lane. They say nothing about the backend."""
OnAttempt = Callable[[Request], Awaitable[OnCall | None]]
"""Called before each attempt of a turn; returns the callback for the tool calls in its reply."""


class RunTurn(Protocol):
    """Runs one turn of an agent."""

    def __call__(
        self,
        job: Job,
        step: Generate,
        slot: Slot | None,
        task: "asyncio.Task[Any]",
        on_attempt: OnAttempt | None = None,
    ) -> Awaitable[Replied]:
        """`slot`: for the first attempt, if the agent already has one; `task`: the running task. Raises BackendError
        and RunStopped."""
        ...


class TurnRunner(Protocol):
    """Runs the turns of agents."""

    @property
    def admission(self) -> AdmissionController: ...

    @property
    def turn_time(self) -> Deadlines: ...

    @property
    def events(self) -> EventSink | None: ...

    @property
    def turn(self) -> RunTurn: ...


class WrappedTurnRunner:
    """Turn runner whose turns are run by another function, which may call the original."""

    def __init__(self, wrapped: TurnRunner, turn: RunTurn) -> None:
        self.admission = wrapped.admission
        self.turn_time = wrapped.turn_time
        self.events = wrapped.events
        self.turn = turn


@dataclass(frozen=True, slots=True)
class BackendTurnRunner:
    """Runs turns on a backend, behind an admission controller. All agents of a run share one."""

    backend: Backend
    admission: AdmissionController
    health: Health
    turn_time: Deadlines
    retry: Retry
    warmup: PrefixWarmup | None = None
    events: EventSink | None = None

    async def turn(
        self,
        job: Job,
        step: Generate,
        slot: Slot | None,
        task: "asyncio.Task[Any]",
        on_attempt: OnAttempt | None = None,
    ) -> Replied:
        now = task.get_loop().time
        queued, failed = 0.0, tuple[BackendError, ...]()
        while True:
            on_call = None if on_attempt is None else await on_attempt(step.request)
            held, slot = slot, None
            started = waiting_since = now()
            if held is None:
                held = await self.admission.readmit(job, step.turns_left)
                started = now()
            if self.warmup is not None and not self.warmup.is_done:
                held = await self._after_warmup(self.warmup, held, job, step.turns_left)
                started = now()
            queued += started - waiting_since
            request = self.health.sent(started)
            if self.events is not None:
                self.events.emit(TurnStarted(job.key, step.request.turn + 1))
            try:
                reply, ttft = await self._attempt(
                    self.admission.hinted(step.request, step.turns_left), task, started, on_call
                )
            except AnswerLimitChanged as change:
                self.health.abandoned(request)
                self._report_retry(job, change, 0.0)
                retry = None
            except BackendError as error:
                if step.request.lane == "flex" and error.kind in LANE_FAILURES:
                    self.health.abandoned(request)
                    raise
                retry = self._on_failure(job, request, error, now(), failed)  # before the slot is granted again
                failed = failed if retry is None else (*failed, error)
            except BaseException:
                self.health.abandoned(request)
                raise
            else:
                fact = Replied(reply, queued, now() - started, ttft, len(failed) + 1, cut_at=_cut_at(reply, step))
                self.health.succeeded(request)
                held.settle(reply.usage)
                self.admission.on_reply(job.key, fact)
                if failed:
                    self._learn(failed[-1], helped=True)
                if self.events is not None:
                    self.events.emit(_turn_ended(job, step, fact))
                return fact
            finally:
                held.release()
            if retry is not None:
                await self._back_off(job, failed, retry)

    async def _after_warmup(self, warmup: PrefixWarmup, slot: Slot, job: Job, turns_left: int) -> Slot:
        """Waits for the warm-up request, and returns the slot for the turn. Where requests are paced, the agent that
        sent the warm-up takes another slot: the pace allowed one request."""
        try:
            if not await warmup.wait() or self.admission.slots.pace is None:
                return slot
        except BaseException:
            slot.release()
            raise
        slot.release()
        return await self.admission.readmit(job, turns_left)

    async def _attempt(
        self, request: Request, task: "asyncio.Task[Any]", started: float, on_call: OnCall | None
    ) -> tuple[Reply, float | None]:
        """Makes one attempt. Returns the reply, and the time to its first token if it was streamed."""
        limit = self.turn_time.watch(task)
        try:
            with limit:
                async with self.backend.stream(request) as deltas:
                    clock = task.get_loop().time if request.stream else None
                    reply, first = await collect(deltas, clock, on_call)
        except TimeoutError as error:
            if not limit.expired:
                raise
            message = f"The backend did not answer within timeout_per_turn={self.turn_time.limit:g} s."
            raise BackendError(ErrorKind.TURN_TIMEOUT, message) from error
        return reply, None if first is None else first - started

    def _on_failure(
        self, job: Job, request: int, error: BackendError, now: float, before: tuple[BackendError, ...]
    ) -> RetryAgent | None:
        """Handles a failed attempt: how the agent may retry, or None if the attempt does not count. `before`: earlier
        failures of this turn. Raises RunStopped."""
        if is_overload_refusal(error):
            self.admission.slots.on_rate_limited(error.retry_after, request, self.health)
        elif before:
            self._learn(before[-1], helped=False)
        match self.health.failed(request, job.key, error, now):
            case StopRun(reason):
                raise RunStopped(error.kind, reason)
            case PauseAll(seconds):
                self.admission.slots.pause(seconds, str(error), then=1)
                self._report_retry(job, error, seconds)
                return None
            case RetryAgent() as retry:
                return retry
            case other:
                assert_never(other)

    def _learn(self, failure: BackendError, *, helped: bool) -> None:
        """Records whether a retry helped. Retries after refusals say nothing about failures."""
        if not is_overload_refusal(failure):
            self.health.retried(helped=helped)

    async def _back_off(self, job: Job, failed: tuple[BackendError, ...], retry: RetryAgent) -> None:
        """Waits before the next attempt, without a slot. Raises the last error if there is none."""
        error = failed[-1]
        same_kind = sum(is_overload_refusal(each) == is_overload_refusal(error) for each in failed)
        jitter = random.random()  # noqa: S311

        def delay_if(others_succeed: bool) -> float | None:
            return retry_delay(self.retry, error, same_kind, jitter, retry.retry_factor, others_succeed=others_succeed)

        delay, asked = delay_if(retry.others_succeed), error.retry_after or 0.0
        if delay is None:
            is_long = error.retryable and asked > MAX_RETRY_AFTER
            raise _long_wait(error, asked) if is_long else error
        self._report_retry(job, error, delay)
        if asked:  # the first refusals arrive before the first answers: how far to spread is known only after the wait
            await asyncio.sleep(asked)
            delay = delay_if(self.health.others_succeed) or delay
        await asyncio.sleep(delay - asked)

    def _report_retry(self, job: Job, error: BackendError, delay: float) -> None:
        if self.events is not None:
            self.events.emit(RequestRetried(job.key, error.kind, str(error), delay))


def _long_wait(error: BackendError, seconds: float) -> BackendError:
    message = (
        f"{error} The server asks to wait {seconds:,.0f} s, and a request waits for {MAX_RETRY_AFTER:.0f} s at most. "
        "Run this input again later."
    )
    return BackendError(error.kind, message, retry_after=seconds, status=error.status)


def _cut_at(reply: Reply, step: Generate) -> int | None:
    return step.request.sampling.max_tokens if reply.finish == "length" else None


def _turn_ended(job: Job, step: Generate, fact: Replied) -> TurnEnded:
    reply = fact.reply
    return TurnEnded(
        job.key,
        step.request.turn + 1,
        reply.usage,
        reply.finish,
        fact.queued,
        fact.seconds,
        fact.ttft,
        fact.attempts,
        reply,
    )
