"""Random lives of agents that share tools, with failures, cancellations and crashes: nothing stale, doubled or lost."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from batch_agent import Tool
from batch_agent.core.messages import ToolCall, ToolResult
from batch_agent.core.protocols.tool_set import CallHistory
from batch_agent.testing import VirtualTimeLoop
from batch_agent.tools import ToolExecutor
from batch_agent.tools.agent_tools import AgentToolSession

HISTORIES = 1_500
SHARE = 4
"""Tests that share the histories, so that two processes may share the tests."""
TTL = 3.0
KEYS = "xyz"


class World:
    """What the tools see and change. Every value of a key is greater than the one before it."""

    def __init__(self) -> None:
        self.begin(random.Random(0), 0.0)

    def begin(self, luck: random.Random, grain: float) -> None:
        self.luck = luck
        self._grain = grain
        self.kept = dict.fromkeys(KEYS, 0)
        self.writes: Counter[str] = Counter()
        self.steps: Counter[str] = Counter()
        self.payments: dict[str, list[str]] = {}
        self.written: dict[str, int] = {}
        self.running = 0

    async def pass_time(self, most: float = 1.0) -> None:
        seconds = self.luck.uniform(0.001, most)
        await asyncio.sleep(round(seconds / self._grain) * self._grain if self._grain else seconds)

    async def work(self, swallows: bool = False) -> None:
        """A tool's own time, in which it may fail or be cancelled."""
        self.running += 1
        try:
            try:
                await self.pass_time()
            except asyncio.CancelledError:
                if not swallows or self.luck.random() < 0.7:
                    raise
                await self.pass_time()
        finally:
            self.running -= 1
        if self.luck.random() < 0.1:
            raise ConnectionError("away")


def tools(world: World) -> list[Tool]:
    @Tool.define(effect="pure")
    async def square(n: int) -> int:
        await world.work(swallows=True)
        return n * n

    @Tool.define(effect="read", ttl=TTL, max_concurrent=3)
    async def get(key: str) -> str:
        if world.luck.random() < 0.5:
            await world.work(swallows=True)
        seen = f"{world.kept[key]} {now()}"
        await world.work(swallows=True)
        return seen

    @Tool.define(effect="write")
    async def put(key: str, token: str) -> str:
        await world.work()
        world.writes[token] += 1
        world.kept[key] = world.written[token] = 1 + max(world.kept.values())
        await world.work()
        return "put"

    @Tool.define(effect="write", idempotency_arg="slip")
    async def pay(token: str, slip: str) -> str:
        await world.work()
        world.payments.setdefault(token, []).append(slip)
        await world.work()
        return "paid"

    @Tool.define(effect="stateful")
    async def step(token: str) -> str:
        await world.work()
        world.steps[token] += 1
        return "stepped"

    return [square, get, put, pay, step]


def now() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class Agent:
    """What an agent will ask for, how far it has come, and what is on record of it: also its journal."""

    name: str
    world: World
    turns: list[tuple[ToolCall, ...]]
    turn: int = 0
    claimed: set[str] = field(default_factory=set)
    settled: dict[str, ToolResult] = field(default_factory=dict)
    told: list[ToolResult] = field(default_factory=list)
    own: dict[str, int] = field(default_factory=dict)
    """By key: the least that this agent may still read, because it wrote it."""

    async def claim(self, call: ToolCall) -> None:
        is_kept_at_once = self.world.luck.random() < 0.5
        if is_kept_at_once:
            self.claimed.add(call.id)
        await self.world.pass_time(0.2)
        self.claimed.add(call.id)

    is_durable = True

    async def identity(self) -> str:
        return "run"

    def withdraw(self, call: ToolCall) -> None:
        self.claimed.discard(call.id)

    def settle(self, result: ToolResult) -> None:
        self.settled[result.call.id] = result

    async def live(self, fabric: ToolExecutor) -> None:
        session = fabric.session(self.name, self)
        while self.turn < len(self.turns):
            calls = self.turns[self.turn]
            asked = await self._think(session, calls)
            past = CallHistory(self.turn, dict(self.settled), frozenset(self.claimed - self.settled.keys()))
            results = await session.results(calls, past)
            self._check(calls, results, asked)
            self.told += results
            self.turn += 1
            self.claimed, self.settled = set(), {}

    async def _think(self, session: AgentToolSession, calls: Sequence[ToolCall]) -> float:
        """The model speaks, and may start over; says when the calls were first asked for."""
        await self.world.pass_time(0.5)
        while self.world.luck.random() < 0.3:
            asked = now()
            for position, call in enumerate(calls):
                session.start(position, call)
            await self.world.pass_time(0.5)
            if self.world.luck.random() < 0.5:
                return asked  # the answer is whole, and the calls are under way
            await session.abandon()
        return now()

    def _check(self, calls: Sequence[ToolCall], results: Sequence[ToolResult], asked: float) -> None:
        assert [result.call for result in results] == list(calls)
        for result in results:
            arguments = orjson.loads(result.call.arguments)
            match result.call.name:
                case "square":
                    assert result.is_error or result.content == str(arguments["n"] ** 2)
                case "get" if not result.is_error:
                    value, seen_at = result.content.split()
                    assert int(value) >= self.own.get(arguments["key"], 0), "a stale read"
                    assert result.source != "cached" or asked - float(seen_at) < TTL, "an old read"
                case "step":
                    assert result.source == "executed"
        for result in results:  # only now: they ran at the same time as the reads
            if result.call.name == "put":
                arguments = orjson.loads(result.call.arguments)
                self.own[arguments["key"]] = self.world.written.get(arguments["token"], 0)


def an_agent(number: int, world: World) -> Agent:
    luck = world.luck

    def call(turn: int, place: int) -> ToolCall:
        name = luck.choices(["square", "get", "put", "pay", "step"], [2, 6, 4, 1, 1])[0]
        token = f"{number}.{turn}.{place}"
        by_name: dict[str, dict[str, Any]] = {
            "square": {"n": luck.randrange(3)},
            "get": {"key": luck.choice(KEYS)},
            "put": {"key": luck.choice(KEYS), "token": token},
        }
        arguments = by_name.get(name, {"token": token})
        return ToolCall(f"call_{place}", name, orjson.dumps(arguments).decode())

    turns = [
        tuple(call(turn, place) for place in range(luck.choice((1, 1, 2, 3))))
        for turn in range(luck.choice((1, 2, 2, 3)))
    ]
    return Agent(str(number), world, turns)


async def one_process(agents: list[Agent], made: list[Tool], world: World, *, is_killed: bool) -> None:
    """Runs all agents as far as they come; some are cancelled on the way, and at its death all of them."""
    fabric = ToolExecutor(made, timeout=None, max_tokens=100, cache_bytes=2_000)
    tasks = [asyncio.create_task(agent.live(fabric)) for agent in agents]
    while is_killed and any(not task.done() for task in tasks) and world.luck.random() < 0.8:
        await world.pass_time(2.0)
        world.luck.choice(tasks).cancel()
    if is_killed:
        for task in tasks:
            task.cancel()
    async with asyncio.timeout(1000):
        await asyncio.wait(tasks)
    await fabric.aclose()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}, "something is left running"
    assert world.running == 0
    for task in tasks:
        if not task.cancelled():
            task.result()


async def one_history(seed: int, made: list[Tool], world: World, grain: float) -> None:
    world.begin(random.Random(seed), grain)
    agents = [an_agent(number, world) for number in range(world.luck.choice((2, 2, 2, 3)))]
    for life in range(3):
        if all(agent.turn == len(agent.turns) for agent in agents):
            break
        for agent in agents:
            agent.own = {}  # it is told by what its facts say, and another process has read nothing yet
        await one_process(agents, made, world, is_killed=life < 2 and world.luck.random() < 0.6)
    check_writes(agents, world)


def check_writes(agents: list[Agent], world: World) -> None:
    assert all(agent.turn == len(agent.turns) for agent in agents), "somebody was not answered"
    assert max(world.writes.values(), default=1) == 1, "a doubled write"
    for agent in agents:
        for result in agent.told:
            token = orjson.loads(result.call.arguments).get("token", "")
            if result.call.name == "put":
                is_unknown = result.source == "restored" and "not known" in result.content
                assert is_unknown or result.is_error or world.writes[token] == 1, "a lost write"
            elif result.call.name == "pay":
                assert result.is_error or world.payments[token], "a lost payment"
                assert len(set(world.payments.get(token, ()))) <= 1, "a payment with two slips"
    slips = [slips[0] for slips in world.payments.values()]
    assert len(set(slips)) == len(slips), "two payments with one slip"


def run_histories(seeds: Sequence[int], grain: float) -> None:
    world = World()
    made = tools(world)
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        for seed in seeds:
            try:
                runner.run(one_history(seed, made, world, grain))
            except BaseException as error:
                error.add_note(f"seed {seed}, grain {grain}")
                raise


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARE))
def test_no_history_has_a_stale_read_a_repeated_or_lost_write_or_an_unanswered_call(share: int) -> None:
    run_histories(range(share, HISTORIES, SHARE), 0.0)


@pytest.mark.slow
def test_no_history_with_many_concurrent_calls_has_a_stale_read_or_a_lost_write() -> None:
    run_histories(range(400), 1.0)
