"""One turn of an agent, sent until it is answered or another try makes no sense."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, assert_never

from ..agent.conversation import Generate
from ..aio import Deadlines
from ..core.agent_config import Job
from ..core.errors import BackendError, ErrorKind
from ..core.events import RequestRetried, TurnEnded, TurnStarted
from ..core.facts import Replied
from ..core.fast_dataclass import dataclass
from ..core.options import Retry
from ..core.protocols import Backend, EventSink, Slot
from ..core.requests import Reply, Request
from ..core.run_failure import RunStopped
from ..schedule.health import Health, PauseAll, RetryAgent, StopRun
from ..schedule.retry import asks_for_less, retry_delay
from .admission import AdmissionController
from .prefix_warmup import PrefixWarmup
from .reply_assembly import OnCall, collect

OnAttempt = Callable[[Request], Awaitable[OnCall | None]]
"""Called before each try of a turn: who hears of the calls in it."""


class TurnRunner(Protocol):
    """Where the turns of agents are taken."""

    @property
    def gate(self) -> AdmissionController: ...

    @property
    def turn_time(self) -> Deadlines: ...

    @property
    def events(self) -> EventSink | None: ...

    async def turn(
        self, job: Job, step: Generate, slot: Slot | None, task: "asyncio.Task[Any]", begin: OnAttempt | None = None
    ) -> Replied:
        """`slot`: for the first try, if the agent has one already; `task`: the running one. Raises BackendError and
        RunStopped."""
        ...


@dataclass(frozen=True, slots=True)
class BackendTurnRunner:
    """A backend with the way to it, and what a failure there means. All agents of a run ask through the same one."""

    backend: Backend
    gate: AdmissionController
    health: Health
    turn_time: Deadlines
    retry: Retry
    warming: PrefixWarmup | None = None
    events: EventSink | None = None

    async def turn(
        self, job: Job, step: Generate, slot: Slot | None, task: "asyncio.Task[Any]", begin: OnAttempt | None = None
    ) -> Replied:
        now = task.get_loop().time
        queued, failed = 0.0, tuple[BackendError, ...]()
        while True:
            on_call = None if begin is None else await begin(step.request)
            asked = now()
            held = slot or await self.gate.next_turn(job, step.turns_left)
            slot = None
            if self.warming is not None and not self.warming.is_over:
                await _warm(self.warming, held)
            started = now()
            queued += started - asked
            request = self.health.sent(started)
            if self.events is not None:
                self.events.emit(TurnStarted(job.key, step.request.turn + 1))
            try:
                reply, ttft = await self._ask(step.request, task, started, on_call)
            except BackendError as error:
                alone = self._judge(job, request, error, now(), failed)  # before the slot goes to the next in line
                failed = failed if alone is None else (*failed, error)
            else:
                fact = Replied(reply, queued, now() - started, ttft, len(failed) + 1, cut_at=_cut_at(reply, step))
                self.gate.answered(job.key, fact)
                self.health.succeeded(request)
                if failed:
                    self._learn(failed[-1], helped=True)
                if self.events is not None:
                    self.events.emit(_ended(job, step, fact))
                return fact
            finally:
                self.health.left(request)
                held.release()
            if alone is not None:
                await self._back_off(job, failed, alone)

    async def _ask(
        self, request: Request, task: "asyncio.Task[Any]", started: float, on_call: OnCall | None
    ) -> tuple[Reply, float | None]:
        """One try: the reply, and seconds to its first token where it was streamed."""
        clock = self.turn_time.watch(task)
        try:
            with clock:
                async with self.backend.stream(request) as deltas:
                    reply, first = await collect(deltas, task.get_loop().time, on_call)
        except TimeoutError as error:
            if not clock.expired:
                raise
            message = f"The backend did not answer within timeout_per_turn={self.turn_time.limit:g} s."
            raise BackendError(ErrorKind.TURN_TIMEOUT, message) from error
        return reply, first - started if first is not None and request.stream else None

    def _judge(
        self, job: Job, request: int, error: BackendError, now: float, before: tuple[BackendError, ...]
    ) -> RetryAgent | None:
        """What a failure means for everybody. How patient this agent may be, or None if the try does not count;
        raises RunStopped. `before`: earlier failures of this turn."""
        if asks_for_less(error):
            self.gate.slots.refused(error.retry_after, request, self.health)
        elif before:
            self._learn(before[-1], helped=False)
        match self.health.failed(request, job.key, error, now):
            case StopRun(reason):
                raise RunStopped(error.kind, reason)
            case PauseAll(seconds):
                self.gate.slots.hold(seconds, str(error), then=1)
                self._tell(job, error, seconds)
                return None
            case RetryAgent() as alone:
                return alone
            case other:
                assert_never(other)

    def _learn(self, failure: BackendError, *, helped: bool) -> None:
        """From the try after a failure. That a busy server has time again is no news."""
        if not asks_for_less(failure):
            self.health.retried(helped=helped)

    async def _back_off(self, job: Job, failed: tuple[BackendError, ...], alone: RetryAgent) -> None:
        """Waits before the next try, without a slot; raises the last error when there shall be none."""
        error = failed[-1]
        alike = sum(asks_for_less(each) == asks_for_less(error) for each in failed)
        spread = random.random()  # noqa: S311
        delay = retry_delay(self.retry, error, alike, spread, alone.patience, is_lone=alone.is_lone)
        if delay is None:
            raise error
        self._tell(job, error, delay)
        await asyncio.sleep(delay)

    def _tell(self, job: Job, error: BackendError, delay: float) -> None:
        if self.events is not None:
            self.events.emit(RequestRetried(job.key, error.kind, str(error), delay))


def _cut_at(reply: Reply, step: Generate) -> int | None:
    return step.request.sampling.max_tokens if reply.finish == "length" else None


def _ended(job: Job, step: Generate, fact: Replied) -> TurnEnded:
    reply = fact.reply
    return TurnEnded(
        job.key, step.request.turn + 1, reply.usage, reply.finish, fact.queued, fact.seconds, fact.ttft, fact.attempts
    )


async def _warm(warming: PrefixWarmup, slot: Slot) -> None:
    try:
        await warming.wait()
    except BaseException:
        slot.release()
        raise
