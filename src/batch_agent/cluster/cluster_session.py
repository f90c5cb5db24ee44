"""One process's participation in a distributed run."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from ..core.agent_config import Job
from ..core.coordinator import Completion, Coordinator, RejectedInput
from ..core.errors import StoreError
from ..core.protocols.event_sink import EventSink
from ..core.protocols.store import Prices
from ..core.results import AgentResult
from ..engine.admission import AdmissionController
from ..engine.budget_pool import BudgetPool
from ..schedule.budget import Amount
from ..scores.score_book import AnswerScores
from ..store.codec import encode_input, encode_inputs
from .events.relay import EventRelay
from .leased_source import LeasedSource
from .membership import Membership, best_effort, worker_name
from .presence import ClientPresence
from .run_files import add_scores
from .shared_budget import share_budget
from .shared_kv_cache import share_kv_caches
from .shared_limits import LimitSharing, share_limits, workers_of
from .shared_store import SharedStore
from .shared_tool_calls import ClusterToolCalls

_MAX_SHOWN = 3
_MAX_REJECTED = 256
"""Maximum number of rejected inputs in one message."""


class ClusterSession:
    """State that a worker or submitter shares with the other processes of the run."""

    def __init__(
        self,
        coordinator: Coordinator,
        member: Membership,
        store: SharedStore,
        calls: ClusterToolCalls,
        submitters: ClientPresence,
        events: EventRelay,
    ) -> None:
        self.coordinator = coordinator
        self.member = member
        self.store = store
        self.calls = calls
        self.submitters = submitters
        self.events = events
        """Receives the events of this process and of the others."""
        self.retry_failed = False
        """Whether failed agents are run again."""
        self.has_checkpoint = False
        """Whether the coordinator keeps the facts in a checkpoint directory, where others can read them."""
        self.flow: ClusterSession = self
        """The session of the flow to which this stage belongs, or the session itself. The stages of a flow share
        limits, budget and tool calls."""
        self.stages: list[ClusterSession] = [self]
        """Sessions that have work: the stages of a flow, or the session itself."""
        self._limits: LimitSharing | None = None

    def add_stage(self, stage: "ClusterSession") -> None:
        """Adds a stage, which makes this the session of a flow."""
        if self.stages == [self]:
            self.stages = []
        self.stages.append(stage)
        stage.flow = self

    async def check_alone(self) -> None:
        """Checks that no other worker is active, before a change that would affect all of them. Raises StoreError
        otherwise."""
        flow = self.flow
        if others := await workers_of(flow.coordinator.documents) - {flow.member.name}:
            raise StoreError(
                f"{len(others)} other workers are active in this run and would continue with its old definition: "
                f"{', '.join(sorted(others)[:_MAX_SHOWN])}. Stop them first, or use another run_id."
            )

    @property
    def _keeps_inputs(self) -> bool:
        return self.has_checkpoint or self.coordinator.is_durable

    @asynccontextmanager
    async def share_limits(self, gates: Mapping[str, AdmissionController]) -> AsyncIterator[None]:
        """Shares the limits of the servers behind these admission controllers, given by name. Raises StoreError."""
        documents, name, ttl = self.coordinator.documents, self.member.name, self.member.ttl
        residencies = {server: gate.residency for server, gate in gates.items() if gate.residency is not None}
        async with (
            share_limits(documents, name, gates, ttl=ttl) as self._limits,
            share_kv_caches(documents, name, residencies, ttl=ttl),
        ):
            yield

    def share_budget_pool(self, pool: BudgetPool) -> AbstractAsyncContextManager[bool]:
        """Shares the budget. Yields whether this process opened the account; if so, it counts only tokens, because
        prices are not known yet. Raises StoreError."""

        async def spent() -> Amount:
            used = [await each.coordinator.facts.spent() for each in self.stages]
            return Amount(sum(each.input + each.output for each in used))

        return share_budget(self.coordinator.documents, self.member.name, pool, spent, ttl=self.member.ttl)

    def source(self, gate: AdmissionController, *, ends_by_itself: bool = False) -> LeasedSource:
        """Source of work for this process. `ends_by_itself`: whether it ends when no process has work left."""
        flow = self.flow
        return LeasedSource(
            self.member,
            self.store,
            slots=lambda: gate.slots.limit,
            workers=lambda: flow._limits.workers if flow._limits else 1,
            is_finished=flow._is_finished if ends_by_itself else None,
        )

    async def submit(self, jobs: Sequence[Job]) -> dict[str, Completion]:
        """Raises StoreError."""
        return await self.coordinator.work.submit(jobs, retry_failed=self.retry_failed)

    async def save_run(self, inputs: Sequence[Any], prices: Prices | None) -> None:
        """Records all inputs and the prices of the model, for readers of the run. Raises StoreError."""
        if self._keeps_inputs:
            await self.coordinator.inputs.save(await asyncio.to_thread(encode_inputs, inputs), prices)

    async def save_scores(self, scores: AnswerScores) -> None:
        """Stores the scores with the run, for readers on any machine."""
        if self.coordinator.is_durable:
            await best_effort(add_scores(self.coordinator.documents, scores))

    async def reject(self, failed: Sequence[AgentResult]) -> None:
        """Records why agents were not started, for readers of the run. Raises StoreError."""
        for first in range(0, len(failed) if self._keeps_inputs else 0, _MAX_REJECTED):
            chunk = failed[first : first + _MAX_REJECTED]
            await self.coordinator.inputs.reject(
                [
                    RejectedInput(each.index, encode_input(each.input) or b"", each.error)
                    for each in chunk
                    if each.error is not None
                ]
            )

    async def end(self, result: AgentResult) -> None:
        """Reports that an agent has ended in this process, after writing its facts. Raises LeaseLost and StoreError."""
        if result.error is not None and not result.turns and self.coordinator.is_durable:
            await self.reject([result])  # its job, the only other record of it, is deleted when it ends
        await self.store.end(Completion(result.key, result.error, result.timing.total, self.member.name))

    async def _is_finished(self) -> bool:
        """Whether no stage has work or waits for work: the last result of one stage may be the first input of the
        next."""
        for each in self.stages:
            if await each.coordinator.work.pending_count():
                return False
        return not await self.submitters.any_present()


@asynccontextmanager
async def join(
    coordinator: Coordinator,
    *,
    ttl: float,
    retry_failed: bool,
    events: EventSink | None = None,
    is_submitter: bool = True,
    has_checkpoint: bool = False,
) -> AsyncIterator[ClusterSession]:
    """Joins the run for the duration of the block. At its end, other workers may take over unfinished agents.
    `retry_failed`: run failed agents again, unless there are other submitters, which share their results.
    `has_checkpoint`: whether the coordinator keeps the facts in a checkpoint directory. Raises StoreError."""
    await coordinator.open()
    try:
        documents, updates = coordinator.documents, coordinator.updates
        member = Membership(coordinator.work, updates, worker_name(), ttl, wants_completions=is_submitter)
        store = SharedStore(member, documents, coordinator.facts, sends_starts=has_checkpoint)
        calls = ClusterToolCalls(coordinator.calls, documents, member.name)
        member.on_updates(lambda updates: calls.on_completed(updates.completed_calls))
        relay = EventRelay(updates, member.name, events, is_submitter=is_submitter)
        member.on_updates(lambda updates: relay.on_messages(updates.published))
        session = ClusterSession(coordinator, member, store, calls, ClientPresence(documents, ttl), relay)
        session.has_checkpoint = has_checkpoint
        session.retry_failed = retry_failed and not await session.submitters.any_present()
        async with member.active(), store.flush_in_background(), relay.open():
            try:
                yield session
            finally:
                await calls.aclose()
    finally:
        await coordinator.aclose()
