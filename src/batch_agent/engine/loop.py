"""The ordinary executor: one agent, turn by turn. A slot is held only while the model generates."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from ..agent.conversation import CallTools, Conversation, Done, Generate
from ..core.errors import BackendError, ErrorKind
from ..core.events import RequestRetried
from ..core.facts import Fact, Replied, Returned
from ..core.interfaces import Backend, EventSink, Slot, Store, Toolbox, ToolSession
from ..core.requests import Request
from ..core.results import AgentError, AgentResult
from ..core.rules import Job, Rules
from ..core.spec import Retry
from ..schedule.admission import Rank
from ..schedule.retry import retry_delay
from .deadlines import Deadlines
from .replies import collect
from .slots import Slots


@dataclass(frozen=True, slots=True)
class AgentLoop:
    """Runs agents under the rules of one run. All of them share what is given here."""

    rules: Rules
    backend: Backend
    tools: Toolbox
    store: Store
    slots: Slots
    agent_time: Deadlines
    turn_time: Deadlines
    retry: Retry
    events: EventSink | None = None

    def recall(self, job: Job, facts: Sequence[Fact]) -> AgentResult | None:
        talk = Conversation(self.rules, job)
        talk.replay(facts)
        step = talk.next()
        if isinstance(step, Done) and (step.error is None or job.problem is not None):
            return talk.result(sum(fact.seconds for fact in facts))
        return None

    async def run(self, job: Job, facts: Sequence[Fact], slot: Slot) -> AgentResult:
        task = asyncio.current_task()
        assert task is not None
        now = task.get_loop().time
        started = now()
        talk = self._continue(job, facts)
        clock = self.agent_time.watch(task)
        try:
            with clock:
                await _Agent(self, job, slot, task).live(talk)
        except BackendError as error:
            talk.fail(AgentError(error.kind, str(error), error.retryable))
        except TimeoutError:
            if not clock.expired:
                raise
            limit = f"The agent took longer than timeout_per_agent={self.agent_time.limit:g} s."
            talk.fail(AgentError(ErrorKind.AGENT_TIMEOUT, limit, retryable=True))
        finally:
            slot.release()
        return talk.result(now() - started)

    def _continue(self, job: Job, facts: Sequence[Fact]) -> Conversation:
        """The conversation as far as it went; one that had failed for good starts again."""
        talk = Conversation(self.rules, job)
        talk.replay(facts)
        if facts and isinstance(talk.next(), Done):
            self.store.forget(job.key)
            talk = Conversation(self.rules, job)
        return talk


class _Agent:
    """One agent under way: what it holds between its turns."""

    __slots__ = ("_job", "_now", "_run", "_session", "_slot", "_task")

    def __init__(self, run: AgentLoop, job: Job, slot: Slot, task: "asyncio.Task[Any]") -> None:
        self._run = run
        self._job = job
        self._task = task
        self._now = task.get_loop().time
        self._slot: Slot | None = slot
        self._session: ToolSession | None = None

    async def live(self, talk: Conversation) -> None:
        while not isinstance(step := talk.next(), Done):
            fact: Fact
            match step:
                case Generate():
                    fact = await self._generate(step)
                case CallTools():
                    fact = await self._call(step)
                case _:
                    assert_never(step)
            self._run.store.record(self._job.key, fact)
            talk.apply(fact)

    async def _call(self, step: CallTools) -> Returned:
        if self._slot is not None:  # resumed while it waited for its tools
            self._slot.release()
            self._slot = None
        if self._session is None:
            self._session = self._run.tools.session(self._job.key)
        started = self._now()
        results = await self._session.results(step.calls)
        return Returned(results, self._now() - started)

    async def _generate(self, step: Generate) -> Replied:
        """One turn, sent until it is answered or another try makes no sense. Raises BackendError."""
        slots = self._run.slots
        queued, failures = 0.0, 0
        while True:
            asked = self._now()
            slot = self._slot or await slots.acquire(Rank(False, step.turns_left, self._job.index))
            self._slot = None
            started = self._now()
            queued += started - asked
            try:
                fact = await self._ask(step.request, queued, started, failures + 1)
            except BackendError as error:
                failure = error
                if error.kind is ErrorKind.RATE_LIMITED:
                    slots.refused(error.retry_after)  # before the slot goes to the next in line
            else:
                slots.succeeded()
                return fact
            finally:
                slot.release()
            failures += 1
            await self._back_off(failure, failures)

    async def _ask(self, request: Request, queued: float, started: float, attempt: int) -> Replied:
        clock = self._run.turn_time.watch(self._task)
        try:
            with clock:
                async with self._run.backend.stream(request) as deltas:
                    reply, first = await collect(deltas, self._now)
        except TimeoutError as error:
            if not clock.expired:
                raise
            message = f"The backend did not answer within timeout_per_turn={self._run.turn_time.limit:g} s."
            raise BackendError(ErrorKind.TURN_TIMEOUT, message) from error
        ttft = first - started if first is not None and request.stream else None
        return Replied(reply, queued, self._now() - started, ttft, attempt)

    async def _back_off(self, error: BackendError, failures: int) -> None:
        """Waits before the next try, without a slot; raises the error when there shall be none."""
        delay = retry_delay(self._run.retry, error, failures, random.random())  # noqa: S311
        if delay is None:
            raise error
        if self._run.events is not None:
            self._run.events.emit(RequestRetried(self._job.key, error.kind, str(error), delay))
        await asyncio.sleep(delay)
