"""The requests of programs, sent as those of any agent: the same slots, cache ledger, retries, budget and events."""

import asyncio
from collections import Counter, defaultdict
from dataclasses import field, replace

from ..agent.conversation import Generate
from ..core.errors import BackendError, ErrorKind, RunStopped
from ..core.facts import Replied
from ..core.quick import dataclass
from ..core.requests import Reply
from ..core.runtime import Asked
from .acting import Acting
from .asking import Asking
from .visits import Visit, Visits


@dataclass(frozen=True, slots=True)
class Serving:
    """Answers the programs of a run; a `Desk`."""

    asking: Asking
    acting: Acting
    visits: Visits
    max_turns: int
    """Requests that the program of one agent may make."""
    _turns: Counter[str] = field(default_factory=Counter)
    _said: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    """By agent and call: what the model wrote, where that was an action."""

    @property
    def model(self) -> str:
        return self.acting.rules.model

    async def answer(self, agent: str, asked: Asked) -> Reply:
        visit = self.visits.of(agent)
        if visit.end is not None:
            raise _told(visit.end)
        try:
            return await self._answer(visit, asked)
        except BackendError as error:
            visit.refusal = error
            if error.kind in (ErrorKind.BUDGET, ErrorKind.MAX_TURNS):
                visit.stop(error)
            raise
        except RunStopped as stopped:
            visit.stop(stopped)
            raise _told(stopped) from stopped

    def leave(self, agent: str) -> None:
        """Forgets an agent that is done."""
        self._turns.pop(agent, None)
        self._said.pop(agent, None)

    async def _answer(self, visit: Visit, asked: Asked) -> Reply:
        agent, said = visit.job.key, self._said[visit.job.key]
        turn = self._turns[agent]
        if turn >= self.max_turns:
            message = f"No final answer in {turn} turns: the program still asked the model. Raise max_turns."
            raise BackendError(ErrorKind.MAX_TURNS, message)
        self._turns[agent] += 1
        with visit.asking(asked) as is_alone:
            key = agent if is_alone else f"{agent}.side{turn}"
            step = Generate(self.acting.request(asked, key, turn, said), self.max_turns - turn)
            fact = await (self._next(visit, step) if is_alone else self._beside(visit, key, step))
            reply = self.acting.reply(asked, fact.reply, turn)
            said.update((call.id, fact.reply.text) for call in reply.calls if not fact.reply.calls)
            visit.answered(asked, step.request, reply, fact.queued)
        return reply

    async def _next(self, visit: Visit, step: Generate) -> Replied:
        task = asyncio.current_task()
        assert task is not None
        return await self.asking.turn(visit.job, step, None, task)

    async def _beside(self, visit: Visit, key: str, step: Generate) -> Replied:
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
