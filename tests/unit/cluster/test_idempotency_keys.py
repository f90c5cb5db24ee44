"""The keys of repeated writes are the run's own, whoever makes them."""

from pathlib import Path
from typing import Any

from tests.support.redis_server import redis_of_its_own

from batch_agent import BatchAgent, Tool
from batch_agent.cluster.membership import Membership
from batch_agent.cluster.memory.memory_coordinator import MemoryCoordinator
from batch_agent.cluster.shared_store import SharedStore
from batch_agent.store.memory_store import MemoryStore
from batch_agent.store.sqlite import SqliteStore
from batch_agent.testing import ScriptedBackend, by_turn, call, say


def store_at(coordinator: MemoryCoordinator, name: str) -> SharedStore:
    member = Membership(coordinator.work, coordinator.updates, name, 1.0)
    return SharedStore(member, coordinator.documents, coordinator.facts)


async def test_workers_of_a_run_share_its_id_and_other_runs_have_other_ids() -> None:
    one, other = MemoryCoordinator(MemoryStore()), MemoryCoordinator(MemoryStore())
    names = [await store_at(coordinator, worker).identity() for coordinator in (one, other) for worker in "ab"]
    assert names[0] == names[1] != names[2] == names[3]
    assert all(names)


async def test_a_coordinator_over_a_checkpoint_has_the_stored_run_id(tmp_path: Path) -> None:
    names = []
    for _ in range(2):
        coordinator = MemoryCoordinator(SqliteStore(tmp_path))
        await coordinator.open()
        names.append(await store_at(coordinator, "a").identity())
        await coordinator.aclose()
    assert names[0] == names[1]


async def test_runs_on_one_redis_have_different_idempotency_keys() -> None:
    slips: list[str] = []

    @Tool.define(idempotency_arg="slip")
    async def pay(line: str, slip: str) -> str:
        slips.append(slip)
        return "paid"

    backend = ScriptedBackend(by_turn(call("pay", line="rent"), say("done")))
    options: dict[str, Any] = {"task": "{it}", "inputs": ["a", "b"], "tools": [pay], "backend": backend}
    with redis_of_its_own() as server:
        for run_id in ("january", "february"):
            results = await BatchAgent.run(**options, store=server.url, run_id=run_id)
            assert all(result.ok for result in results)
    assert len(slips) == len(set(slips)) == 4
    assert len({slip.partition("-")[0] for slip in slips}) == 2
