"""A tool is worked as hard as it allows: so many at once, so many a second, each within its time."""

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, ParamSpec

import orjson
import pytest
from tests.support.virtual_time import in_virtual_time

from batch_agent import SpecError, Tool
from batch_agent.core.messages import ToolCall, ToolResult
from batch_agent.core.protocols.tool_set import CallHistory
from batch_agent.testing import VirtualTimeLoop
from batch_agent.tools import ToolExecutor, as_tool

P = ParamSpec("P")


class WatchfulLoop(VirtualTimeLoop):
    """Ends a test whose clock stands still while everybody is busy, instead of waiting for it for ever."""

    _seen, _times = -1.0, 0

    def time(self) -> float:
        now = super().time()
        self._times = self._times + 1 if now == self._seen else 0
        self._seen = now
        if self._times == 200_000:
            raise RuntimeError(f"It is {now} and stays so.")
        return now


virtual = in_virtual_time(WatchfulLoop)


@asynccontextmanager
async def using(*tools: Any, **options: Any) -> AsyncIterator[ToolExecutor]:
    """A executor that leaves nothing behind."""
    settings: dict[str, Any] = {"timeout": None, "max_tokens": 1000} | options
    executor = ToolExecutor([as_tool(tool) for tool in tools], **settings)
    before = asyncio.all_tasks()
    try:
        yield executor
    finally:
        await executor.aclose()
    await asyncio.sleep(0.001)
    assert asyncio.all_tasks() <= before


async def ask(executor: ToolExecutor, name: str, **arguments: Any) -> ToolResult:
    [result] = await executor.session("a").results([ToolCall("c1", name, orjson.dumps(arguments).decode())])
    return result


def now() -> float:
    return asyncio.get_running_loop().time()


class Watched:
    """A tool `work` that notes when it began, and how many of it ran at once."""

    def __init__(self, seconds: float = 1.0, **options: Any) -> None:
        self.began: list[tuple[float, int]] = []
        self.running = self.most = 0
        self._seconds = seconds
        self.tool = Tool.define(name="work", effect=options.pop("effect", "stateful"), **options)(self.work)

    async def work(self, n: int = 0) -> str:
        self.began.append((round(now(), 6), n))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self._seconds)
        finally:
            self.running -= 1
        return str(n)

    def per_second(self) -> Counter[int]:
        return Counter(int(time) for time, _ in self.began)


@virtual
async def test_exactly_as_many_calls_run_at_once_as_allowed() -> None:
    watched = Watched(1.0, max_concurrent=3)
    async with using(watched.tool) as executor, asyncio.TaskGroup() as group:
        for n in range(10):
            group.create_task(ask(executor, "work", n=n))
    assert watched.most == 3
    assert [time for time, _ in watched.began] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
    assert [n for _, n in watched.began] == list(range(10))


@virtual
async def test_a_cancelled_waiting_call_takes_no_slot() -> None:
    watched = Watched(1.0, max_concurrent=2)
    async with using(watched.tool) as executor:
        asked = [asyncio.create_task(ask(executor, "work", n=n)) for n in range(50)]
        await asyncio.sleep(0.5)
        for task in asked[::2]:  # one that runs, and many that wait
            task.cancel()
        await asyncio.wait(asked)
        assert [n for _, n in watched.began] == [0, 1, *range(3, 50, 2)]
        assert watched.most == 2
        watched.began.clear()
        started = now()
        await asyncio.wait([asyncio.create_task(ask(executor, "work")) for _ in range(2)])
        assert [time - started for time, _ in watched.began] == pytest.approx([0, 0])


@pytest.mark.parametrize("ticks", range(6))
@virtual
async def test_a_tool_slot_granted_to_a_cancelled_call_is_not_lost(ticks: int) -> None:
    watched = Watched(1.0, max_concurrent=1)
    async with using(watched.tool) as executor:
        asked = [asyncio.create_task(ask(executor, "work", n=n)) for n in range(3)]
        await asked[0]
        for _ in range(ticks):
            await asyncio.sleep(0)
        asked[1].cancel()
        await asyncio.wait(asked)
        assert asked[2].result().content == "2"
        assert now() <= 2.5


@virtual
async def test_a_failed_call_releases_its_tool_slot() -> None:
    @Tool.define(max_concurrent=1, timeout=1.0)
    async def work(kind: str) -> str:
        if kind == "raises":
            raise ValueError("no")
        if kind == "hangs":
            await asyncio.sleep(100)
        return "done"

    async with using(work) as executor:
        for kind in ("raises", "hangs") * 5:
            assert (await ask(executor, "work", kind=kind)).is_error
        assert (await ask(executor, "work", kind="works")).content == "done"


@virtual
async def test_the_clock_of_a_call_stands_still_while_it_waits_for_its_turn() -> None:
    one_by_one = Watched(0.9, max_concurrent=1, timeout=1.0)
    async with using(one_by_one.tool) as executor:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(ask(executor, "work", n=n)) for n in range(20)]
        assert not any(task.result().is_error for task in asked)
    slowly = Watched(0.9, rate_limit=0.1, timeout=1.0)
    async with using(slowly.tool) as executor:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(ask(executor, "work", n=n)) for n in range(5)]
        assert not any(task.result().is_error for task in asked)


@virtual
async def test_a_tools_own_time_counts_before_that_of_the_run() -> None:
    own, other = Watched(5.0, timeout=10.0), Tool.define(name="other")(Watched(5.0).work)
    async with using(own.tool, other, timeout=1.0) as executor:
        assert (await ask(executor, "work")).content == "0"
        late = await ask(executor, "other")
        assert late.content.startswith("other took longer than its 1 s (timeout_per_tool).")


@pytest.mark.slow
@virtual
async def test_a_thousand_waiters_are_let_through_at_the_rate_and_not_faster() -> None:
    watched = Watched(0.5, rate_limit=50)
    async with using(watched.tool) as executor, asyncio.TaskGroup() as group:
        for n in range(1000):
            group.create_task(ask(executor, "work", n=n))
    assert len(watched.began) == 1000
    assert [n for _, n in watched.began] == list(range(1000))
    times = [time for time, _ in watched.began]
    assert times[:50] == [0.0] * 50
    assert times[50:] == pytest.approx([k / 50 for k in range(1, 951)], abs=1e-4)
    per_second = watched.per_second()
    assert abs(per_second[0] - 99) <= 1  # the burst, and what trickles in meanwhile
    assert all(abs(per_second[second] - 50) <= 1 for second in range(1, 19))


@pytest.mark.parametrize(("rate", "burst"), [(1, None), (10, 1), (10, 25), (0.5, None), (2.5, None), (0.25, 4)])
@virtual
async def test_in_no_stretch_of_time_do_more_begin_than_burst_and_rate_allow(rate: float, burst: int | None) -> None:
    options: dict[str, Any] = {"rate_limit": rate} | ({"burst": burst} if burst else {})
    watched = Watched(0.1, **options)
    async with using(watched.tool) as executor, asyncio.TaskGroup() as group:
        for n in range(40):
            group.create_task(ask(executor, "work", n=n))
            if n % 10 == 9:
                await asyncio.sleep(3.3)
    times = sorted(time for time, _ in watched.began)
    at_once = burst or max(1, int(rate))
    for first, last in itertools.combinations(range(40), 2):
        assert last - first + 1 <= at_once + rate * (times[last] - times[first]) + 1e-3
    assert times.count(0.0) == min(at_once, 10)


@virtual
async def test_the_rate_is_counted_by_its_key() -> None:
    watched = Watched(0.1, rate_limit=1, rate_key=lambda arguments: str(arguments["n"] % 3))
    async with using(watched.tool) as executor, asyncio.TaskGroup() as group:
        for n in range(9):
            group.create_task(ask(executor, "work", n=n))
    times = {n: time for time, n in watched.began}
    assert [times[n] for n in range(9)] == pytest.approx([n // 3 for n in range(9)])


@virtual
async def test_a_slow_key_does_not_hold_up_the_others_where_places_are_few() -> None:
    watched = Watched(0.1, rate_limit=1, max_concurrent=2, rate_key=lambda arguments: str(arguments["n"] // 100))
    async with using(watched.tool) as executor, asyncio.TaskGroup() as group:
        for n in (0, 1, 2, 3, 4, 100):
            group.create_task(ask(executor, "work", n=n))
    assert next(time for time, n in watched.began if n == 100) < 1.0


@pytest.mark.parametrize("rate_key", [lambda arguments: arguments["nothing"], lambda arguments: [1]])
@virtual
async def test_a_rate_key_that_fails_is_a_result(rate_key: Any) -> None:
    watched = Watched(0.1, rate_limit=1, rate_key=rate_key)
    async with using(watched.tool) as executor:
        assert (await ask(executor, "work")).is_error
        assert watched.began == []


@virtual
async def test_waiters_that_leave_a_queue_do_not_use_up_its_rate() -> None:
    watched = Watched(0.1, rate_limit=1)
    async with using(watched.tool) as executor:
        asked = [asyncio.create_task(ask(executor, "work", n=n)) for n in range(100)]
        await asyncio.sleep(0.5)
        for task in asked[1:99]:
            task.cancel()
        await asyncio.wait(asked)
        assert [n for _, n in watched.began] == [0, 99]
        assert [time for time, _ in watched.began] == pytest.approx([0.0, 1.0])


@virtual
async def test_cached_and_shared_calls_use_up_neither_places_nor_rate() -> None:
    watched = Watched(1.0, effect="read", rate_limit=1, max_concurrent=1)
    async with using(watched.tool) as executor:
        for _ in range(2):
            async with asyncio.TaskGroup() as group:
                for _ in range(100):
                    group.create_task(ask(executor, "work"))
        assert len(watched.began) == 1
        assert now() == pytest.approx(1.0)


def failing(times: int, error: Exception) -> Callable[[], Coroutine[Any, Any, str]]:
    attempts = itertools.count()

    async def work() -> str:
        if next(attempts) < times:
            raise error
        return f"after {times}"

    return work


@virtual
async def test_an_error_that_may_pass_is_tried_again_and_others_are_not() -> None:
    options: dict[str, Any] = {
        "name": "work",
        "effect": "stateful",
        "retries": 3,
        "retry_on": (ConnectionError,),
        "backoff": 2.0,
    }
    async with using(Tool.define(**options)(failing(3, ConnectionResetError("reset")))) as executor:
        assert (await ask(executor, "work")).content == "after 3"
        assert (1 + 2 + 4) <= now() <= (2 + 4 + 8)
    async with using(Tool.define(**options)(failing(4, ConnectionResetError("reset")))) as executor:
        assert (await ask(executor, "work")).content == "ConnectionResetError: reset"
        assert (await ask(executor, "work")).content == "after 4"
    async with using(Tool.define(**options)(failing(1, ValueError("wrong")))) as executor:
        assert (await ask(executor, "work")).content == "ValueError: wrong"


@virtual
async def test_a_call_that_waits_for_a_retry_holds_no_tool_slot() -> None:
    attempts: list[float] = []

    @Tool.define(effect="stateful", max_concurrent=1, retries=1, retry_on=(ConnectionError,), backoff=10.0)
    async def work(n: int) -> str:
        attempts.append(now())
        if n == 0 and len(attempts) == 1:
            raise ConnectionError("away")
        return str(n)

    async with using(work) as executor:
        async with asyncio.TaskGroup() as group:
            group.create_task(ask(executor, "work", n=0))
            group.create_task(ask(executor, "work", n=1))
        assert attempts[1] == 0.0
        assert 5 <= attempts[2] <= 10


@virtual
async def test_each_try_has_its_own_time_and_takes_its_share_of_the_rate() -> None:
    attempts: list[float] = []

    @Tool.define(effect="stateful", timeout=1.0, rate_limit=0.1, retries=2, retry_on=(ConnectionError,), backoff=0.01)
    async def work() -> str:
        attempts.append(now())
        await asyncio.sleep(0.9)
        raise ConnectionError("away")

    async with using(work) as executor:
        assert (await ask(executor, "work")).content == "ConnectionError: away"
    assert attempts == pytest.approx([0, 10, 20], abs=0.01)


@virtual
async def test_a_time_limit_of_ours_is_not_an_error_of_the_tools() -> None:
    attempts = itertools.count()

    @Tool.define(effect="stateful", timeout=1.0, retries=3, retry_on=(TimeoutError,))
    async def work() -> str:
        next(attempts)
        await asyncio.sleep(10)
        return "never"

    async with using(work) as executor:
        assert "took longer than its 1 s" in (await ask(executor, "work")).content
    assert next(attempts) == 1


@virtual
async def test_a_write_that_is_tried_again_keeps_its_key() -> None:
    keys: list[str] = []

    @Tool.define(idempotency_arg="key", retries=2, retry_on=(ConnectionError,))
    async def put(key: str) -> str:
        keys.append(key)
        if len(keys) < 3:
            raise ConnectionError("away")
        return "put"

    async with using(put) as executor:
        [result] = await executor.session("a").results([ToolCall("c1", "put", "{}")], CallHistory(2))
    assert result.content == "put"
    assert keys == ["a-2-c1"] * 3 or len(set(keys)) == 1 < len(keys)


def test_a_write_without_a_key_may_not_be_tried_again() -> None:
    with pytest.raises(SpecError, match="idempotency_arg"):
        Tool.define(name="put", effect="write", retries=2, retry_on=(ConnectionError,))(failing(1, ConnectionError()))


@virtual
async def test_a_call_that_is_given_up_is_not_tried_again() -> None:
    began: list[float] = []

    @Tool.define(effect="read", retries=3, retry_on=(ConnectionError,))
    async def work() -> str:
        began.append(now())
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            raise ConnectionError("interrupted") from None
        return "never"

    async with using(work) as executor:
        asking = asyncio.create_task(ask(executor, "work"))
        await asyncio.sleep(1)
        asking.cancel()
        await asyncio.wait([asking])
        await asyncio.sleep(10)
        assert began == [0.0]


@virtual
async def test_the_tries_of_a_shared_call_serve_all_who_wait() -> None:
    attempts = itertools.count(1)

    @Tool.define(effect="read", retries=5, retry_on=(ConnectionError,))
    async def work() -> str:
        if (mine := next(attempts)) < 3:
            raise ConnectionError("away")
        return str(mine)

    async with using(work) as executor:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(ask(executor, "work")) for _ in range(20)]
        assert {task.result().content for task in asked} == {"3"}


async def test_a_thread_past_its_timeout_holds_its_tool_slot_and_no_call_waits_forever() -> None:
    hang = threading.Event()
    began: list[int] = []

    @Tool.define(max_concurrent=2, timeout=0.05, effect="read")
    def work(n: int) -> str:
        began.append(n)
        hang.wait(60)
        return "late"

    async with using(work) as executor:
        try:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(ask(executor, "work", n=n)) for n in range(80)]
            told = Counter(task.result().content.split(" (")[0] for task in asked)
            assert len(began) <= 2
            assert told == {
                "work took longer than its 0.05 s": 2,
                "work was not called: all 2 of its places": 78,
            }
        finally:
            hang.set()
        async with asyncio.timeout(60):
            while (result := await ask(executor, "work", n=100)).is_error:  # threads take a moment to end, and to begin
                await asyncio.sleep(0.01)
        assert result.content == "late"


async def test_threads_that_time_out_never_run_beside_more_than_the_limit() -> None:
    running, most, lock = 0, 0, threading.Lock()

    @Tool.define(max_concurrent=3, timeout=0.01, effect="read")
    def work(n: int) -> str:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.03)
        with lock:
            running -= 1
        return "done"

    async with using(work) as executor, asyncio.TaskGroup() as group:
        for n in range(40):
            group.create_task(ask(executor, "work", n=n))
    assert most <= 3


@virtual
async def test_no_bucket_waits_for_ever_however_small_its_share() -> None:
    watched = Watched(0.0, rate_limit=1 / 3)
    async with using(watched.tool) as executor, asyncio.TaskGroup() as group:
        for n in range(100):
            group.create_task(ask(executor, "work", n=n))
    assert [time for time, _ in watched.began] == pytest.approx([3.0 * n for n in range(100)], abs=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": True},
        {"max_concurrent": 0},
        {"max_concurrent": True},
        {"max_concurrent": 1.5},
        {"rate_limit": 0},
        {"burst": 1},
        {"rate_key": lambda arguments: "x"},
        {"rate_limit": 1, "burst": 0},
        {"retries": 1},
        {"retry_on": (ValueError,)},
        {"retries": -1, "retry_on": (ValueError,)},
        {"retries": 1, "retry_on": (ValueError,), "backoff": 0},
    ],
)
def test_a_pace_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="Tool 'f'"):
        Tool.define(name="f", effect="read", **options)(lambda: None)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": float("nan")},
        {"timeout": float("inf"), "rate_limit": float("nan")},
        {"retries": 1, "retry_on": ("ValueError",)},
        {"retries": 1, "retry_on": (asyncio.CancelledError,)},
    ],
)
def test_a_pace_that_could_only_fail_later_is_refused_as_well(options: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="Tool 'f'"):
        Tool.define(name="f", effect="read", **options)(lambda: None)
