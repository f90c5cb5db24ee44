"""The requests of programs, sent as those of any agent: the same slots, cache ledger, retries, budget and events."""

import asyncio
from collections import Counter, defaultdict
from dataclasses import field, replace
from typing import Literal

from ..agent.conversation import Generate
from ..core.errors import BackendError, ErrorKind
from ..core.facts import Replied
from ..core.fast_dataclass import dataclass
from ..core.program_runtime import CompletionRequest
from ..core.requests import Reply, Request
from ..core.run_failure import RunStopped
from ..engine.turn_runner import BackendTurnRunner
from .action_adapter import ActionAdapter, keeps_choice
from .program_sessions import ProgramSession, ProgramSessions


@dataclass(frozen=True, slots=True)
class _Turn:
    """One request of a program."""

    visit: ProgramSession
    key: str
    number: int
    said: dict[str, str]
    is_alone: bool


@dataclass(frozen=True, slots=True)
class GatewayService:
    """Answers the programs of a run; a `Desk`."""

    asking: BackendTurnRunner
    acting: ActionAdapter
    visits: ProgramSessions
    max_turns: int
    """Requests that the program of one agent may make."""
    _turns: Counter[str] = field(default_factory=Counter)
    _said: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    """By agent and call: what the model wrote, where that was an action."""

    @property
    def model(self) -> str:
        return self.acting.rules.model

    async def complete(self, agent: str, asked: CompletionRequest) -> Reply:
        visit = self.visits.of(agent)
        if visit.end is not None:
            raise _told(visit.end)
        try:
            reply = await self._answer(visit, asked)
        except BackendError as error:
            visit.refused(error)
            raise
        except RunStopped as stopped:
            visit.stop(stopped)
            raise _told(stopped) from stopped
        visit.failures = 0
        return reply

    def leave(self, agent: str) -> None:
        """Forgets an agent that is done."""
        self._turns.pop(agent, None)
        self._said.pop(agent, None)

    async def _answer(self, visit: ProgramSession, asked: CompletionRequest) -> Reply:
        agent, said = visit.job.key, self._said[visit.job.key]
        turn = self._turns[agent]
        if turn >= self.max_turns:
            message = f"No final answer in {turn} turns: the program still asked the model. Raise max_turns."
            raise BackendError(ErrorKind.MAX_TURNS, message)
        self._turns[agent] += 1
        with visit.asking(asked) as is_alone:
            key = agent if is_alone else f"{agent}.side{turn}"
            turned = _Turn(visit, key, turn, said, is_alone)
            sent, fact, reply = await self._kept_to_choice(turned, asked)
            said.update((call.id, fact.reply.text) for call in reply.calls if not fact.reply.calls)
            visit.answered(asked, sent, reply, fact.queued)
        return reply

    async def _kept_to_choice(self, turned: "_Turn", asked: CompletionRequest) -> tuple[Request, Replied, Reply]:
        """A server that does not know a choice by name refuses it or passes over it: then only that tool is offered,
        for this once, since the prompt does not begin then as the others do."""
        try:
            found = await self._send(turned, asked, asked)
        except BackendError as error:
            if not asked.tool_name or error.kind is not ErrorKind.BAD_REQUEST:
                raise
            choice: Literal["auto", "required"] = "auto"
        else:
            if keeps_choice(asked, found[2]):
                return found
            turned.visit.usage += found[1].reply.usage
            choice = "required"
        tools = tuple(tool for tool in asked.tools if tool.name == asked.tool_name)
        found = await self._send(turned, asked, replace(asked, tools=tools, tool_choice=choice, tool_name=""))
        if not keeps_choice(asked, found[2]):
            message = f"The model does not call {asked.tool_name!r}, the tool that the request's tool_choice names."
            raise BackendError(ErrorKind.INVALID_OUTPUT, message)
        return found

    async def _send(
        self, turned: "_Turn", asked: CompletionRequest, sent: CompletionRequest
    ) -> tuple[Request, Replied, Reply]:
        """`sent`: in place of `asked`."""
        request = self.acting.request(sent, turned.key, turned.number, turned.said)
        step = Generate(request, self.max_turns - turned.number)
        fact = await (
            self._next(turned.visit, step) if turned.is_alone else self._beside(turned.visit, turned.key, step)
        )
        return request, fact, self.acting.reply(asked, fact.reply, turned.number)

    async def _next(self, visit: ProgramSession, step: Generate) -> Replied:
        task = asyncio.current_task()
        assert task is not None
        return await self.asking.turn(visit.job, step, None, task)

    async def _beside(self, visit: ProgramSession, key: str, step: Generate) -> Replied:
        """A request that is made while another one of the same program is under way: to the server, another agent."""
        task, gate = asyncio.current_task(), self.asking.gate
        assert task is not None
        job = replace(visit.job, key=key)
        slot = await gate.first_turn(job, ())
        try:
            return await self.asking.turn(job, step, slot, task)
        finally:
            slot.release()
            gate.leave(key)


def _told(end: BackendError | RunStopped) -> BackendError:
    return BackendError(end.kind, str(end))
