"""Coordinator in memory, with the facts in a store: for workers in one process, or inside an actor for the workers of a
cluster."""

from collections.abc import Sequence

from ...core.coordinator import RejectedInput
from ...core.protocols.store import Prices, Store
from ...store.codec import EncodedInput
from .calls import MemoryCallTable
from .documents import MemoryDocuments
from .facts import MemoryFactTable
from .updates import MemoryUpdateStream
from .work_queue import MemoryWorkQueue


class MemoryCoordinator:
    """Only the facts, the plan and the record of inputs are durable. A process that opens the same store again submits
    the same work and finds the finished agents."""

    is_durable = False

    def __init__(self, store: Store) -> None:
        self._store = store
        self.updates = MemoryUpdateStream()
        self.documents = MemoryDocuments(store)
        self.inputs = MemoryInputRecord(store)
        self.work = MemoryWorkQueue(store, self.updates)
        self.facts = MemoryFactTable(store, self.work, self.updates)
        self.calls = MemoryCallTable(self.work.is_alive, self.updates)

    async def open(self) -> None:
        await self._store.open()

    async def aclose(self) -> None:
        await self._store.aclose()

    async def delete_run(self) -> None:
        """Deletes the run, except for the facts, which belong to the store."""
        self.work.clear()
        self.documents.clear()
        self.calls.clear()


class MemoryInputRecord:
    """Record of inputs in the store of the facts."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def save(self, inputs: Sequence[bytes], prices: Prices | None) -> None:
        self._store.save_run(list(map(EncodedInput, inputs)), prices)

    async def reject(self, rejected: Sequence[RejectedInput]) -> None:
        for each in rejected:
            self._store.reject(each.index, EncodedInput(each.data), each.error)
