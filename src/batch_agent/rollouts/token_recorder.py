"""Recorder that keeps the tokens of each turn in the checkpoint, and sends histories as ids."""

import asyncio
from typing import Any

from ..agent.conversation import Generate
from ..core.agent_config import Job
from ..core.errors import BackendError, ErrorKind
from ..core.facts import Replied, Sampled
from ..core.protocols.agent_executor import Slot
from ..core.protocols.backend import Backend, RendersPrompts
from ..core.protocols.store import Store
from ..core.requests import Reply, Request, TokenRequest
from ..engine.engine import Leave
from ..engine.turn_runner import OnAttempt, TurnRunner, WrappedTurnRunner
from .continuation import LastTurn
from .joint_renderer import JointRenderer
from .token_record import TokenRecord, encode_record

MAX_ID_BYTES = 256 * 1024 * 1024
"""Maximum bytes of the ids of agents in progress: 64 million tokens. Beyond that, the server renders the next turn of
an agent."""
_NO_IDS = (
    "The server returned no token ids, which tokens=True needs. Use vLLM or SGLang in a recent version (tested with "
    "vLLM 0.32 and SGLang 0.5.23), or omit tokens=True."
)


class TokenRecorder:
    """Tokens of a run: records them for each turn, and remembers them for the turn that continues it."""

    def __init__(self, store: Store, server: Backend, max_bytes: int = MAX_ID_BYTES) -> None:
        self._store = store
        self._renderer = JointRenderer(server.render_prompt) if isinstance(server, RendersPrompts) else None
        self._threads: dict[str, dict[str, LastTurn]] = {}
        """Conversations by agent, least recently used first."""
        self._size = 0
        self._max_bytes = max_bytes
        self.turns = 0
        self.breaks = 0
        """Number of turns whose prompt does not continue the previous turn."""

    async def continued(self, step: Generate, agent: str, thread: str = "") -> Generate:
        """The step, with a prompt of ids if it continues the previous turn."""
        last, request = self._last(agent, thread), step.request
        if last is None or self._renderer is None or not last.is_continued_by(request):
            return step
        added = await self._renderer.addition(last, request)
        if added is None:
            return step
        return Generate(request.with_tokens(TokenRequest(last.tokens.sequence + added)), step.turns_left)

    def keep(self, agent: str, request: Request, fact: Replied, attempt: str = "", thread: str = "") -> Replied:
        """Records the tokens of a turn, and returns the reply without them. Raises BackendError if it has none."""
        full, turn = fact.reply, request.turn
        tokens = full.tokens
        if tokens is None:
            raise BackendError(ErrorKind.BAD_REQUEST, _NO_IDS)
        reply = Reply(full.text, full.finish, full.usage, full.calls, full.thoughts)
        sent = request.tokens.prompt_ids if request.tokens is not None else b""
        as_ids = bool(sent) and sent == tokens.prompt
        if sent and not as_ids:
            self._renderer = None  # the server takes no ids; the record has what it rendered itself
        last = self._last(agent, thread)
        previous = last.tokens.sequence if last is not None and last.number < turn else b""
        record = TokenRecord(tokens, turn, attempt, thread, 0, as_ids)
        self._store.record(agent, Sampled(encode_record(record, previous)))
        self.turns += 1
        if previous and not tokens.prompt.startswith(previous):
            self.breaks += 1
        rendered = last.rendered if last is not None and as_ids else len(tokens.prompt)
        self._remember(agent, thread, LastTurn(turn, request.messages, reply, tokens, rendered), last)
        return Replied(reply, fact.queued, fact.seconds, fact.ttft, fact.attempts, fact.work, fact.cut_at)

    def forget(self, agent: str) -> None:
        """Forgets an agent that has ended."""
        self._size -= sum(turn.size for turn in self._threads.pop(agent, {}).values())

    def around(self, turns: TurnRunner, leave: Leave | None) -> tuple[TurnRunner, Leave]:
        """Wraps a turn runner so that tokens are kept. Also returns the function to call when an agent has ended."""

        async def turn(
            job: Job,
            step: Generate,
            slot: Slot | None,
            task: "asyncio.Task[Any]",
            on_attempt: OnAttempt | None = None,
        ) -> Replied:
            if job.key in self._threads:
                try:
                    step = await self.continued(step, job.key)
                except BaseException:
                    if slot is not None:
                        slot.release()
                    raise
            fact = await turns.turn(job, step, slot, task, on_attempt)
            return self.keep(job.key, step.request, fact)

        async def leave_and_forget(agent: str) -> None:
            self.forget(agent)
            if leave is not None:
                await leave(agent)

        return WrappedTurnRunner(turns, turn), leave_and_forget

    def report(self) -> str | None:
        """Report for the user at the end of the run; None if every prompt continued the previous turn."""
        if not self.breaks:
            return None
        return (
            f"{self.breaks:,} of {self.turns:,} turns do not continue the tokens of the turn before: their histories "
            "were rendered again. `batch-agent export --format trl` cuts the rollouts there; docs/rollouts.md says why."
        )

    def _last(self, agent: str, thread: str) -> LastTurn | None:
        threads = self._threads.get(agent)
        return None if threads is None else threads.get(thread)

    def _remember(self, agent: str, thread: str, turn: LastTurn, last: LastTurn | None) -> None:
        threads = self._threads.pop(agent, {})
        threads[thread] = turn
        self._threads[agent] = threads
        self._size += turn.size - (0 if last is None else last.size)
        while self._size > self._max_bytes:
            self.forget(next(iter(self._threads)))
