"""Claims and outcomes of tool calls on their way to a Redis server."""

import asyncio
from collections.abc import Sequence

import pytest
from tests.support.virtual_time import virtual

from batch_agent import aio
from batch_agent.cluster.redis.call_batches import INTERVAL, MAX_WAITING, CallBatches, CallChange
from batch_agent.core.errors import StoreError


class Server:
    """Grants every claim with its number, after a while."""

    def __init__(self, seconds: float = 0.001) -> None:
        self.seconds = seconds
        self.messages: list[tuple[float, list[str]]] = []
        self.fails = False
        self.batches = CallBatches(self._receive)

    async def claim(self, name: str, worker: str = "w") -> bytes | int | None:
        return await self.batches.apply(CallChange(name, worker))

    async def complete(self, name: str) -> None:
        await self.batches.apply(CallChange(name, "w", -1, b"found"))

    @property
    def names(self) -> list[list[str]]:
        return [names for _, names in self.messages]

    async def _receive(self, worker: str, changes: Sequence[CallChange]) -> list[bytes | int]:
        self.messages.append((aio.now(), [change.name for change in changes]))
        await asyncio.sleep(self.seconds)
        if self.fails:
            raise StoreError("away")
        return [change.name.encode() for change in changes if change.ttl_millis is None]


@virtual
async def test_a_claim_without_company_is_sent_at_once() -> None:
    server = Server()
    for name in "ab":
        began = aio.now()
        assert await server.claim(name) == name.encode()
        assert aio.now() - began == pytest.approx(server.seconds)
        await asyncio.sleep(INTERVAL)


@virtual
async def test_claims_and_outcomes_that_come_close_together_share_a_message_in_order() -> None:
    server = Server()
    async with asyncio.TaskGroup() as group:
        group.create_task(server.claim("first"))
        await asyncio.sleep(INTERVAL / 4)
        group.create_task(server.complete("done"))
        found = [group.create_task(server.claim(name)) for name in "abc"]
    assert server.names == [["first"], ["done", "a", "b", "c"]]
    assert [task.result() for task in found] == [b"a", b"b", b"c"]
    assert server.messages[1][0] - server.messages[0][0] == pytest.approx(INTERVAL)


@virtual
async def test_an_outcome_waits_a_little_for_company() -> None:
    server = Server()
    async with asyncio.TaskGroup() as group:
        group.create_task(server.complete("done"))
        await asyncio.sleep(INTERVAL / 2)
        group.create_task(server.claim("a"))
    await server.complete("alone")
    assert server.names == [["done", "a"], ["alone"]]


@virtual
async def test_many_waiting_claims_are_sent_at_once() -> None:
    server = Server()
    await server.claim("first")
    began = aio.now()
    async with asyncio.TaskGroup() as group:
        for number in range(MAX_WAITING):
            group.create_task(server.claim(str(number)))
    assert aio.now() - began == pytest.approx(server.seconds)
    assert len(server.messages) == 2


@virtual
async def test_changes_of_two_workers_are_in_two_messages() -> None:
    server = Server()
    found = await asyncio.gather(server.claim("a", "w"), server.claim("b", "v"), server.claim("c", "w"))
    assert list(found) == [b"a", b"b", b"c"]
    assert sorted(map(len, server.names)) == [1, 1, 1]


@virtual
async def test_an_error_reaches_every_caller_and_the_next_message_is_sent() -> None:
    server = Server()
    server.fails = True
    failures = await asyncio.gather(*(server.claim(name) for name in "abc"), return_exceptions=True)
    assert [type(failure) for failure in failures] == [StoreError] * 3
    server.fails = False
    assert await server.claim("d") == b"d"


@virtual
async def test_a_cancelled_caller_does_not_hold_up_the_others() -> None:
    for cancelled_after in (0.0, 0.0005, INTERVAL / 2):
        server = Server()
        first = asyncio.create_task(server.claim("first"))
        others = [asyncio.create_task(server.claim(name)) for name in "aaab"]
        await asyncio.sleep(cancelled_after)
        first.cancel()
        others[0].cancel()
        await asyncio.wait([first, *others])
        assert [task.result() for task in others[1:]] == [b"a", b"a", b"b"]
