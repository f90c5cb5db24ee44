"""Workers that share a KV cache never have more in it than fits, whatever happens to them and to their coordinator."""

import asyncio
import random
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.test_fair_share import LASTS, LONGEST, Link, Papers, entered, fate

from batch_agent.cluster.shared_kv_cache import share_kv_caches
from batch_agent.core.agent_config import FirstPrompt
from batch_agent.engine.residency import Residency
from batch_agent.schedule.kv_account import KvAccount, KvDemand, KvEntry, KvUse, grant
from batch_agent.schedule.kv_ledger import KvLedger
from batch_agent.schedule.slot_queue import Priority
from batch_agent.testing import run_virtual


@pytest.mark.slow
@given(st.integers(0, 10**9), st.integers(1, 5), st.sampled_from([900, 1500, 4000, 9000]))
def test_residents_of_all_workers_fit_and_every_agent_gets_its_turn(seed: int, workers: int, capacity: int) -> None:
    dice = random.Random(seed)

    async def main() -> None:
        papers = Papers()
        living: dict[int, KvLedger] = {}

        def check() -> None:
            known = [each for ledger in living.values() for each in ledger._agents.values() if each.is_resident]
            fitting = [each.own for each in known if not each.is_overcommitted]
            assert len(fitting) <= 1 or sum(fitting) <= 0.9 * capacity

        async def agent(residency: Residency, name: str) -> None:
            await asyncio.sleep(dice.choice([0.0, 3.0]) * dice.random())
            try:
                async with asyncio.timeout(dice.choice([None, None, 1.0])):
                    await residency.admit(name, FirstPrompt(4 * dice.choice([300, 1000])), Priority(True))
            except TimeoutError:
                return
            try:
                check()
                await asyncio.sleep(LONGEST * dice.random() / 3)
                with residency.lease(name, ["look"]):
                    await asyncio.sleep(LONGEST * dice.random() / 3)
                await asyncio.sleep(LONGEST * dice.random() / 3)
            finally:
                residency.release(name)

        async def worker(number: int) -> None:
            await asyncio.sleep(dice.choice([0.0, 8.0]) * dice.random())
            link = Link(papers, dice)
            ledger = KvLedger(capacity)
            ledger._context_growth.finished = 1
            residency = Residency(ledger, 0)

            async def work() -> None:
                async with AsyncExitStack() as stack:
                    await entered(stack, lambda: share_kv_caches(link, str(number), {"a": residency}, ttl=LASTS))
                    living[number] = ledger
                    stack.callback(living.pop, number)
                    async with asyncio.TaskGroup() as group:
                        for name in range(dice.choice([0, 3, 30])):
                            group.create_task(agent(residency, str(name)))

            await fate(link, dice, work())

        async with asyncio.timeout(1000), asyncio.TaskGroup() as group:
            for number in range(workers):
                group.create_task(worker(number))

    run_virtual(main())


SIZE = 100.0
steps = st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 6), st.booleans())


@given(st.lists(steps, max_size=40), st.integers(1, 20))
def test_entries_never_exceed_the_limit_whatever_the_order_of_transactions(
    taken: list[tuple[int, int, int, bool]], fitting: int
) -> None:
    """Each transaction: of which worker, how many of its agents ended and how many wait by then. Afterwards the worker
    uses all of its grant, or none of it."""
    account, limit = KvAccount({}), SIZE * fitting
    used = dict.fromkeys("abcd", 0)
    for place, (number, ended, waiting, uses_grant) in enumerate(taken):
        worker = "abcd"[number]
        used[worker] = max(0, used[worker] - ended)
        mine = KvUse(used[worker], SIZE * used[worker], SIZE * used[worker], waiting=waiting)
        required = mine.own + account.others(worker).own
        counts = range(1, waiting + 1)
        added = [KvUse(count, SIZE * count, SIZE * count, waiting=-count) for count in counts]
        demand = KvDemand(required, [required + SIZE * count for count in counts], added, limit)
        granted, entry = grant(account, worker, mine, demand, float(place))
        account = KvAccount({**account.entries, worker: KvEntry(1e9, entry.use, entry.starved_since)})
        assert sum(each.use.own + each.use.spare for each in account.entries.values()) <= max(limit, SIZE) + 1e-6
        if uses_grant:
            room = int((granted.tokens - required + 1e-6) // SIZE)
            used[worker] += max(0, min(room, int(min(granted.max_residents, 1e9)) - used[worker]))
        assert SIZE * sum(used.values()) <= max(limit, SIZE) + 1e-6


def test_a_waiter_is_admitted_as_soon_as_its_worker_asks_while_others_have_their_share() -> None:
    """No room is idle while an agent waits."""
    account = KvAccount({name: KvEntry(1e9, KvUse(2, 200.0, 200.0, waiting=3)) for name in "abc"})
    mine = KvUse(1, 100.0, 100.0, waiting=3)
    demand = KvDemand(700.0, [800.0], [KvUse(1, 100.0, 100.0, waiting=-1)], 800.0)
    assert grant(account, "d", mine, demand, 0.0)[1].use.residents == 2
