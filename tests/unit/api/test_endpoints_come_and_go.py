"""Endpoints that join, drain, die and return while agents run on them. The servers are real HTTP servers in this
process."""

import asyncio
import os
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.support.redis_server import RedisServer, redis_server
from tests.support.sim_hosts import CHAT, STEPS, Host, soon, up

from batch_agent import AgentResult, Backend, BatchAgent, Tool
from batch_agent.backends.endpoints import endpoint_watcher
from batch_agent.core.events import EndpointChanged, Event, LimitChanged, Notice
from batch_agent.schedule.retry import Backoff
from batch_agent.sim import Script
from batch_agent.sim.http import ClientConnection

__all__ = ["redis_server"]

TURNS = 4


class Fleet:
    """A hostfile, the hosts in it, and a run that uses them."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.changes: list[EndpointChanged] = []
        self.notices: list[str] = []
        self.may_end = asyncio.Event()
        """Until then, the second half of the inputs is not read, and the first half waits for its tools."""

    def publish(self, *hosts: Host) -> None:
        """Replaces the file, as `mv` does."""
        new = self.file.with_suffix(".new")
        new.write_text("".join(f"{host.address}\n" for host in hosts))
        os.replace(new, self.file)

    def emit(self, event: Event) -> None:
        if isinstance(event, EndpointChanged):
            self.changes.append(event)
        if isinstance(event, Notice):
            self.notices.append(event.text)

    def told(self, host: Host, state: str) -> bool:
        return any(each.endpoint == f"vllm://{host.address}" and each.state == state for each in self.changes)

    async def run(self, number: int, **options: Any) -> list[AgentResult]:
        inputs = [f"case {n:04}" for n in range(number)] if "store" in options else self._inputs(number)
        results: list[AgentResult] = await BatchAgent.run(inputs=inputs, progress=False, **self._options() | options)
        return results

    async def _inputs(self, number: int) -> AsyncIterator[str]:
        for index in range(number):
            if index == number // 2:
                await self.may_end.wait()
            yield f"case {index:04}"

    async def work(self, **options: Any) -> None:
        await BatchAgent.work(**self._options() | options)

    def _options(self) -> dict[str, Any]:
        calls = count(1)

        @Tool.define(effect="write")
        async def look(it: str = "") -> str:
            """Looks it up."""
            if next(calls) > 20:
                await self.may_end.wait()
            return "seen"

        return {
            "task": "Look at {it}",
            "tools": [look],
            "max_turns": TURNS + 1,
            "backend": Backend(f"hostfile://{self.file}", refresh=0.02),
            "events": self,
        }


def turns(*hosts: Host) -> dict[str, list[int]]:
    """The hosts, by index, that answered the turns of each agent, in order of the turns."""
    asked: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for index, host in enumerate(hosts):
        for path, body in host.posts:
            if path == CHAT and (found := case(body)) is not None:
                asked[found].append((len(body["messages"]), index))
    return {agent: [index for _, index in sorted(found)] for agent, found in asked.items()}


def case(body: Any) -> str | None:
    text = str(body["messages"])
    at = text.find("case ")
    return None if at < 0 else text[at : at + 9]


def asked(host: Host) -> int:
    """Requests of agents: a probe asks too."""
    return sum(path == CHAT and case(body) is not None for path, body in host.posts)


def server(model: str = "sim") -> Host:
    return Host(replace(STEPS, model=model, step_base_ms=0.5), Script(tool_turns=TURNS - 1, answer_tokens=4))


def stays(*hosts: Host) -> float:
    """Share of the later turns that went to the endpoint of the turn before."""
    pairs = [pair for found in turns(*hosts).values() for pair in pairwise(found)]
    return sum(one == other for one, other in pairs) / len(pairs)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path / "agents.hostfile")


async def test_an_endpoint_that_is_added_joins_takes_new_agents_and_moves_no_other(fleet: Fleet) -> None:
    async with up(server(), server()) as (first, second):
        fleet.publish(first)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(fleet.run(30, max_inflight=4))
            await soon(lambda: asked(first) >= 6)
            fleet.publish(first, second)
            await soon(lambda: fleet.told(second, "joined"))
            fleet.may_end.set()
        results = running.result()
    assert all(result.ok for result in results)
    assert asked(first) + asked(second) == 30 * TURNS
    assert asked(second) > 10
    assert stays(first, second) > 0.95
    assert [str(change) for change in fleet.changes] == [f"Endpoint vllm://{second.address} joined (2 endpoints)."]


async def test_a_drained_endpoint_finishes_its_requests_and_gets_no_other(fleet: Fleet) -> None:
    async with up(server(), server()) as (first, second):
        fleet.publish(first, second)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(fleet.run(30, max_inflight=4))
            await soon(lambda: asked(second) >= 6)
            fleet.publish(first)
            await soon(lambda: fleet.told(second, "left"))
            before = asked(second)
            fleet.may_end.set()
        results = running.result()
        assert not second.connections
    assert all(result.ok for result in results)
    assert asked(first) + before == 30 * TURNS  # nothing was lost, and nothing sent twice
    assert asked(second) == before
    assert [change.state for change in fleet.changes] == ["draining", "left"]


async def test_no_request_is_sent_to_an_endpoint_once_it_drains(fleet: Fleet) -> None:
    came: list[bool] = []

    def note(path: str, body: Any, connection: ClientConnection) -> bool:
        if path == CHAT:
            came.append(bool(fleet.changes))
        return False

    async with up(server(), server()) as (first, second):
        second.odd = note
        fleet.publish(first, second)
        async with asyncio.TaskGroup() as group:
            group.create_task(fleet.run(24, max_inflight=4))
            await soon(lambda: asked(second) >= 4)
            fleet.publish(first)
            await soon(lambda: bool(fleet.changes))
            fleet.may_end.set()
    assert fleet.changes[0].state == "draining"
    assert sum(came) <= fleet.changes[0].in_flight  # those that were on their way


async def test_an_endpoint_that_dies_and_is_removed_loses_only_what_was_in_flight(fleet: Fleet) -> None:
    async with up(server(), server()) as (first, second):
        fleet.publish(first, second)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(fleet.run(24, max_inflight=4))
            await soon(lambda: asked(second) >= 4)
            second.kill()
            fleet.publish(first)
            fleet.may_end.set()
        results = running.result()
    assert all(result.ok for result in results)
    assert 24 * TURNS <= asked(first) + asked(second) <= 24 * TURNS + 4
    assert sum(len(result.tool_calls) for result in results) == 24 * (TURNS - 1)


async def test_an_endpoint_may_return_after_it_has_left(fleet: Fleet) -> None:
    async with up(server(), server()) as (first, second):
        fleet.publish(first, second)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(fleet.run(40, max_inflight=4))
            await soon(lambda: asked(second) >= 4)
            fleet.publish(first)
            await soon(lambda: fleet.told(second, "left"))
            before = asked(second)
            fleet.publish(second, first)
            await soon(lambda: fleet.told(second, "joined"))
            fleet.may_end.set()
        assert all(result.ok for result in running.result())
    assert [change.state for change in fleet.changes] == ["draining", "left", "joined"]
    assert asked(second) > before
    assert asked(first) + asked(second) == 40 * TURNS


async def test_all_endpoints_can_be_replaced_by_others(fleet: Fleet) -> None:
    async with up(server(), server(), server()) as (first, second, third):
        fleet.publish(first)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(fleet.run(30, max_inflight=4))
            await soon(lambda: asked(first) >= 4)
            fleet.publish(second, third)
            await soon(lambda: fleet.told(first, "left"))
            fleet.may_end.set()
        assert all(result.ok for result in running.result())
    assert asked(second) > 8
    assert asked(third) > 8
    assert asked(first) + asked(second) + asked(third) == 30 * TURNS


async def test_a_newcomer_joins_when_it_responds_and_not_before(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_watcher, "_RETRY", Backoff(0.02, 0.02))
    second = server()
    async with up(second):
        pass
    async with up(server()) as (first,):
        fleet.publish(first)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(fleet.run(40, max_inflight=4))
            await soon(lambda: asked(first) >= 4)
            fleet.publish(first, second)
            await soon(lambda: bool(fleet.notices))
            assert not fleet.changes
            await second.start()
            await soon(lambda: fleet.told(second, "joined"))
            fleet.may_end.set()
        assert all(result.ok for result in running.result())
        second.kill()
    assert asked(second) > 10
    assert asked(first) + asked(second) == 40 * TURNS


async def test_a_newcomer_that_serves_another_model_is_reported_and_not_used(fleet: Fleet) -> None:
    async with up(server(), server("other")) as (first, second):
        fleet.publish(first)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(fleet.run(30, max_inflight=4))
            await soon(lambda: asked(first) >= 4)
            fleet.publish(first, second)
            await soon(lambda: bool(fleet.notices))
            fleet.may_end.set()
        assert all(result.ok for result in running.result())
    assert "is listed, but cannot be used yet" in fleet.notices[0]
    assert "has no model 'sim'" in fleet.notices[0] or "serves 'other', not 'sim'" in fleet.notices[0]
    assert asked(second) == 0


@pytest.mark.parametrize(("text", "words"), [("", "lists no endpoints"), ("gpu1:99999", "line 1"), (None, "not exist")])
async def test_a_hostfile_that_cannot_be_used_changes_nothing(fleet: Fleet, text: str | None, words: str) -> None:
    async with up(server(), server()) as (first, second):
        fleet.publish(first, second)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(fleet.run(30, max_inflight=4))
            await soon(lambda: asked(second) >= 4)
            if text is None:
                fleet.file.unlink()
            else:
                fleet.file.write_text(text)
            await soon(lambda: bool(fleet.notices))
            before = asked(second)
            fleet.may_end.set()
        assert all(result.ok for result in running.result())
    assert fleet.notices[0].startswith("The endpoints stay as they are: The hostfile")
    assert words in fleet.notices[0]
    assert asked(second) > before
    assert not fleet.changes


async def test_without_a_given_limit_the_slots_follow_the_endpoints(fleet: Fleet) -> None:
    limits: list[int] = []

    def emit(event: Event) -> None:
        Fleet.emit(fleet, event)
        if isinstance(event, LimitChanged) and "joined" in event.reason:
            limits.append(event.inflight)

    async with up(server(), server()) as (first, second):
        fleet.publish(first)
        fleet.emit = emit  # type: ignore[method-assign]
        async with asyncio.TaskGroup() as group:
            running = group.create_task(fleet.run(40))
            await soon(lambda: asked(first) >= 4)
            fleet.publish(first, second)
            await soon(lambda: fleet.told(second, "joined"))
            fleet.may_end.set()
        assert all(result.ok for result in running.result())
    assert len(limits) == 1


@pytest.mark.slow
async def test_each_worker_of_a_shared_run_follows_the_endpoints_and_all_share_their_caches(
    fleet: Fleet, redis_server: RedisServer
) -> None:
    shared = {"store": redis_server.url, "run_id": f"endpoints-{uuid4()}", "max_inflight": 4}
    async with up(server(), server()) as (first, second):
        fleet.publish(first)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(fleet.run(40, **shared))
            worker = group.create_task(fleet.work(**shared))
            await soon(lambda: asked(first) >= 8)
            fleet.publish(first, second)
            await soon(lambda: sum(each.state == "joined" for each in fleet.changes) == 2)  # one for each worker
            fleet.publish(second)
            await soon(lambda: sum(each.state == "left" for each in fleet.changes) == 2)
            before = asked(first)
            fleet.may_end.set()
            results = await running
            worker.cancel()
    assert all(result.ok for result in results)
    assert asked(first) == before
    assert before + asked(second) == 40 * TURNS
