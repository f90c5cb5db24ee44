"""Tools of several workers: one execution serves them all, nobody reads what is older than its own write, and rates
hold for all together."""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ParamSpec

import orjson
import pytest
from tests.property.test_tool_executor import World, an_agent, check_writes
from tests.property.test_tool_executor import tools as tools_of
from tests.support.virtual_time import virtual

from batch_agent import StoreError, Tool
from batch_agent.cluster.memory.calls import MemoryCallTable
from batch_agent.cluster.memory.memory_coordinator import MemoryCoordinator
from batch_agent.cluster.shared_tool_calls import ClusterToolCalls
from batch_agent.core.messages import ToolCall, ToolResult
from batch_agent.core.protocols.tool_set import CallHistory
from batch_agent.core.results import CallRecord
from batch_agent.core.spec import BatchSpec
from batch_agent.store.memory_store import MemoryStore
from batch_agent.testing import VirtualTimeLoop
from batch_agent.tools import ToolExecutor, open_tools
from batch_agent.tools.agent_tools import AgentToolSession
from batch_agent.tools.tool import limited_per_process

P = ParamSpec("P")
LEASE = 10.0


class Calls(MemoryCallTable):
    """The hub can be away."""

    is_away = False
    claims = 0
    permits = 0

    async def claim(self, name: str, worker: str) -> bytes | bool:
        self._answer()
        self.claims += 1
        return await super().claim(name, worker)

    async def complete(self, name: str, worker: str, outcome: bytes | None, *, ttl: float) -> None:
        self._answer()
        await super().complete(name, worker, outcome, ttl=ttl)

    async def reserve_rate(self, name: str, *, interval: float, ahead: float) -> float:
        self._answer()
        return await super().reserve_rate(name, interval=interval, ahead=ahead)

    async def acquire_permit(self, name: str, worker: str, limit: int) -> bool:
        self._answer()
        self.permits += 1
        return await super().acquire_permit(name, worker, limit)

    def _answer(self) -> None:
        if self.is_away:
            raise StoreError("The hub is away.")


class Hub(MemoryCoordinator):
    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.calls: Calls = Calls(self.work.is_alive, self.updates)


class Worker:
    """A process of its own, as far as its tools know."""

    def __init__(self, coordinator: Hub, name: str, tools: Sequence[Tool]) -> None:
        self._coordinator = coordinator
        self._name = name
        self._calls = ClusterToolCalls(coordinator.calls, coordinator.documents, name)
        self.executor = ToolExecutor(
            tools, timeout=None, max_tokens=1000, cache_bytes=100_000, shared_calls=self._calls
        )
        self._life = asyncio.create_task(self._live())

    async def _live(self) -> None:
        after = await self._coordinator.updates.position()
        while True:
            await self._coordinator.work.renew(self._name, {}, ttl=LEASE)
            news = await self._coordinator.updates.poll(after, wait=LEASE / 3)
            after = news.after
            self._calls.on_completed(news.completed_calls)

    async def fall_silent(self) -> None:
        """Nothing more is heard of it, though it works on."""
        self._life.cancel()
        await asyncio.wait([self._life])

    async def aclose(self) -> None:
        await self.executor.aclose()
        await self._calls.aclose()
        await self.fall_silent()
        await self._coordinator.work.leave(self._name)


@asynccontextmanager
async def workers(number: int, *tools: Tool, coordinator: Hub | None = None) -> AsyncIterator[list[Worker]]:
    """Each with the same tools. They leave nothing behind."""
    coordinator = coordinator or Hub()
    there = [Worker(coordinator, f"w{at}", tools) for at in range(number)]
    await asyncio.sleep(0.001)
    try:
        yield there
    finally:
        for worker in there:
            await worker.aclose()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def ask(
    who: Worker | AgentToolSession, name: str = "look", past: CallHistory | None = None, **arguments: Any
) -> ToolResult:
    session = who.executor.session("somebody") if isinstance(who, Worker) else who
    [result] = await session.results([ToolCall("c1", name, orjson.dumps(arguments).decode())], past)
    return result


async def ask_all(*who: Worker, times: int = 1, **arguments: Any) -> list[ToolResult]:
    """At the same time."""
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(ask(worker, **arguments)) for worker in who for _ in range(times)]
    return [task.result() for task in asked]


def looking(seconds: float = 1.0, **options: Any) -> Tool:
    """A tool `look` that says the how-manieth execution it is, of all workers'."""
    number = itertools.count(1)
    options.setdefault("effect", "read")

    async def look(key: str = "k") -> str:
        mine = next(number)
        await asyncio.sleep(seconds)
        return f"{key}{mine}"

    return Tool.define(**options)(look)


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("effect", ["pure", "read"])
@virtual
async def test_two_hundred_identical_calls_of_four_workers_are_one_execution(effect: str) -> None:
    async with workers(4, looking(effect=effect)) as there:
        results = await ask_all(*there, times=50)
        assert {result.content for result in results} == {"k1"}
        assert Counter(result.source for result in results) == {"executed": 1, "shared": 199}
        assert {(await ask(worker)).source for worker in there} == {"cached"}
        uses = [worker.executor.uses[0] for worker in there]
        assert sum(use.executed for use in uses) == 1
        assert [(use.requested, use.shared, use.cached) for use in uses] == [(51, 49, 1)] + [(51, 50, 1)] * 3
        saved = [use.seconds_saved for use in uses]
        assert saved == pytest.approx([50, 51, 51, 51])  # also where the second was another worker's


@virtual
async def test_a_result_of_another_worker_counts_as_cached() -> None:
    async with workers(2, looking()) as (one, other):
        await ask(one)
        found = await ask(other)
        assert (found.content, found.source) == ("k1", "cached")
        assert found.seconds == pytest.approx(0.0)
        assert (await ask(other, key="x")).content == "x2"


@virtual
async def test_what_another_worker_has_found_is_asked_for_once_while_it_is_surely_good() -> None:
    coordinator = Hub()
    pure, read = looking(effect="pure"), looking(name="read", ttl=10)
    async with workers(2, pure, read, coordinator=coordinator) as there:
        for name in ("look", "read"):
            await ask_all(*there, name=name)
        asked = coordinator.calls.claims
        for name in ("look", "read") * 3:
            assert {result.source for result in await ask_all(*there, name=name)} == {"cached"}
        assert coordinator.calls.claims == asked


@virtual
async def test_a_worker_that_closes_leaves_its_call_to_another() -> None:
    async with workers(3, looking(10.0)) as there:
        unlucky = asyncio.create_task(ask(there[0]))
        await asyncio.sleep(1)
        waiting = [asyncio.create_task(ask(worker)) for worker in there[1:]]
        await asyncio.sleep(1)
        await there[0].executor.aclose()
        await asyncio.wait([unlucky])
        assert {(await each).content for each in waiting} == {"k2"}
        assert now() == pytest.approx(12.0, abs=0.1)


@virtual
async def test_the_last_agent_to_leave_a_call_leaves_it_to_another_worker() -> None:
    async with workers(2, looking(10.0)) as (one, other):
        leaving = [asyncio.create_task(ask(one)) for _ in range(2)]
        waiting = asyncio.create_task(ask(other))
        for task in leaving:
            await asyncio.sleep(1)
            task.cancel()
        assert (await waiting).content == "k2"
        assert now() == pytest.approx(12.0, abs=0.1)


@virtual
async def test_a_worker_that_died_over_a_call_leaves_it_to_another() -> None:
    async with workers(3, looking(100.0)) as there:
        lost = asyncio.create_task(ask(there[0]))
        await asyncio.sleep(1)
        waiting = [asyncio.create_task(ask(worker)) for worker in there[1:]]
        await there[0].fall_silent()
        assert {(await each).content for each in waiting} == {"k2"}
        assert 100 + LEASE / 2 < now() < 100 + 2 * LEASE
        assert (await lost).content == "k1"  # it lived after all, and what it found is not what others found
        assert (await ask(there[1])).content == "k2"


@virtual
async def test_an_agent_that_leaves_while_it_waits_for_another_worker_affects_no_other() -> None:
    async with workers(2, looking(5.0)) as (one, other):
        making = asyncio.create_task(ask(one))
        await asyncio.sleep(1)
        waiting = [asyncio.create_task(ask(other)) for _ in range(2)]
        await asyncio.sleep(1)
        waiting[0].cancel()
        assert ((await waiting[1]).content, (await making).content) == ("k1", "k1")


def failing(**options: Any) -> Tool:
    """A tool `look` that fails the first time."""
    number = itertools.count(1)

    async def look() -> str:
        mine = next(number)
        await asyncio.sleep(1)
        if mine == 1:
            raise ConnectionError("away")
        return f"found {mine}"

    return Tool.define(effect="read", **options)(look)


@virtual
async def test_a_failure_reaches_all_waiting_workers_and_no_later_one() -> None:
    async with workers(3, failing()) as there:
        results = await ask_all(*there[:2], times=3)
        assert {(result.content, result.is_error) for result in results} == {("ConnectionError: away", True)}
        assert (await ask(there[2])).content == "found 2"
        await asyncio.sleep(1)
        assert [(await ask(worker)).content for worker in there[:2]] == ["found 3", "found 3"]


@virtual
async def test_a_tool_that_keeps_errors_is_not_asked_again_while_they_are_good() -> None:
    async with workers(2, failing(keeps_errors=True, ttl=10)) as (one, other):
        await ask(one)
        kept = await ask(other)
        assert (kept.is_error, kept.source) == (True, "cached")
        await asyncio.sleep(10)
        assert (await ask(other)).content == "found 2"


@virtual
async def test_only_what_is_of_the_same_version_is_shared() -> None:
    version: dict[str, Any] = {"now": ("a", 1)}
    async with workers(3, looking(version=lambda arguments: version["now"])) as there:
        assert (await ask(there[0])).content == "k1"
        assert (await ask(there[1])).content == "k1"
        version["now"] = ("a", 2)
        assert [(await ask(worker)).content for worker in there] == ["k2"] * 3
        version["now"] = None  # such as that of a file that is gone
        assert [(await ask(worker)).content for worker in there] == ["k3"] * 3


@virtual
async def test_a_version_that_says_nothing_to_others_is_not_shared_with_them() -> None:
    class Odd:
        """All of them look the same."""

        __hash__ = object.__hash__

        def __repr__(self) -> str:
            return "odd"

    version = Odd()
    async with workers(2, looking(version=lambda arguments: (1, version))) as (one, other):
        assert [(await ask(worker)).content for worker in (one, other, one)] == ["k1", "k2", "k1"]


@virtual
async def test_a_result_is_good_for_its_time_in_whichever_worker_it_was_found() -> None:
    async with workers(3, looking(2.0, ttl=10.0)) as there:
        await ask_all(*there[:2])
        await asyncio.sleep(7.9 - 0.001)
        assert {(await ask(worker)).content for worker in there} == {"k1"}
        await asyncio.sleep(0.11)
        assert (await ask(there[2])).content == "k2"
        assert {(await ask(worker)).content for worker in there} == {"k2"}


@virtual
async def test_a_time_of_nothing_shares_what_is_under_way_and_keeps_nothing() -> None:
    async with workers(3, looking(ttl=0)) as there:
        assert {result.content for result in await ask_all(*there[:2], times=2)} == {"k1"}
        assert (await ask(there[2])).content == "k2"
        assert (await ask(there[0])).content == "k3"


def a_store(read_seconds: float) -> tuple[Tool, Tool]:
    kept = {"n": 0}

    @Tool.define(effect="read", ttl=1000)
    async def get() -> int:
        seen = kept["n"]
        await asyncio.sleep(read_seconds)
        return seen

    @Tool.define(effect="write")
    async def put(n: int) -> str:
        kept["n"] = n
        return "put"

    return get, put


@virtual
async def test_an_agent_that_goes_on_elsewhere_reads_nothing_older_than_what_it_wrote() -> None:
    async with workers(2, *a_store(1.0)) as (one, other):
        await ask(other, "get")
        await ask(one.executor.session("writer"), "put", n=1)
        past = CallHistory(turn=1, earlier=(CallRecord("put", '{"n":1}', True, 0.0),))
        assert (await ask(other.executor.session("writer"), "get", past)).content == "1"


@virtual
async def test_a_tool_that_was_changed_is_not_answered_by_what_it_was() -> None:
    @Tool.define(name="look", effect="pure")
    async def old() -> str:
        return "old"

    @Tool.define(name="look", effect="pure")
    async def new() -> str:
        return "new"

    coordinator = Hub()
    for tool in (old, new):
        async with workers(1, tool, coordinator=coordinator) as [one]:
            assert (await ask(one, "look")).content == tool.function.__name__


@virtual
async def test_an_agent_is_not_given_what_another_worker_read_before_it_wrote() -> None:
    async with workers(2, *a_store(1.0)) as (one, other):
        await ask(other, "get")
        writer, reader = one.executor.session("writer"), one.executor.session("reader")
        await ask(writer, "put", n=1)
        assert (await ask(reader, "get")).content == "0"  # it has not written
        mine = await ask(writer, "get")
        assert (mine.content, mine.source) == ("1", "executed")
        assert (await ask(writer, "get")).source == "cached"
        assert (await ask(reader, "get")).content == "1"


@virtual
async def test_an_agent_is_given_what_its_own_worker_looked_for_after_it_wrote() -> None:
    async with workers(2, *a_store(1.0)) as (one, _):
        writer = one.executor.session("writer")
        await ask(writer, "put", n=1)
        await ask(one, "get")
        assert (await ask(writer, "get")).source == "cached"


@virtual
async def test_an_agent_does_not_join_a_wait_for_a_read_older_than_its_write() -> None:
    async with workers(2, *a_store(5.0)) as (one, other):
        old = asyncio.create_task(ask(other, "get"))
        await asyncio.sleep(1)
        writer, reader = one.executor.session("writer"), one.executor.session("reader")
        await ask(writer, "put", n=1)
        waiting = asyncio.create_task(ask(reader, "get"))  # began after the write, for what began before it
        await asyncio.sleep(1)
        assert (await ask(writer, "get")).content == "1"
        assert ((await waiting).content, (await old).content) == ("0", "0")
        assert (await ask(writer, "get")).content == "1"


@virtual
async def test_agents_with_the_same_history_share_in_whichever_worker_they_are() -> None:
    number = itertools.count(1)

    @Tool.define(effect="stateful", history_arg="before")
    async def look(key: str, before: tuple[str, ...]) -> str:
        return f"{key} after {len(before)}: {next(number)}"

    async with workers(2, look) as (one, other):
        sessions = [one.executor.session("a"), other.executor.session("b")]
        assert [(await ask(session, key="x")).content for session in sessions] == ["x after 0: 1"] * 2
        assert [(await ask(session, key="x")).content for session in sessions] == ["x after 1: 2"] * 2


@virtual
async def test_what_one_batch_looked_up_is_not_in_another_workers_batch() -> None:
    asked: list[list[int]] = []

    @Tool.batchable(key_arg="user_id", window=0.01, effect="read")
    async def look(user_ids: list[int]) -> dict[int, str]:
        asked.append(user_ids)
        await asyncio.sleep(1)
        return {each: f"user {each}" for each in user_ids}

    async with workers(2, look) as (one, other), asyncio.TaskGroup() as group:
        for worker, ids in ((one, range(3)), (other, range(1, 5))):
            for each in ids:
                group.create_task(ask(worker, user_id=each))
    assert sorted(asked) == [[0, 1, 2], [3, 4]]


@virtual
async def test_tools_go_on_without_the_hub_and_share_again_when_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    coordinator = Hub()
    async with workers(2, looking(rate_limit=1), coordinator=coordinator) as (one, other):
        coordinator.calls.is_away = True
        results = await ask_all(one, other, times=10)
        assert Counter(result.content for result in results) == {"k1": 10, "k2": 10}
        assert len(caplog.records) == 2  # one of each worker
        began = now()
        async with asyncio.TaskGroup() as group:
            for at in range(4):
                group.create_task(ask(one, key=f"{at}."))
        assert now() - began == pytest.approx(4.0, abs=0.1)  # it keeps the rate for itself
        coordinator.calls.is_away = False
        await asyncio.sleep(20)
        assert len({result.content for result in await ask_all(one, other, times=2, key="back")}) == 1


def working(began: list[tuple[float, str]], **options: Any) -> Tool:
    @Tool.define(effect="stateful", **options)
    async def work(agent: str) -> str:
        began.append((round(now(), 4), agent))
        await asyncio.sleep(0.1)
        return agent

    return work


@virtual
async def test_a_rate_holds_for_all_workers_together_and_they_take_turns() -> None:
    began: list[tuple[float, str]] = []
    async with workers(2, working(began, rate_limit=4, burst=2)) as there, asyncio.TaskGroup() as group:
        for at in range(20):
            group.create_task(ask(there[0], "work", agent=f"a{at}"))
        for at in range(10):
            group.create_task(ask(there[1], "work", agent=f"b{at}"))
    times = [time - began[0][0] for time, _ in began]
    assert times == pytest.approx([0.0, *(at / 4 for at in range(29))], abs=0.01)
    agents = [agent for _, agent in began]
    for worker, calls in (("a", 20), ("b", 10)):  # in the order in which they came
        assert [agent for agent in agents if agent[0] == worker] == [f"{worker}{at}" for at in range(calls)]
    first_half = Counter(agent[0] for agent in agents[:16])
    assert abs(first_half["a"] - first_half["b"]) <= 2  # a long queue holds up nobody else


class Busy:
    """How many executions of a tool there are, of all workers'."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def tool(self, **options: Any) -> Tool:
        @Tool.define(effect="stateful", **options)
        async def work(agent: str) -> str:
            self.now += 1
            self.most = max(self.most, self.now)
            try:
                await asyncio.sleep(1)
            finally:
                self.now -= 1
            return agent

        return work


@virtual
async def test_max_concurrent_holds_for_all_workers_together_and_leaves_no_place_unused() -> None:
    busy = Busy()
    async with workers(3, busy.tool(max_concurrent=4)) as there, asyncio.TaskGroup() as group:
        for at in range(20):
            for worker in there:
                group.create_task(ask(worker, "work", agent=str(at)))
    assert busy.most == 4
    assert now() == pytest.approx(60 / 4, abs=0.5)


@virtual
async def test_a_place_of_a_cancelled_call_and_of_a_worker_that_died_is_free_again() -> None:
    busy = Busy()
    async with workers(3, busy.tool(max_concurrent=1)) as (one, other, third):
        unlucky = asyncio.create_task(ask(one, "work", agent="a"))
        await asyncio.sleep(0.1)
        waiting = asyncio.create_task(ask(other, "work", agent="b"))
        await asyncio.sleep(0.1)
        waiting.cancel()
        unlucky.cancel()
        await asyncio.wait([waiting, unlucky])
        before = now()
        assert (await ask(third, "work", agent="c")).content == "c"
        assert now() - before == pytest.approx(1.0, abs=0.1)
        dying = asyncio.create_task(ask(one, "work", agent="d"))
        await asyncio.sleep(0.1)
        await one.fall_silent()
        assert (await ask(other, "work", agent="e")).content == "e"
        await dying


@virtual
async def test_without_a_hub_each_worker_keeps_max_concurrent_for_itself() -> None:
    coordinator, busy = Hub(), Busy()
    async with workers(2, busy.tool(max_concurrent=2), coordinator=coordinator) as there:
        coordinator.calls.is_away = True
        await ask_all(*there, times=4, name="work", agent="x")
        assert busy.most == 4
        coordinator.calls.is_away = False


@virtual
async def test_a_tool_of_its_machine_and_one_without_max_concurrent_ask_nobody_for_a_place() -> None:
    coordinator, busy = Hub(), Busy()
    local = limited_per_process(busy.tool(max_concurrent=2))
    async with workers(2, local, looking(effect="write"), coordinator=coordinator) as there:
        await ask_all(*there, times=4, name="work", agent="x")
        await ask_all(*there, times=2)
    assert (busy.most, coordinator.calls.permits) == (4, 0)


@virtual
async def test_the_rate_of_all_is_counted_by_its_key() -> None:
    began: list[tuple[float, str]] = []
    tool = working(began, rate_limit=1, rate_key=lambda arguments: arguments["agent"][0])
    async with workers(2, tool) as there, asyncio.TaskGroup() as group:
        for worker in there:
            for agent in ("x", "y"):
                group.create_task(ask(worker, "work", agent=agent))
    start = began[0][0]
    assert sorted((round(time - start), agent) for time, agent in began) == [(0, "x"), (0, "y"), (1, "x"), (1, "y")]


@virtual
async def test_agents_that_leave_a_queue_use_up_no_more_than_one_place_of_their_worker() -> None:
    began: list[tuple[float, str]] = []
    async with workers(2, working(began, rate_limit=1)) as (one, other):
        leaving = [asyncio.create_task(ask(one, "work", agent=str(at))) for at in range(100)]
        await asyncio.sleep(0.5)
        for task in leaving[1:]:
            task.cancel()
        await asyncio.wait(leaving)
        await ask(other, "work", agent="late")
        assert [(round(time), agent) for time, agent in began] == [(0, "0"), (2, "late")]


@virtual
async def test_opened_tools_share_what_they_are_given_to_share() -> None:
    coordinator, tool = Hub(), looking()
    spec = BatchSpec(task="Do it.", inputs=[1], model="m")
    for name, source in (("a", "executed"), ("b", "cached")):
        shared_calls = ClusterToolCalls(coordinator.calls, coordinator.documents, name)
        async with open_tools([tool], spec, lambda text, tokens: pytest.fail(text), [], shared_calls) as executor:
            [result] = await executor.session("x").results([ToolCall("c1", "look", "{}")])
            assert (result.content, result.source) == ("k1", source)
        await shared_calls.aclose()


async def one_history(seed: int, made: list[Tool], world: World, grain: float) -> None:
    """Agents of three workers with the same tools. Some leave on the way and come back, workers fall silent and work
    on, and the hub is away now and then."""
    world.begin(random.Random(seed), grain)
    luck, coordinator = world.luck, Hub()
    agents = [an_agent(number, world) for number in range(luck.choice((3, 4, 6)))]
    async with workers(3, *made, coordinator=coordinator) as there:
        lives = [asyncio.create_task(agent.live(luck.choice(there).executor)) for agent in agents]
        while luck.random() < 0.7:
            await world.pass_time(3.0)
            match luck.choice(("leave", "silence", "away")):
                case "leave":
                    luck.choice(lives).cancel()
                case "silence":
                    await luck.choice(there).fall_silent()
                case "away":
                    coordinator.calls.is_away = not coordinator.calls.is_away
        await asyncio.wait(lives)
    async with asyncio.timeout(1000), workers(1, *made, coordinator=Hub()) as [last]:
        for agent in agents:
            agent.own = {}  # another process has read nothing yet
            await agent.live(last.executor)
    assert world.running == 0
    for life in lives:
        assert life.cancelled() or life.exception() is None
    check_writes(agents, world)


@pytest.mark.slow
@pytest.mark.parametrize("grain", [0.0, 1.0])
def test_no_history_of_several_workers_has_a_stale_read_or_a_call_without_a_result(grain: float) -> None:
    world = World()
    made = tools_of(world)
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        for seed in range(200):
            try:
                runner.run(one_history(seed, made, world, grain))
            except BaseException as error:
                error.add_note(f"seed {seed}, grain {grain}")
                raise


@pytest.mark.parametrize("number", [2, 5])
@virtual
async def test_a_worker_whose_call_is_stuck_does_not_take_the_others_with_it(number: int) -> None:
    counted = itertools.count(1)

    @Tool.define(name="look", effect="read", timeout=1)
    async def look() -> str:
        mine = next(counted)
        await asyncio.sleep(3600 if mine == 1 else 0.1)
        return "found"

    async with workers(number, look) as there:
        asked = []
        for worker in there:
            asked.append(asyncio.create_task(ask(worker)))
            await asyncio.sleep(0.1)
        told = [(await task).content for task in asked]
        assert asyncio.get_running_loop().time() < 1.3
    assert told == ["look took longer than its 1 s (timeout_per_tool).", *["found"] * (number - 1)]
