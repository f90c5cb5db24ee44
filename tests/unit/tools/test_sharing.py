"""One execution serves every agent that may share it, and nobody else."""

import asyncio
import itertools
import math
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ParamSpec

import orjson
import pytest
from pydantic import BaseModel, SecretStr
from tests.support.virtual_time import virtual

from batch_agent import SpecError, Tool
from batch_agent.core.messages import ToolCall, ToolResult
from batch_agent.core.protocols.tool_set import CallHistory
from batch_agent.core.results import ToolUse
from batch_agent.tools import ToolExecutor, as_tool
from batch_agent.tools.agent_tools import AgentToolSession
from batch_agent.tools.parameters import ArgumentReader
from batch_agent.tools.tool_runner import ToolStats

P = ParamSpec("P")


@asynccontextmanager
async def using(*tools: Any, **options: Any) -> AsyncIterator[ToolExecutor]:
    """A executor that leaves nothing behind."""
    settings: dict[str, Any] = {"timeout": None, "max_tokens": 100_000} | options
    executor = ToolExecutor([as_tool(tool) for tool in tools], **settings)
    before = asyncio.all_tasks()
    try:
        yield executor
    finally:
        await executor.aclose()
    await asyncio.sleep(0.001)
    assert asyncio.all_tasks() <= before


def a_call(name: str, arguments: dict[str, Any] | str) -> ToolCall:
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    return ToolCall("c1", name, text)


async def ask(who: ToolExecutor | AgentToolSession, name: str, raw: str | None = None, **arguments: Any) -> ToolResult:
    session = who.session("somebody") if isinstance(who, ToolExecutor) else who
    [result] = await session.results([a_call(name, arguments if raw is None else raw)])
    return result


def use(executor: ToolExecutor, name: str = "look") -> ToolUse:
    return next(use for use in executor.uses if use.name == name)


def looking(seconds: float = 1.0, **options: Any) -> Tool:
    """A tool `look` that says the how-manieth execution it is."""
    number = itertools.count(1)
    options.setdefault("effect", "read")

    async def look(key: str = "k") -> str:
        mine = next(number)
        await asyncio.sleep(seconds)
        return f"{key}{mine}"

    return Tool.define(**options)(look)


@virtual
async def test_calls_that_overlap_and_are_the_same_are_one_execution() -> None:
    async with using(looking()) as executor:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(ask(executor, "look", key="a")) for _ in range(100)]
            other = group.create_task(ask(executor, "look", key="b"))
        assert {task.result().content for task in asked} == {"a1"}
        assert [task.result().source for task in asked] == ["executed"] + ["shared"] * 99
        assert other.result().content == "b2"
        assert (await ask(executor, "look", key="a")).source == "cached"
        assert (use(executor).requested, use(executor).executed, use(executor).shared, use(executor).cached) == (
            102,
            2,
            99,
            1,
        )


class Counting:
    """Counts how often arguments are read."""

    def __init__(self, inner: ArgumentReader) -> None:
        self.schema = inner.schema
        self.reads: list[str] = []
        self._inner = inner

    def read(self, text: str) -> dict[str, Any]:
        self.reads.append(text)
        return self._inner.read(text)


@virtual
async def test_a_call_that_repeats_another_to_the_letter_is_not_read_again() -> None:
    @Tool.define(effect="read", ttl=100)
    async def look(key: str) -> str:
        await asyncio.sleep(1)
        return f"{key} at {asyncio.get_running_loop().time():g}"

    arguments = Counting(look.arguments)
    async with using(replace(look, arguments=arguments)) as executor:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(ask(executor, "look", key="a")) for _ in range(5)]
        assert {task.result().content for task in asked} == {"a at 1"}
        assert (await ask(executor, "look", key="a")).source == "cached"
        assert len(arguments.reads) == 1
        assert (await ask(executor, "look", raw='{"key":  "a"}')).source == "cached"
        assert (await ask(executor, "look", key="b")).content == "b at 2"
        await asyncio.sleep(200)
        assert (await ask(executor, "look", key="a")).content == "a at 203"
        assert len(arguments.reads) == 4


@virtual
async def test_a_leader_that_is_cancelled_leaves_the_result_to_the_others() -> None:
    async with using(looking(2.0)) as executor:
        leader = asyncio.create_task(ask(executor, "look"))
        await asyncio.sleep(0.5)
        others = [asyncio.create_task(ask(executor, "look")) for _ in range(3)]
        await asyncio.sleep(0.5)
        leader.cancel()
        others[0].cancel()
        await asyncio.wait([leader, *others])
        assert leader.cancelled()
        assert others[0].cancelled()
        assert [task.result().content for task in others[1:]] == ["k1", "k1"]
        assert asyncio.get_running_loop().time() == pytest.approx(2.0)


@virtual
async def test_a_leader_whose_time_is_over_leaves_the_result_to_the_others() -> None:
    async with using(looking(2.0)) as executor:

        async def hasty() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    await ask(executor, "look")

        async with asyncio.TaskGroup() as group:
            group.create_task(hasty())
            patient = group.create_task(ask(executor, "look"))
        assert (patient.result().content, patient.result().source) == ("k1", "shared")


@virtual
async def test_the_last_one_to_leave_calls_the_execution_off() -> None:
    ended: list[str] = []

    @Tool.define(effect="pure")
    async def look() -> str:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return "never"

    async with using(look) as executor:
        asked = [asyncio.create_task(ask(executor, "look")) for _ in range(5)]
        for number, task in enumerate(asked):
            await asyncio.sleep(1)
            assert ended == []
            task.cancel()
            await asyncio.wait([task])
            assert number == 4 or ended == []
        await asyncio.sleep(0)
        assert ended == ["cancelled"]
        assert use(executor).requested == 0


@virtual
async def test_a_call_that_joins_as_the_last_caller_leaves_still_gets_a_result() -> None:
    async with using(looking(1.0)) as executor:
        first = asyncio.create_task(ask(executor, "look"))
        await asyncio.sleep(0.5)
        first.cancel()
        second = asyncio.create_task(ask(executor, "look"))
        await asyncio.wait([first, second])
        assert first.cancelled()
        assert second.result().content == "k2"
        # And the other way round: who came first keeps it alive.
        third = asyncio.create_task(ask(executor, "look", key="x"))
        await asyncio.sleep(0.5)
        fourth = asyncio.create_task(ask(executor, "look", key="x"))
        await asyncio.sleep(0)
        third.cancel()
        assert (await fourth).content == "x3"


@virtual
async def test_a_caller_cancelled_as_the_execution_ends_affects_no_other_caller() -> None:
    gate: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @Tool.define(effect="read")
    async def look() -> str:
        return await gate

    async with using(look) as executor:
        unlucky = asyncio.create_task(ask(executor, "look"))
        other = asyncio.create_task(ask(executor, "look"))
        await asyncio.sleep(1)
        for hops in itertools.count():  # lets the result come nearer tick by tick, then cancels
            if hops == 0:
                gate.set_result("found")
            await asyncio.sleep(0)
            if hops == 2:
                unlucky.cancel()
                break
        await asyncio.wait([unlucky, other])
        assert other.result().content == "found"
        assert (await ask(executor, "look")).source == "cached"


@pytest.mark.parametrize("ticks", range(8))
@virtual
async def test_however_near_its_end_an_execution_is_left_the_next_call_is_answered(ticks: int) -> None:
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @Tool.define(effect="read")
    async def look() -> str:
        await gate
        return "found"

    async with using(look) as executor:
        alone = asyncio.create_task(ask(executor, "look"))
        await asyncio.sleep(1)
        gate.set_result(None)
        for _ in range(ticks):
            await asyncio.sleep(0)
        alone.cancel()
        follower = asyncio.create_task(ask(executor, "look"))
        await asyncio.wait([alone, follower])
        assert follower.result().content == "found"
        assert alone.cancelled() or alone.result().content == "found"


@virtual
async def test_a_tool_that_will_not_be_cancelled_is_not_joined_after_it_was_given_up() -> None:
    number = itertools.count(1)

    @Tool.define(effect="read", ttl=0)
    async def look() -> str:
        mine = next(number)
        until = asyncio.get_running_loop().time() + 5
        while (left := until - asyncio.get_running_loop().time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                continue
        return str(mine)

    async with using(look) as executor:
        left = asyncio.create_task(ask(executor, "look"))
        await asyncio.sleep(1)
        left.cancel()
        await asyncio.wait([left])
        assert asyncio.get_running_loop().time() == pytest.approx(1.0)
        assert (await ask(executor, "look")).content == "2"


@virtual
async def test_a_failure_reaches_all_waiting_callers_and_no_later_one() -> None:
    number = itertools.count(1)

    @Tool.define(effect="read")
    async def look() -> str:
        mine = next(number)
        await asyncio.sleep(1)
        if mine == 1:
            raise ConnectionError("away")
        return "found"

    async with using(look) as executor:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(ask(executor, "look")) for _ in range(10)]
        assert {(task.result().content, task.result().is_error) for task in asked} == {("ConnectionError: away", True)}
        assert (await ask(executor, "look")).content == "found"
        assert (use(executor).failed, use(executor).executed) == (10, 2)


@virtual
async def test_a_tool_that_keeps_errors_is_not_asked_again_while_they_are_good() -> None:
    number = itertools.count(1)

    @Tool.define(effect="read", keeps_errors=True, ttl=10)
    async def look() -> str:
        raise LookupError(f"nothing {next(number)}")

    async with using(look) as executor:
        assert (await ask(executor, "look")).source == "executed"
        again = await ask(executor, "look")
        assert (again.content, again.is_error, again.source) == ("LookupError: nothing 1", True, "cached")
        await asyncio.sleep(10)
        assert (await ask(executor, "look")).content == "LookupError: nothing 2"


async def test_a_hung_sync_tool_is_abandoned_at_the_timeout_and_blocks_no_other_call() -> None:
    hang = threading.Event()
    entered = threading.Semaphore(0)

    def hung(n: int) -> str:
        entered.release()
        hang.wait(60)
        return "late"

    tools = Tool.define(effect="read")(hung), Tool.define(effect="read", name="quick")(lambda: "found")
    async with using(*tools) as executor:
        try:
            stuck = [asyncio.create_task(ask(executor, "hung", n=n)) for n in range(64) for _ in range(2)]
            for _ in range(64):
                await asyncio.to_thread(entered.acquire)
            waiting = asyncio.create_task(ask(executor, "quick"))
            await asyncio.sleep(0.01)
            assert not waiting.done()  # every thread is taken
            stuck[0].cancel()
            await asyncio.wait(stuck[:1])
            await asyncio.sleep(0.01)
            assert not waiting.done()  # somebody still waits for that thread
            stuck[1].cancel()
            assert (await waiting).content == "found"
            hang.set()
            await asyncio.wait(stuck)
            assert {task.result().content for task in stuck[2:]} == {"late"}
        finally:
            hang.set()


@virtual
async def test_closing_calls_off_what_still_runs() -> None:
    executor = ToolExecutor([looking(100.0)], timeout=None, max_tokens=100)
    waiting = asyncio.create_task(ask(executor, "look"))
    await asyncio.sleep(1)
    await executor.aclose()
    await asyncio.wait([waiting])
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert asyncio.get_running_loop().time() == pytest.approx(1.0)


@virtual
async def test_a_call_that_was_started_early_is_joined_by_others_and_taken_up_by_its_own_answer() -> None:
    async with using(looking(4.0)) as executor:
        session, other = executor.session("a"), executor.session("b")
        session.start(0, a_call("look", {"key": "x"}))
        await asyncio.sleep(1)
        joined = asyncio.create_task(ask(other, "look", key="x"))
        await asyncio.sleep(1)
        mine = await ask(session, "look", key="x")
        assert (mine.content, mine.source) == ("x1", "executed")
        assert (await joined).content == "x1"
        assert use(executor).requested == 2


@virtual
async def test_an_early_call_that_is_abandoned_leaves_its_execution_to_those_who_joined() -> None:
    async with using(looking(4.0)) as executor:
        session, other = executor.session("a"), executor.session("b")
        session.start(0, a_call("look", {"key": "x"}))
        await asyncio.sleep(1)
        joined = asyncio.create_task(ask(other, "look", key="x"))
        await asyncio.sleep(1)
        await session.abandon()
        assert (await joined).content == "x1"
        # One that joined others and is abandoned leaves them alone.
        leader = asyncio.create_task(ask(other, "look", key="y"))
        await asyncio.sleep(1)
        session.start(0, a_call("look", {"key": "y"}))
        await asyncio.sleep(1)
        await session.abandon()
        assert (await leader).content == "y2"


@virtual
async def test_an_early_call_that_the_answer_did_not_come_to_is_called_off() -> None:
    async with using(looking(4.0)) as executor:
        session = executor.session("a")
        for position, key in enumerate("xyz"):
            session.start(position, a_call("look", {"key": key}))
        await asyncio.sleep(1)
        results = await session.results([a_call("look", {"key": "x"}), a_call("look", {"key": "other"})])
        assert [result.content for result in results] == ["x1", "other4"]
        assert asyncio.get_running_loop().time() == pytest.approx(5.0)


@virtual
async def test_an_unwanted_early_call_does_not_delay_the_requested_one() -> None:
    async with using(looking(4.0, max_concurrent=1)) as executor:
        session = executor.session("a")
        session.start(0, a_call("look", {"key": "x"}))
        await asyncio.sleep(1)
        assert (await ask(session, "look", key="y")).content == "y2"
        assert asyncio.get_running_loop().time() == pytest.approx(5.0)
        assert use(executor).requested == 1


@virtual
async def test_only_what_does_no_harm_is_started_early() -> None:
    made: list[str] = []
    tools = [
        Tool.define(effect="write", name="write")(lambda: made.append("write")),
        Tool.define(effect="stateful", name="stateful")(lambda: made.append("stateful")),
    ]
    async with using(*tools) as executor:
        session = executor.session("a")
        for position, tool in enumerate(tools):
            session.start(position, a_call(tool.name, {}))
        session.start(2, a_call("unheard_of", {}))
        await asyncio.sleep(1)
        await session.abandon()
        assert made == []


class Nested(BaseModel):
    a: int = 1
    b: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("annotation", "texts", "executions"),
    [
        (Any, ["1", "1.0", "true", '"1"', "null", "[1]", "[true]", '{"1":1}', '{"1":true}'], 9),
        (int, ["1", "1.0", '"1"'], 1),
        (float, ["1", "1.0"], 1),
        (Any, ['{"x":1,"y":{"p":1,"q":2}}', '{ "y": {"q":2, "p":1}, "x":1 }'], 1),
        (Nested, ["{}", '{"a":1}', '{"b":{},"a":1}'], 1),
        (Nested, ['{"b":{"x":1}}', '{"b":{"x":1.0}}', '{"b":{"x":true}}'], 3),
        (str, ['"\\u00e9"', '"é"'], 1),
        (str, ['"é"', '"e\\u0301"', '"E\\u0301"'], 3),
        (str, ['""', '" "', '"\\u0000"', '"\\u200b"'], 4),
        (Any, ["-0.0", "0.0", "0"], 3),
        (Any, ["9007199254740993", "9007199254740992"], 2),
        (Any, ["123456789012345678901234567890"], 1),
        (list[int], ["[1,2]", "[2,1]", "[1,2,0]"], 3),
        (set[int], ["[1,2]", "[2,1,1]"], 1),
    ],
)
async def test_calls_are_the_same_if_the_function_would_see_the_same(
    annotation: Any, texts: list[str], executions: int
) -> None:
    async def look(value: Any, limit: int = 5) -> str:
        return repr(value)

    look.__annotations__["value"] = annotation
    async with using(Tool.define(effect="pure")(look)) as executor:
        for text in texts:
            plain = await ask(executor, "look", f'{{"value": {text}}}')
            spelled_out = await ask(executor, "look", f'{{"limit": 5, "value": {text}}}')
            assert not plain.is_error
            assert (spelled_out.content, spelled_out.source) == (plain.content, "cached")
        await ask(executor, "look", f'{{"value": {texts[0]}, "limit": 6}}')
        assert use(executor).executed == executions + 1


async def test_a_list_that_is_read_lazily_is_told_apart_by_what_is_in_it() -> None:
    async def look(names: Iterable[str]) -> str:
        return ",".join(names)

    async with using(Tool.define(effect="pure")(look)) as executor:
        assert (await ask(executor, "look", names=["a", "b"])).content == "a,b"
        assert (await ask(executor, "look", names=["c"])).content == "c"


async def test_secrets_that_differ_are_not_the_same_argument() -> None:
    async def look(token: SecretStr) -> str:
        return f"the account of {token.get_secret_value()}"

    async with using(Tool.define(effect="pure")(look)) as executor:
        assert (await ask(executor, "look", token="a")).content == "the account of a"
        assert (await ask(executor, "look", token="b")).content == "the account of b"


class Login(BaseModel):
    user: str
    token: SecretStr


async def test_secrets_inside_a_model_are_told_apart_too() -> None:
    async def look(login: Login) -> str:
        return login.token.get_secret_value()

    async with using(Tool.define(effect="pure")(look)) as executor:
        assert (await ask(executor, "look", login={"user": "u", "token": "a"})).content == "a"
        assert (await ask(executor, "look", login={"user": "u", "token": "b"})).content == "b"


@dataclass
class Query:
    text: str = field(repr=False)


async def test_what_a_dataclass_does_not_show_still_tells_calls_apart() -> None:
    async def look(query: Query) -> str:
        return query.text

    async with using(Tool.define(effect="pure")(look)) as executor:
        assert (await ask(executor, "look", query={"text": "a"})).content == "a"
        assert (await ask(executor, "look", query={"text": "b"})).content == "b"


async def test_two_tools_never_share_even_with_the_same_arguments() -> None:
    one = Tool.define(effect="pure", name="one")(lambda: 1)
    two = Tool.define(effect="pure", name="two")(lambda: 2)
    async with using(one, two) as executor:
        assert [(await ask(executor, name)).content for name in ("one", "two", "one")] == ["1", "2", "1"]


@virtual
async def test_a_result_is_good_for_its_time_counted_from_when_it_was_looked_for() -> None:
    async with using(looking(2.0, ttl=10.0)) as executor:
        assert (await ask(executor, "look")).content == "k1"
        await asyncio.sleep(7.9)
        assert (await ask(executor, "look")).source == "cached"
        await asyncio.sleep(0.1)
        assert (await ask(executor, "look")).content == "k2"


@virtual
async def test_without_a_time_a_read_is_good_for_five_minutes_and_what_is_pure_for_ever() -> None:
    pure = Tool.define(effect="pure", name="pure")(lambda: "p")
    async with using(looking(0.0), pure) as executor:
        for _ in range(2):
            await ask(executor, "look")
            await ask(executor, "pure")
            await asyncio.sleep(300)
        await asyncio.sleep(1e6)
        await ask(executor, "pure")
        assert (use(executor).executed, use(executor, "pure").executed) == (2, 1)


@virtual
async def test_a_time_of_nothing_shares_what_is_under_way_and_keeps_nothing() -> None:
    async with using(looking(1.0, ttl=0)) as executor:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(ask(executor, "look")) for _ in range(5)]
        assert {task.result().content for task in asked} == {"k1"}
        assert (await ask(executor, "look")).content == "k2"
        assert (use(executor).shared, use(executor).cached) == (4, 0)


@virtual
async def test_a_version_decides_whether_a_result_is_still_good() -> None:
    version: Any = 1
    async with using(looking(1.0, version=lambda arguments: version)) as executor:
        assert (await ask(executor, "look")).content == "k1"
        await asyncio.sleep(1e6)
        assert (await ask(executor, "look")).source == "cached"
        version = 2
        assert (await ask(executor, "look")).content == "k2"
        under_way = asyncio.create_task(ask(executor, "look", key="x"))
        await asyncio.sleep(0.5)
        version = 3
        assert (await ask(executor, "look", key="x")).content == "x4"
        assert (await under_way).content == "x3"


@virtual
async def test_a_version_is_asked_about_the_arguments_with_their_defaults() -> None:
    seen: list[Any] = []

    def version(arguments: Any) -> int:
        seen.append(dict(arguments))
        return 1

    async with using(looking(0.0, version=version)) as executor:
        await ask(executor, "look")
        assert seen == [{"key": "k"}]


@pytest.mark.parametrize("error", [ValueError("no version"), RecursionError(), KeyError("x")])
@virtual
async def test_a_version_that_cannot_be_told_means_that_nothing_is_shared(error: Exception) -> None:
    def version(arguments: Any) -> int:
        raise error

    async with using(looking(1.0, version=version)) as executor:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(ask(executor, "look")) for _ in range(3)]
        assert sorted(task.result().content for task in asked) == ["k1", "k2", "k3"]
        assert (await ask(executor, "look")).content == "k4"


async def test_a_file_that_changes_goes_and_comes_back_is_read_anew_each_time(tmp_path: Path) -> None:
    file = tmp_path / "note.txt"

    @Tool.define(effect="read", version=lambda arguments: file.stat().st_mtime_ns)
    async def look() -> str:
        return file.read_text()

    async with using(look) as executor:
        file.write_text("one")
        assert [(await ask(executor, "look")).content for _ in range(2)] == ["one", "one"]
        file.unlink()
        for _ in range(2):
            gone = await ask(executor, "look")
            assert gone.is_error
            assert "FileNotFoundError" in gone.content
        file.write_text("two")
        assert [(await ask(executor, "look")).content for _ in range(2)] == ["two", "two"]
        assert use(executor).executed == 4


@virtual
async def test_a_result_larger_than_the_whole_cache_is_given_and_not_kept() -> None:
    number = itertools.count()

    @Tool.define(effect="pure")
    async def look(size: int) -> str:
        next(number)
        return "x" * size

    async with using(look, cache_bytes=10_000) as executor:
        await ask(executor, "look", size=10)
        for _ in range(2):
            assert len((await ask(executor, "look", size=6_000)).content) == 6_000
        assert (await ask(executor, "look", size=10)).source == "cached"
        assert next(number) == 3


@pytest.mark.slow
@virtual
async def test_ten_thousand_results_stay_within_the_bytes_of_the_cache_and_the_last_ones_are_kept() -> None:
    async with using(looking(0.0, effect="pure"), cache_bytes=100_000) as executor:
        session = executor.session("a")
        for number in range(10_000):
            await session.results([a_call("look", {"key": str(number)})])
        recent = [await ask(session, "look", key=str(number)) for number in range(9_999, 9_699, -1)]
        kept = [result.source for result in recent].index("executed")
        assert 100_000 // 800 < kept <= 100_000 // 512
        assert (await ask(session, "look", key="0")).source == "executed"


@virtual
async def test_the_least_recently_used_result_goes_first() -> None:
    async with using(looking(0.0, effect="pure"), cache_bytes=3 * 530) as executor:
        for key in "abcad":
            await ask(executor, "look", key=key)
        assert [(await ask(executor, "look", key=key)).source for key in "dacb"] == [
            "cached",
            "cached",
            "cached",
            "executed",
        ]


@virtual
async def test_a_slow_old_execution_does_not_take_the_place_of_a_newer_result() -> None:
    value, delays = "old", iter([10.0, 1.0])

    @Tool.define(effect="read")
    async def look() -> str:
        seen = value
        await asyncio.sleep(next(delays))
        return seen

    @Tool.define(effect="write")
    async def change() -> None:
        nonlocal value
        value = "new"

    async with using(look, change) as executor:
        writer, watcher = executor.session("writer"), executor.session("watcher")
        slow = asyncio.create_task(ask(executor, "look"))
        await asyncio.sleep(1)
        await ask(writer, "change")
        assert (await ask(writer, "look")).content == "new"
        assert (await ask(watcher, "look")).content == "new"
        assert (await slow).content == "old"
        assert (await ask(watcher, "look")).content == "new"


def a_store(read_seconds: float, write_seconds: float) -> tuple[dict[str, int], Tool, Tool]:
    kept = {"n": 0}

    @Tool.define(effect="read", ttl=1000)
    async def get() -> int:
        seen = kept["n"]
        await asyncio.sleep(read_seconds)
        return seen

    @Tool.define(effect="write")
    async def put(n: int) -> str:
        await asyncio.sleep(write_seconds)
        kept["n"] = n
        return "put"

    return kept, get, put


@virtual
async def test_an_agent_never_reads_what_is_older_than_its_own_write() -> None:
    _, get, put = a_store(5.0, 1.0)
    async with using(get, put) as executor:
        writer, reader = executor.session("writer"), executor.session("reader")
        assert (await ask(reader, "get")).content == "0"
        assert (await ask(writer, "get")).source == "cached"
        await ask(writer, "put", n=1)
        assert (await ask(reader, "get")).source == "cached"  # it has not written
        under_way = asyncio.create_task(ask(reader, "get"))
        mine = await ask(writer, "get")
        assert (mine.content, mine.source) == ("1", "executed")
        assert (await under_way).content == "0"
        assert (await ask(writer, "get")).source == "cached"
        assert (await ask(reader, "get")).content == "1"


@virtual
async def test_an_agent_does_not_join_a_read_that_began_before_its_write_was_over() -> None:
    _, get, put = a_store(5.0, 1.0)
    async with using(get, put) as executor:
        writer, reader = executor.session("writer"), executor.session("reader")
        writing = asyncio.create_task(ask(writer, "put", n=1))
        await asyncio.sleep(0.5)
        old = asyncio.create_task(ask(reader, "get"))
        await writing
        new = asyncio.create_task(ask(writer, "get"))
        await asyncio.sleep(0.5)
        late = asyncio.create_task(ask(reader, "get"))
        assert [(await task).content for task in (old, new, late)] == ["0", "1", "1"]
        assert late.result().source == "shared"


@virtual
async def test_a_read_that_began_in_the_very_tick_of_the_write_is_too_old() -> None:
    _, get, put = a_store(5.0, 0.0)
    async with using(get, put) as executor:
        writer = executor.session("writer")
        old = asyncio.create_task(ask(executor, "get"))
        for _ in range(3):
            await asyncio.sleep(0)
        await ask(writer, "put", n=1)
        assert (await ask(writer, "get")).content == "1"
        assert (await old).content == "0"


@virtual
async def test_a_write_that_failed_counts_as_one() -> None:
    kept = [0]

    @Tool.define(effect="write")
    async def put() -> None:
        kept[0] = 1
        raise ConnectionError("after it was made")

    @Tool.define(effect="read")
    async def get() -> int:
        return kept[0]

    async with using(get, put) as executor:
        session = executor.session("a")
        assert (await ask(session, "get")).content == "0"
        await asyncio.sleep(1)
        assert (await ask(session, "put")).is_error
        assert (await ask(session, "get")).content == "1"


@virtual
async def test_cached_results_of_pure_tools_survive_a_write() -> None:
    pure = looking(0.0, effect="pure")
    write = Tool.define(effect="write", name="write")(lambda: None)
    async with using(pure, write) as executor:
        session = executor.session("a")
        await ask(session, "look")
        await asyncio.sleep(1)
        await ask(session, "write")
        assert (await ask(session, "look")).source == "cached"


@virtual
async def test_stateful_calls_and_writes_are_never_shared() -> None:
    for effect in ("stateful", "write"):
        async with using(looking(1.0, effect=effect)) as executor:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(ask(executor, "look")) for _ in range(5)]
            assert sorted(task.result().content for task in asked) == [f"k{n}" for n in range(1, 6)]
            assert {task.result().source for task in asked} == {"executed"}


@virtual
async def test_agents_with_the_same_history_share_and_others_do_not() -> None:
    seen: list[tuple[str, tuple[str, ...]]] = []

    @Tool.define(effect="stateful", history_arg="before")
    async def turn_page(to: str, before: tuple[str, ...]) -> str:
        seen.append((to, before))
        await asyncio.sleep(1)
        return f"{len(before)} before {to}"

    async with using(turn_page) as executor:
        assert executor.specs[0].parameters["properties"].keys() == {"to"}
        one, two = executor.session("1"), executor.session("2")
        async with asyncio.TaskGroup() as group:
            first = [group.create_task(ask(session, "turn_page", to="a")) for session in (one, two)]
        assert [task.result().source for task in first] == ["executed", "shared"]
        assert (await ask(one, "turn_page", to="b")).content == "1 before b"
        assert (await ask(two, "turn_page", to="c")).content == "1 before c"
        assert (await ask(one, "turn_page", to="d")).content == "2 before d"
        assert (await ask(two, "turn_page", to="d")).content == "2 before d"
        a, b, c = ('{"to":"a"}', '{"to":"b"}', '{"to":"c"}')
        assert seen == [("a", ()), ("b", (a,)), ("c", (a,)), ("d", (a, b)), ("d", (a, c))]


@virtual
async def test_a_model_cannot_fill_in_what_is_hidden_from_it() -> None:
    @Tool.define(effect="stateful", history_arg="before")
    async def turn_page(before: tuple[str, ...]) -> str:
        return str(len(before))

    async with using(turn_page) as executor:
        result = await ask(executor, "turn_page", before=["a", "b"])
        assert result.is_error
        assert "before" in result.content


class Notes:
    """A journal that can be read."""

    def __init__(self) -> None:
        self.said: list[str] = []

    is_durable = True

    async def identity(self) -> str:
        return "run"

    async def claim(self, call: ToolCall) -> None:
        await asyncio.sleep(1)
        self.said.append(f"claimed {call.id}")

    def withdraw(self, call: ToolCall) -> None:
        self.said.append(f"withdrawn {call.id}")

    def settle(self, result: ToolResult) -> None:
        self.said.append(f"settled {result.call.id} {result.content}")


@virtual
async def test_a_write_is_claimed_before_it_is_made_and_settled_after() -> None:
    notes = Notes()

    @Tool.define(effect="write")
    async def put() -> str:
        notes.said.append("made")
        return "put"

    async with using(put) as executor:
        await executor.session("a", notes).results([a_call("put", {})])
        assert notes.said == ["claimed c1", "made", "settled c1 put"]


@virtual
async def test_a_write_that_is_cancelled_while_it_is_claimed_is_not_made() -> None:
    notes = Notes()

    @Tool.define(effect="write")
    async def put() -> str:
        notes.said.append("made")
        return "put"

    async with using(put) as executor:
        writing = asyncio.create_task(executor.session("a", notes).results([a_call("put", {})]))
        await asyncio.sleep(0.5)
        writing.cancel()
        await asyncio.wait([writing])
        await asyncio.sleep(5)
        assert notes.said == ["withdrawn c1"]


@virtual
async def test_a_call_that_cannot_be_made_is_not_claimed() -> None:
    notes = Notes()

    @Tool.define(effect="write")
    async def put(n: int) -> int:
        return n

    async with using(put) as executor:
        session = executor.session("a", notes)
        assert (await ask(session, "put", n="many")).is_error
        assert (await ask(session, "unheard_of")).is_error
        assert notes.said == []


@virtual
async def test_recorded_writes_are_recalled_and_unknown_ones_reported_as_unknown() -> None:
    made: list[str] = []

    @Tool.define(effect="write")
    async def put(n: int) -> str:
        made.append(str(n))
        return f"put {n}"

    calls = [ToolCall(f"c{n}", "put", f'{{"n":{n}}}') for n in range(4)]
    past = CallHistory(
        1, {"c0": ToolResult(calls[0], "was put")}, frozenset({"c1"}), (ToolResult(calls[2], "put before"),)
    )
    notes = Notes()
    async with using(put) as executor:
        known, unknown, inherited, fresh = await executor.session("a", notes).results(calls, past)
    assert (known.content, known.source) == ("was put", "restored")
    assert "not known whether this call was made" in unknown.content
    assert (unknown.is_error, unknown.source) == (True, "restored")
    assert (inherited.content, inherited.source, inherited.call) == ("put before", "restored", calls[2])
    assert (fresh.content, fresh.source) == ("put 3", "executed")
    assert made == ["3"]
    assert [line.split()[:2] for line in notes.said if "c1" in line] == [["settled", "c1"]]


@virtual
async def test_a_call_with_a_key_is_made_again_with_the_same_key() -> None:
    keys: list[str] = []

    @Tool.define(effect="write", idempotency_arg="key")
    async def put(n: int, key: str) -> str:
        keys.append(key)
        return "put"

    calls = [ToolCall("c1", "put", '{"n":1}'), ToolCall("c2", "put", '{"n":1}')]
    async with using(put) as executor:
        assert executor.specs[0].parameters["properties"].keys() == {"n"}
        await executor.session("a", Notes()).results(calls, CallHistory(3))
        await executor.session("a", Notes()).results(calls, CallHistory(3, claimed=frozenset({"c1", "c2"})))
        await executor.session("b", Notes()).results(calls, CallHistory(3))
        await executor.session("a", Notes()).results(calls, CallHistory(4))
    assert keys[:2] == keys[2:4]
    assert len(set(keys)) == 6


@virtual
async def test_one_write_of_an_earlier_life_stands_for_one_call_of_this_one() -> None:
    made = 0

    @Tool.define(effect="write")
    async def add() -> str:
        nonlocal made
        made += 1
        return "added"

    calls = [ToolCall("c1", "add", "{}"), ToolCall("c2", "add", "{}")]
    past = CallHistory(1, inherited=(ToolResult(ToolCall("c9", "add", "{}"), "added"),))
    async with using(add) as executor:
        results = await executor.session("a", Notes()).results(calls, past)
    assert sorted(result.source for result in results) == ["executed", "restored"]
    assert made == 1


@virtual
async def test_the_same_write_in_other_words_is_still_the_same_write() -> None:
    made: list[int] = []

    @Tool.define(effect="write")
    async def put(n: int, m: int) -> str:
        made.append(n)
        return "put"

    past = CallHistory(1, inherited=(ToolResult(ToolCall("c9", "put", '{"n":1,"m":2}'), "put before"),))
    async with using(put) as executor:
        [result] = await executor.session("a", Notes()).results([ToolCall("c1", "put", '{"m": 2, "n": 1}')], past)
    assert (result.source, made) == ("restored", [])


@pytest.mark.parametrize("effect", ["write", "stateful"])
@virtual
async def test_an_agent_that_is_cancelled_is_cancelled_whatever_its_tool_makes_of_it(effect: Any) -> None:
    @Tool.define(effect=effect)
    async def put() -> str:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            raise ConnectionError("interrupted") from None
        return "put"

    async with using(put) as executor:
        asking = asyncio.create_task(ask(executor, "put"))
        await asyncio.sleep(1)
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()


@virtual
async def test_every_answered_call_is_in_the_account_once() -> None:
    number = itertools.count(1)

    @Tool.define(effect="read", ttl=10)
    async def look(key: int) -> str:
        await asyncio.sleep(2)
        if key == 0:
            raise LookupError("nothing")
        return str(next(number))

    async with using(look) as executor:
        for _ in range(3):  # executed and shared, then cached, but for the failing one
            async with asyncio.TaskGroup() as group:
                for key in range(4):
                    for _ in range(5):
                        group.create_task(ask(executor, "look", key=key))
        told = use(executor)
        assert told.requested == 60 == told.executed + told.shared + told.cached
        assert (told.executed, told.shared, told.cached, told.failed) == (3 + 3, 12 + 3 * 4, 30, 15)
        assert told.seconds == pytest.approx(12.0)
        assert told.seconds_saved == pytest.approx((24 + 30) * 2.0)
        assert (told.p50, told.p75, told.p99) == pytest.approx((2.0, 2.0, 2.0))


def test_quantiles_are_those_of_the_last_executions_and_none_before_the_first() -> None:
    stats = ToolStats("t")
    assert stats.quantile(0.5) is stats.summary().p99 is None
    stats.record_execution(7.0)
    assert (stats.summary().p50, stats.summary().p99) == (7.0, 7.0)
    for seconds in range(1, 1001):
        stats.record_execution(float(seconds))
    told = stats.summary()
    assert told.p50 is not None
    assert told.p75 is not None
    assert told.p99 is not None
    # Of the last 512, which are 489 to 1000.
    assert abs(told.p50 - 744.5) <= 1
    assert abs(told.p75 - 872.5) <= 1
    assert abs(told.p99 - 995) <= 1
    assert told.executed == 1001
    assert math.isclose(told.seconds, 7 + 500_500)


@pytest.mark.slow
@virtual
async def test_a_thousand_agents_that_read_ten_documents_read_each_once() -> None:
    async with using(looking(0.2)) as executor:
        async with asyncio.TaskGroup() as group:
            for agent in range(1000):
                session = executor.session(str(agent))
                group.create_task(session.results([a_call("look", {"key": str(n)}) for n in range(10)]))
        told = use(executor)
        assert (told.requested, told.executed, told.shared) == (10_000, 10, 9_990)
        assert asyncio.get_running_loop().time() == pytest.approx(0.2)


@pytest.mark.parametrize(
    "options",
    [
        {"effect": "write", "ttl": 1},
        {"effect": "stateful", "keeps_errors": True},
        {"effect": "write", "version": lambda arguments: 1},
        {"effect": "read", "idempotency_arg": "key"},
        {"effect": "read", "history_arg": "key"},
        {"effect": "sometimes"},
        {"effect": "read", "ttl": -1},
        {"effect": "read", "ttl": True},
        {"effect": "read", "ttl": float("nan")},
    ],
)
def test_invalid_tool_policies_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="Tool 'f'"):
        Tool.define(name="f", **options)(lambda key: None)


@pytest.mark.parametrize("option", ["idempotency_arg", "history_arg"])
def test_a_hidden_parameter_that_the_function_does_not_have_is_refused(option: str) -> None:
    effect = "write" if option == "idempotency_arg" else "stateful"
    options: dict[str, Any] = {"effect": effect, option: "kee"}
    with pytest.raises(SpecError, match="kee"):
        Tool.define(name="f", **options)(lambda key: None)
