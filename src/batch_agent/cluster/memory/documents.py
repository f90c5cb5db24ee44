"""Documents in memory. The plan and the run's identity are in the store of the facts."""

import orjson

from ... import aio
from ...core.coordinator import IDENTITY, PLAN, Document
from ...core.protocols.store import Store


class MemoryDocuments:
    """Documents of a coordinator in memory."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._documents: dict[str, bytes] = {}

    def clear(self) -> None:
        """Deletes the documents that are not in the store."""
        self._documents.clear()

    async def read(self, name: str) -> Document:
        if name == PLAN:
            plan = await self._store.plan()
            return Document(None if plan is None else orjson.dumps(plan), aio.now())
        if name == IDENTITY:
            return Document((await self._store.identity()).encode(), aio.now())
        return Document(self._documents.get(name), aio.now())

    async def compare_and_set(self, name: str, old: bytes | None, new: bytes | None) -> bool:
        if (await self.read(name)).data != old:
            return False
        if name == PLAN and new is not None:
            await self._store.save_plan(orjson.loads(new))
        elif new is None:
            self._documents.pop(name, None)
        else:
            self._documents[name] = new
        return True
