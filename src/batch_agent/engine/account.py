"""Account of a budget in a checkpoint: what may have been spent is durable before it is sent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..core.errors import StoreError
from ..core.interfaces import Account, Store
from ..schedule.budget import Amount
from ..schedule.portions import lease
from .spending import Purse

_AHEAD = 64
"""Parts of what is left of the budget, one of which is accounted for ahead: not every request waits for the disk. It is
what a kill costs beside the requests in flight."""
_UNLIMITED = float("inf")


@asynccontextmanager
async def keep_account(purse: Purse, store: Store) -> AsyncIterator[None]:
    """Nothing is sent that the store does not account for, for as long as the block runs. After a kill all that it
    accounts for counts as spent; at a regular end it is what was spent. Raises StoreError."""
    account, asked = _KeptAccount(purse, store), asyncio.Event()
    purse.share(asked.set, asks_again=True)
    keeping = asyncio.get_running_loop().create_task(account.keep(asked))
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])
        await account.close()


class _KeptAccount:
    """What the store accounts for, raised as it is needed."""

    def __init__(self, purse: Purse, store: Store) -> None:
        self._purse = purse
        self._store = store
        self._budget = purse.budget
        self._kept = Amount()

    async def keep(self, asked: asyncio.Event) -> None:
        while True:  # until it is cancelled with the run
            await asked.wait()
            asked.clear()
            needs = self._purse.needs
            wanted, _ = lease(self._budget.most, Amount(), (), self._budget.taken_here, needs, _AHEAD)
            raised = self._limited(wanted).or_more(self._kept)
            if raised == self._kept:
                continue  # who waits does so for requests under way
            try:
                await self._write(raised)
            except StoreError as error:
                self._purse.fail(error)
                return
            self._kept = raised
            self._purse.lease(raised, Amount())

    async def close(self) -> None:
        await self._write(self._budget.taken_here)

    def _limited(self, amount: Amount) -> Amount:
        """Without what there is no limit of: nobody waits for that."""
        most = self._budget.most
        return Amount(0 if most.tokens == _UNLIMITED else amount.tokens, 0 if most.usd == _UNLIMITED else amount.usd)

    async def _write(self, amount: Amount) -> None:
        most = self._budget.most
        await self._store.keep_account(
            Account(
                None if most.tokens == _UNLIMITED else amount.tokens,
                None if most.usd == _UNLIMITED else amount.usd,
            )
        )
