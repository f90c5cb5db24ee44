"""Callers of a run, which keep its workers."""

import pytest

from batch_agent import StoreError
from batch_agent.cluster.memory.documents import MemoryDocuments
from batch_agent.cluster.presence import ClientPresence
from batch_agent.store.memory_store import MemoryStore
from batch_agent.testing import run_virtual


class Contended(MemoryDocuments):
    """Documents for which other processes are faster, so many times."""

    def __init__(self, times: float) -> None:
        super().__init__(MemoryStore())
        self.left = times

    async def compare_and_set(self, name: str, old: bytes | None, new: bytes | None) -> bool:
        self.left -= 1
        return self.left < 0 and await super().compare_and_set(name, old, new)


def test_a_caller_is_registered_though_many_others_come_at_the_same_time() -> None:
    async def main() -> tuple[bool, bool]:
        documents = Contended(50)
        async with ClientPresence(documents, 15.0).present("one"):
            during = await ClientPresence(documents, 15.0).any_present()
        return during, await ClientPresence(documents, 15.0).any_present()

    assert run_virtual(main()) == (True, False)


def test_a_caller_that_cannot_be_registered_says_so_instead_of_losing_its_workers() -> None:
    async def main() -> None:
        async with ClientPresence(Contended(float("inf")), 15.0).present("one"):
            pass

    with pytest.raises(StoreError, match="'callers' could not be changed in 20 attempts because of contention"):
        run_virtual(main())
