"""Handover of agents from one backend of a shared run to the next one (`fallback=`), with their conversations. Waits
for or ends the agents that remain at the old backend."""

from collections.abc import Mapping, Sequence

import orjson

from ..core.coordinator import Completion, Coordinator, Documents, End
from ..core.facts import Fact
from ..core.results import AgentError
from ..store.codec import decode, encode
from .membership import best_effort, worker_name

_MAX_BATCH = 256
_WAIT = 1.0
"""Seconds between two checks whether an agent has returned to the queue."""


class BroughtConversations:
    """Conversations that agents bring along. They are stored at the coordinator of the next backend, where any worker
    that gets an agent finds its conversation."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    async def save(self, brought: Mapping[str, Sequence[Fact]]) -> None:
        """Saves the facts of agents by key, before the agents are submitted. Facts that another process has saved are
        kept. Raises StoreError."""
        for key, facts in brought.items():
            pairs = [(kind, orjson.Fragment(data)) for kind, data in map(encode, facts)]
            await self._documents.compare_and_set(_name(key), None, orjson.dumps(pairs))

    async def facts(self, key: str) -> Sequence[Fact]:
        """Raises StoreError."""
        data = (await self._documents.read(_name(key))).data
        return () if data is None else [decode(kind, orjson.dumps(fields)) for kind, fields in orjson.loads(data)]


async def withdraw_agents(coordinator: Coordinator, error: AgentError, ttl: float) -> None:
    """Ends with this error all agents of a run that no worker holds, and waits for workers to give up the others: an
    agent ends at one backend before it begins at the next. Raises StoreError."""
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
