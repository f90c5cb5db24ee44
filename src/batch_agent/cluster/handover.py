"""Handover of agents from one backend of a shared run to the next (`fallback=`): carries conversations along, and
withdraws agents that no worker runs."""

from collections.abc import Mapping, Sequence

import orjson

from ..core.coordinator import Completion, Coordinator, Documents, End
from ..core.facts import Fact
from ..core.results import AgentError
from ..store.codec import decode, encode
from .membership import best_effort, worker_name

_MAX_BATCH = 256
_WAIT = 1.0
"""Seconds between checks for agents that have returned to the queue."""


class BroughtConversations:
    """Conversations that agents carry along, stored at the coordinator of the next backend, where any worker that
    leases an agent finds its conversation."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    async def save(self, brought: Mapping[str, Sequence[Fact]]) -> None:
        """Saves facts by the keys of their agents, before these are submitted. What another caller has saved stays.
        Raises StoreError."""
        for key, facts in brought.items():
            pairs = [(kind, orjson.Fragment(data)) for kind, data in map(encode, facts)]
            await self._documents.compare_and_set(_name(key), None, orjson.dumps(pairs))

    async def facts(self, key: str) -> Sequence[Fact]:
        """Raises StoreError."""
        data = (await self._documents.read(_name(key))).data
        return () if data is None else [decode(kind, orjson.dumps(fields)) for kind, fields in orjson.loads(data)]


async def withdraw_agents(coordinator: Coordinator, error: AgentError, ttl: float) -> None:
    """Ends all agents of a run that no worker runs, with this error, and waits for the workers that run one: an agent
    ends at one backend before it begins at the next. Raises StoreError."""
    name, number = worker_name(), 0
    try:
        while True:
            leases = await coordinator.work.lease(name, _MAX_BATCH, ttl=ttl, wait=_WAIT)
            if leases:
                number += 1
                ends = [End(lease.token, Completion(lease.job.key, error, worker=name)) for lease in leases]
                await coordinator.facts.write(name, number, ends)
            elif not await coordinator.work.pending_count():
                return
    finally:
        await best_effort(coordinator.work.leave(name))


def _name(key: str) -> str:
    return f"brought:{key}"
