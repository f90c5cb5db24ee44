"""Turn runner for program agents. To the engine, all work of a program for its agent is one turn."""

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
from ..core.protocols.agent_executor import Slot
from ..core.protocols.event_sink import EventSink
from ..core.requests import NO_USAGE, Reply, Request
from ..engine.admission import AdmissionController
from ..engine.turn_runner import OnAttempt
from ..schedule.retry import retry_delay
from .program_sessions import ProgramSession, ProgramSessions


@dataclass(frozen=True, slots=True)
class ProgramTurnRunner:
    """Replaces `BackendTurnRunner` in a run with program agents. An agent keeps its session until it ends: if an answer
    does not fit the schema, the program continues its conversation."""

    factory: SessionFactory
    sessions: ProgramSessions
    admission: AdmissionController
    turn_time: Deadlines
    retry: Retry
    release: Callable[[str], None]
    """Called when requests from an agent's program are no longer answered."""
    events: EventSink | None = None
    _agent_sessions: dict[str, AgentSession] = field(default_factory=dict)

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
            slot.release()  # each of the program's requests waits for its own slot
        now = task.get_loop().time
        started, failures = now(), 0
        while True:
            try:
                result, session = await self._attempt(job, step.request)
            except ProgramFailed as failed:
                await self.leave(job.key)
                failures += 1
                await self._back_off(job, failed, failures)
            except BaseException:
                await self.leave(job.key)
                raise
            else:
                return _replied(result, session, now() - started, failures + 1)

    async def leave(self, agent: str) -> None:
        """Ends an agent's program and removes its directory."""
        agent_session = self._agent_sessions.pop(agent, None)
        self.release(agent)
        if agent_session is not None:
            await agent_session.aclose()

    async def _attempt(self, job: Job, request: Request) -> tuple[ProgramResult, ProgramSession]:
        """Raises ProgramFailed, or the error of the program's requests if it failed only because of them."""
        with aio.ungrouped():
            async with asyncio.TaskGroup() as group:
                attempt = group.create_task(self._outcome(job, request))
                with self.sessions.open(job, attempt.cancel) as session:
                    await asyncio.wait([attempt])
        if session.ended_by is not None:
            raise session.ended_by
        outcome = attempt.result()
        if session.refusal is not None and (isinstance(outcome, ProgramFailed) or not outcome.text.strip()):
            raise session.refusal
        if isinstance(outcome, ProgramFailed):
            raise outcome
        return outcome, session

    async def _outcome(self, job: Job, request: Request) -> ProgramResult | ProgramFailed:
        agent_session = self._agent_sessions.get(job.key)
        try:
            if agent_session is not None:
                return await agent_session.prompt(_last_prompt(request))
            agent_session = self._agent_sessions[job.key] = await self.factory.open_session(job.key)
            return await agent_session.prompt(_whole_prompt(request))
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


def _replied(result: ProgramResult, session: ProgramSession, seconds: float, attempts: int) -> Replied:
    """Takes usage and turns from the requests, if there were any. The program's own record of its calls is more
    detailed."""
    usage = session.usage if session.turns else result.usage
    trace = ProgramTrace(
        turns=session.turns or result.turns,
        transcript=result.transcript or session.transcript,
        calls=result.calls or tuple(session.calls),
        changes=result.changes,
    )
    return Replied(Reply(result.text, "stop", usage or NO_USAGE), session.queued, seconds, None, attempts, trace)


def _last_prompt(request: Request) -> str:
    message = request.messages[-1]
    assert isinstance(message, User), "the last message is the prompt"
    return message.text


def _whole_prompt(request: Request) -> str:
    """The whole conversation as one prompt for a new program. Usually it is only the task."""
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
