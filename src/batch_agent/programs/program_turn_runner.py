"""Turns that are handed to programs: to the engine, all that a program does for its agent is one turn of it."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import field
from typing import Any

from .. import aio
from ..agent.conversation import Generate
from ..aio import Deadlines
from ..core.agent_config import Job
from ..core.errors import BackendError, ErrorKind
from ..core.events import RequestRetried
from ..core.facts import Replied
from ..core.fast_dataclass import dataclass
from ..core.messages import Assistant, User
from ..core.options import Retry
from ..core.program_runtime import AgentSession, ProgramFailed, ProgramResult, ProgramTrace, SessionFactory
from ..core.protocols import EventSink, Slot
from ..core.requests import NO_USAGE, Reply, Request
from ..engine.admission import AdmissionController
from ..engine.turn_runner import OnAttempt
from ..schedule.retry import retry_delay
from .program_sessions import ProgramSession, ProgramSessions


@dataclass(frozen=True, slots=True)
class ProgramTurnRunner:
    """In the place of `Asking`, for a run whose agents are programs. A seat stays its agent's until that leaves: asked
    again, for an answer that did not fit, the program goes on from where it was."""

    crew: SessionFactory
    visits: ProgramSessions
    admission: AdmissionController
    turn_time: Deadlines
    retry: Retry
    forget: Callable[[str], None]
    """Nothing more is to be answered to this agent's program."""
    events: EventSink | None = None
    _seats: dict[str, AgentSession] = field(default_factory=dict)

    async def turn(
        self,
        job: Job,
        step: Generate,
        slot: Slot | None,
        task: "asyncio.Task[Any]",
        on_attempt: OnAttempt | None = None,
    ) -> Replied:
        """Raises BackendError and RunStopped."""
        if slot is not None:
            slot.release()  # each of its requests waits for one of its own
        now = task.get_loop().time
        started, failures = now(), 0
        while True:
            try:
                answered, visit = await self._work(job, step.request)
            except ProgramFailed as failed:
                await self.leave(job.key)
                failures += 1
                await self._back_off(job, failed, failures)
            except BaseException:
                await self.leave(job.key)
                raise
            else:
                return _replied(answered, visit, now() - started, failures + 1)

    async def leave(self, agent: str) -> None:
        """An agent is done: its program ends, and its folder goes."""
        seat = self._seats.pop(agent, None)
        self.forget(agent)
        if seat is not None:
            await seat.aclose()

    async def _work(self, job: Job, request: Request) -> tuple[ProgramResult, ProgramSession]:
        """Raises ProgramFailed; and, where the program failed only because its requests did, why those did."""
        with aio.ungrouped():
            async with asyncio.TaskGroup() as group:
                work = group.create_task(self._outcome(job, request))
                with self.visits.open(job, work.cancel) as visit:
                    await asyncio.wait([work])
        if visit.end is not None:
            raise visit.end
        outcome = work.result()
        if visit.refusal is not None and (isinstance(outcome, ProgramFailed) or not outcome.text.strip()):
            raise visit.refusal
        if isinstance(outcome, ProgramFailed):
            raise outcome
        return outcome, visit

    async def _outcome(self, job: Job, request: Request) -> ProgramResult | ProgramFailed:
        seat = self._seats.get(job.key)
        try:
            if seat is not None:
                return await seat.ask(_last(request))
            seat = self._seats[job.key] = await self.crew.seat(job.key)
            return await seat.ask(_whole(request))
        except ProgramFailed as failed:
            return failed

    async def _back_off(self, job: Job, failed: ProgramFailed, failures: int) -> None:
        error = BackendError(ErrorKind.PROGRAM, str(failed))
        if not failed.retryable or failures > self.retry.max_retries:
            raise error from failed
        delay = retry_delay(self.retry, BackendError(ErrorKind.SERVER, str(failed)), failures, random.random())  # noqa: S311
        if delay is None:
            raise error from failed
        if self.events is not None:
            self.events.emit(RequestRetried(job.key, error.kind, str(error), delay))
        await asyncio.sleep(delay)


def _replied(answered: ProgramResult, visit: ProgramSession, seconds: float, attempts: int) -> Replied:
    """What its requests show is what was really asked and paid; what it tells of its own calls says more."""
    usage = visit.usage if visit.turns else answered.usage
    work = ProgramTrace(
        turns=visit.turns or answered.turns,
        transcript=answered.transcript or visit.transcript,
        calls=answered.calls or tuple(visit.calls),
        changes=answered.changes,
    )
    return Replied(Reply(answered.text, "stop", usage or NO_USAGE), visit.queued, seconds, None, attempts, work)


def _last(request: Request) -> str:
    said = request.messages[-1]
    assert isinstance(said, User), "an agent is asked by a user"
    return said.text


def _whole(request: Request) -> str:
    """All that was said, for a program that knows nothing of it: as a rule, only the task."""
    parts = [request.prompt.system]
    for message in request.messages:
        match message:
            case User(text):
                parts.append(text)
            case Assistant(text):
                parts.append(f"Your answer was:\n{text}")
            case _:
                pass
    return "\n\n".join(filter(None, parts))
