"""The KV cache that all workers of a run share, on every coordinator."""

import asyncio
from contextlib import AsyncExitStack

from tests.contract.coordinator_contract import Meet, meet
from tests.support.redis_server import redis_server

from batch_agent.cluster.shared_kv_cache import KvSharing, share_kv_caches
from batch_agent.core.agent_config import FirstPrompt
from batch_agent.engine.residency import Residency
from batch_agent.schedule.kv_ledger import KvLedger
from batch_agent.schedule.slot_queue import Priority

__all__ = ["meet", "redis_server"]

FRESH = Priority(is_fresh=True)
PATIENCE = 20.0


def residency() -> Residency:
    """Seven agents of 1000 tokens fit, and they are known not to grow."""
    ledger = KvLedger(8000)
    ledger._context_growth.finished = 1
    return Residency(ledger, 0)


async def test_all_agents_of_three_workers_get_their_turn_and_never_more_than_fit(meet: Meet) -> None:
    workers = [residency() for _ in range(3)]
    most = 0

    async def agent(worker: Residency, name: str) -> None:
        nonlocal most
        await worker.admit(name, FirstPrompt(4000), FRESH)
        most = max(most, sum(each.ledger.residents for each in workers))
        await asyncio.sleep(0.01)
        worker.release(name)

    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE):
        for number, worker in enumerate(workers):
            sharing = share_kv_caches(
                (await meet()).documents, f"worker {number}", {"a": worker}, ttl=5.0, interval=0.05
            )
            await stack.enter_async_context(sharing)
        async with asyncio.TaskGroup() as group:
            for worker in workers:
                for name in range(30):
                    group.create_task(agent(worker, str(name)))
    assert most == 7


async def test_the_tokens_of_a_worker_that_died_come_back(meet: Meet) -> None:
    dead, living = residency(), residency()
    async with asyncio.timeout(PATIENCE):
        sharing = KvSharing((await meet()).documents, "dead", "a", dead, 0.5)
        await sharing.renew()
        await dead.admit("1", FirstPrompt(4 * 7000), FRESH)
        async with share_kv_caches((await meet()).documents, "living", {"a": living}, ttl=5.0, interval=0.05):
            await living.admit("2", FirstPrompt(4 * 7000), FRESH)  # does not fit beside the first
    assert living.ledger.counts.overcommitted == 0
