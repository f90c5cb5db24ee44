"""Answers the requests of programs, with the same slots, KV ledger, retries, budget and events as for any agent."""

import asyncio
from collections import Counter, defaultdict
from dataclasses import field, replace
from hashlib import blake2b
from typing import Literal

from ..agent.conversation import Generate
from ..core.errors import BackendError, ErrorKind
from ..core.facts import Replied
from ..core.fast_dataclass import dataclass
from ..core.messages import User
from ..core.program_runtime import CompletionRequest
from ..core.requests import Reply, Request
from ..core.run_failure import RunStopped
from ..engine.turn_runner import TurnRunner
from ..rollouts.token_recorder import TokenRecorder
from .action_adapter import ActionAdapter, keeps_choice
from .program_sessions import ProgramSession, ProgramSessions


@dataclass(frozen=True, slots=True)
class _Turn:
    """One request of a program."""

    session: ProgramSession
    key: str
    number: int
    action_texts: dict[str, str]
    is_only: bool


@dataclass(frozen=True, slots=True)
class GatewayService:
    """Answers the requests of a run's programs; a `CompletionService`."""

    turn_runner: TurnRunner
    adapter: ActionAdapter
    sessions: ProgramSessions
    max_turns: int
    """Maximum number of requests per agent."""
    tokens: TokenRecorder | None = None
    """Records the tokens of requests. Programs do not notice it."""
    _turns: Counter[str] = field(default_factory=Counter)
    _action_texts: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    """The model's text of each action, by agent and call id."""

    @property
    def model(self) -> str:
        return self.adapter.config.model

    async def complete(self, agent: str, completion: CompletionRequest) -> Reply:
        session = self.sessions.get(agent)
        if session.ended_by is not None:
            raise _as_backend_error(session.ended_by)
        try:
            reply = await self._answer(session, completion)
        except BackendError as error:
            session.on_failure(error)
            raise
        except RunStopped as stopped:
            session.stop(stopped)
            raise _as_backend_error(stopped) from stopped
        session.failures = 0
        return reply

    def leave(self, agent: str) -> None:
        """Forgets a finished agent."""
        self._turns.pop(agent, None)
        self._action_texts.pop(agent, None)
        if self.tokens is not None:
            self.tokens.forget(agent)

    async def _answer(self, session: ProgramSession, completion: CompletionRequest) -> Reply:
        agent, action_texts = session.job.key, self._action_texts[session.job.key]
        number = self._turns[agent]
        if number >= self.max_turns:
            message = f"No final answer in {number} turns: the program requested another. Raise max_turns."
            raise BackendError(ErrorKind.MAX_TURNS, message)
        self._turns[agent] += 1
        with session.request_in_progress(completion) as is_only:
            key = agent if is_only else f"{agent}.side{number}"
            request = _Turn(session, key, number, action_texts, is_only)
            sent, fact, reply = await self._send_with_choice(request, completion)
            action_texts.update((call.id, fact.reply.text) for call in reply.calls if not fact.reply.calls)
            session.on_reply(completion, sent, reply, fact.queued)
        return reply

    async def _send_with_choice(self, turn: "_Turn", completion: CompletionRequest) -> tuple[Request, Replied, Reply]:
        """Sends a request with a named tool choice. A server that does not support it rejects or ignores it; then the
        request is repeated with only that tool offered. Later requests offer all tools, because leaving some out
        changes the prompt's prefix."""
        try:
            found = await self._send(turn, completion, completion)
        except BackendError as error:
            if not completion.tool_name or error.kind is not ErrorKind.BAD_REQUEST:
                raise
            choice: Literal["auto", "required"] = "auto"
        else:
            if keeps_choice(completion, found[2]):
                return found
            turn.session.usage += found[1].reply.usage
            choice = "required"
        tools = tuple(tool for tool in completion.tools if tool.name == completion.tool_name)
        found = await self._send(turn, completion, replace(completion, tools=tools, tool_choice=choice, tool_name=""))
        if not keeps_choice(completion, found[2]):
            message = f"The model did not call {completion.tool_name!r}, the tool named in the request's tool_choice."
            raise BackendError(ErrorKind.INVALID_OUTPUT, message)
        return found

    async def _send(
        self, turn: "_Turn", completion: CompletionRequest, replacement: CompletionRequest
    ) -> tuple[Request, Replied, Reply]:
        """Sends `replacement` in place of `completion`."""
        index = turn.session.job.index
        request = self.adapter.request(replacement, turn.key, turn.number, turn.action_texts, index)
        step = Generate(request, self.max_turns - turn.number)
        if self.tokens is not None:
            thread = _thread(request)
            step = await self.tokens.continued(step, turn.session.job.key, thread)
        fact = await (
            self._run_turn(turn.session, step) if turn.is_only else self._run_side_turn(turn.session, turn.key, step)
        )
        if self.tokens is not None:
            fact = self.tokens.keep(turn.session.job.key, step.request, fact, turn.session.attempt, thread)
        return request, fact, self.adapter.reply(completion, fact.reply, turn.number)

    async def _run_turn(self, session: ProgramSession, step: Generate) -> Replied:
        task = asyncio.current_task()
        assert task is not None
        return await self.turn_runner.turn(session.job, step, None, task)

    async def _run_side_turn(self, session: ProgramSession, key: str, step: Generate) -> Replied:
        """Sends a request while another one of the same program is in progress. The server sees it as a separate
        agent."""
        task, gate = asyncio.current_task(), self.turn_runner.admission
        assert task is not None
        job = replace(session.job, key=key)
        slot = await gate.admit(job, ())
        try:
            return await self.turn_runner.turn(job, step, slot, task)
        finally:
            slot.release()
            gate.release(key)


def _thread(request: Request) -> str:
    """Identifies a conversation of a program by its beginning. A conversation without tools, such as for a title, is
    separate."""
    first = next((message.text for message in request.messages if isinstance(message, User)), "")
    beginning = f"{bool(request.prompt.tools)}{first}"
    return blake2b(beginning.encode(errors="replace"), digest_size=4).hexdigest()


def _as_backend_error(end: BackendError | RunStopped) -> BackendError:
    return BackendError(end.kind, str(end))
