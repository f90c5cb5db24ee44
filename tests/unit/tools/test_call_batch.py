"""Calls that arrive together become one call of a function that answers many."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ParamSpec

import orjson
import pytest
from tests.support.virtual_time import virtual

from batch_agent import SpecError, Tool
from batch_agent.core.messages import ToolCall, ToolResult
from batch_agent.tools import ToolExecutor

P = ParamSpec("P")


@asynccontextmanager
async def using(*tools: Tool, **options: Any) -> AsyncIterator[ToolExecutor]:
    """A executor that leaves nothing behind."""
    settings: dict[str, Any] = {"timeout": None, "max_tokens": 1000} | options
    executor = ToolExecutor(tools, **settings)
    before = asyncio.all_tasks()
    try:
        yield executor
    finally:
        await executor.aclose()
    await asyncio.sleep(0.001)
    assert asyncio.all_tasks() <= before


async def ask(executor: ToolExecutor, key: Any, **others: Any) -> ToolResult:
    arguments = orjson.dumps({"key": key, **others}).decode()
    [result] = await executor.session("a").results([ToolCall("c1", "look", arguments)])
    return result


async def ask_all(executor: ToolExecutor, keys: Any, **others: Any) -> list[ToolResult]:
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(ask(executor, key, **others)) for key in keys]
    return [task.result() for task in asked]


def now() -> float:
    return asyncio.get_running_loop().time()


class Library:
    """A tool `look` that notes which keys it was asked for together, and when."""

    def __init__(self, seconds: float = 0.0, poison: Any = (), **options: Any) -> None:
        self.batches: list[list[Any]] = []
        self.times: list[float] = []
        self._seconds = seconds
        self._poison = poison
        self.tool = Tool.batchable(key_arg="key", name="look", **options)(self.look)

    async def look(self, keys: list[Any]) -> list[str]:
        self.batches.append(list(keys))
        self.times.append(now())
        await asyncio.sleep(self._seconds)
        if bad := [key for key in keys if key in self._poison]:
            raise ValueError(f"bad {bad}")
        return [f"about {key}" for key in keys]


@virtual
async def test_calls_within_the_window_become_one() -> None:
    library = Library(1.0, window=0.01)
    async with using(library.tool) as executor:
        first = asyncio.create_task(ask_all(executor, range(10)))
        await asyncio.sleep(0.009)
        last = asyncio.create_task(ask(executor, 10))
        await asyncio.sleep(0.002)
        late = asyncio.create_task(ask(executor, 11))
        assert [result.content for result in await first] == [f"about {n}" for n in range(10)]
        assert ((await last).content, (await late).content) == ("about 10", "about 11")
    assert library.batches == [list(range(11)), [11]]
    assert library.times == pytest.approx([0.01, 0.021])


@virtual
async def test_the_model_sees_one_key_of_the_type_of_those_in_the_list() -> None:
    @Tool.batchable(key_arg="isbn")
    async def look(isbns: list[int], edition: str = "first") -> dict[int, str]:
        """Find a book."""
        return {isbn: f"{edition} of {isbn}" for isbn in isbns}

    [spec] = ToolExecutor([look], timeout=None, max_tokens=1).specs
    assert (spec.name, spec.description) == ("look", "Find a book.")
    assert spec.parameters["properties"]["isbn"] == {"type": "integer"}
    assert spec.parameters["required"] == ["isbn"]
    assert look.sharing.effect == "read"
    assert await look(isbn=3, edition="second") == "second of 3"


@virtual
async def test_a_full_batch_does_not_wait_for_its_window() -> None:
    library = Library(max_batch=4, window=10.0)
    async with using(library.tool) as executor:
        results = await ask_all(executor, range(10))
    assert [result.content for result in results] == [f"about {n}" for n in range(10)]
    assert library.batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert library.times == pytest.approx([0, 0, 10])


@virtual
async def test_a_thousand_calls_are_ten_executions_of_a_hundred() -> None:
    library = Library(0.2)
    async with using(library.tool) as executor:
        await ask_all(executor, range(1000))
        assert executor.uses[0].requested == 1000
    assert [len(batch) for batch in library.batches] == [100] * 10


@virtual
async def test_a_window_of_nothing_still_gathers_what_comes_in_the_same_tick() -> None:
    library = Library(window=0)
    async with using(library.tool) as executor:
        await ask_all(executor, range(5))
    assert library.batches == [[0, 1, 2, 3, 4]]


@virtual
async def test_equal_keys_are_asked_for_once_and_answered_each() -> None:
    library = Library(1.0)
    async with using(library.tool) as executor:
        results = await ask_all(executor, ["a", "b", "a", "a"])
        assert [result.content for result in results] == ["about a", "about b", "about a", "about a"]
        assert (await ask(executor, "a")).source == "cached"
    assert library.batches == [["a", "b"]]


@virtual
async def test_equal_keys_of_calls_that_may_not_be_shared_are_asked_for_each() -> None:
    library = Library(effect="stateful")
    async with using(library.tool) as executor:
        assert len(await ask_all(executor, ["a", "a"])) == 2
    assert library.batches == [["a", "a"]]


@pytest.mark.parametrize("shape", ["dict", "list", "tuple"])
@pytest.mark.parametrize("is_async", [True, False])
async def test_answers_come_as_a_dict_or_in_order_from_sync_and_async_functions(shape: str, is_async: bool) -> None:
    threads: list[str] = []

    def answers(keys: list[str]) -> Any:
        threads.append(threading.current_thread().name)
        found = [key.upper() for key in keys]
        return dict(zip(keys, found, strict=True)) if shape == "dict" else tuple(found) if shape == "tuple" else found

    async def answers_async(keys: list[str]) -> Any:
        return answers(keys)

    tool = Tool.batchable(key_arg="key", name="look")(answers_async if is_async else answers)
    async with using(tool) as executor:
        assert [result.content for result in await ask_all(executor, "abc")] == ["A", "B", "C"]
    assert (threads[0] == "batch-agent-tool") is not is_async


@virtual
async def test_a_key_without_an_answer_is_told_so_and_the_others_are_answered() -> None:
    @Tool.batchable(key_arg="key")
    async def look(keys: list[str]) -> dict[str, str | None]:
        return {key: None if key == "c" else key.upper() for key in keys if key != "b"}

    async with using(look) as executor:
        a, b, c = await ask_all(executor, "abc")
    assert (a.content, a.is_error) == ("A", False)
    assert b.is_error
    assert "nothing for 'b'" in b.content
    assert (c.content, c.is_error) == ("done", False)


@pytest.mark.parametrize("answers", [[], ["one"], ["one", "two", "three"], "ab", b"ab", None, 7, {"a", "b"}])
@virtual
async def test_an_answer_of_the_wrong_shape_is_said_to_be_so_and_asked_for_once(answers: Any) -> None:
    asked = itertools.count()

    @Tool.batchable(key_arg="key")
    async def look(keys: list[str]) -> Any:
        next(asked)
        return answers

    async with using(look) as executor:
        for result in await ask_all(executor, "ab"):
            assert result.is_error
            assert "must return a dict by key, or a list of 2" in result.content
    assert next(asked) == 1


@virtual
async def test_an_exception_in_place_of_an_answer_is_that_keys_failure() -> None:
    @Tool.batchable(key_arg="key")
    async def look(keys: list[str]) -> list[Any]:
        return [KeyError(key) if key == "b" else key.upper() for key in keys]

    async with using(look) as executor:
        results = await ask_all(executor, "abc")
        assert [(result.content, result.is_error) for result in results] == [
            ("A", False),
            ("KeyError: 'b'", True),
            ("C", False),
        ]
        assert (await ask(executor, "b")).source == "executed"  # failures are not kept


@pytest.mark.parametrize("answer", [StopIteration(), StopAsyncIteration(), GeneratorExit(), asyncio.CancelledError()])
@virtual
async def test_every_caller_gets_a_result_whatever_the_batch_function_returns(answer: BaseException) -> None:
    @Tool.batchable(key_arg="key")
    async def look(keys: list[str]) -> list[Any]:
        return [answer if key == "a" else key.upper() for key in keys]

    async with using(look) as executor:
        async with asyncio.timeout(10):
            results = await ask_all(executor, "ab")
        assert [result.content for result in results][1] == "B"


@pytest.mark.parametrize("is_async", [True, False])
def test_a_batch_function_that_wants_to_exit_is_a_failure_of_its_keys(is_async: bool) -> None:
    def leave(keys: list[str]) -> list[str]:
        raise SystemExit(3)

    async def leave_async(keys: list[str]) -> list[str]:
        raise SystemExit(3)

    async def main() -> list[ToolResult]:
        tool = Tool.batchable(key_arg="key", name="look")(leave_async if is_async else leave)
        async with using(tool) as executor:
            return await ask_all(executor, "a")

    try:
        [result] = asyncio.run(main())
    except SystemExit:
        pytest.fail("the program ended")
    assert (result.content, result.is_error) == ("SystemExit: 3", True)


@pytest.mark.parametrize(("size", "most"), [(1, 1), (2, 3), (8, 7), (64, 13), (100, 15)])
@virtual
async def test_a_key_at_fault_is_found_by_halving_and_alone_fails(size: int, most: int) -> None:
    library = Library(poison=(size // 3,))
    async with using(library.tool) as executor:
        results = await ask_all(executor, range(size))
    assert [n for n, result in enumerate(results) if result.is_error] == [size // 3]
    assert results[size // 3].content == f"ValueError: bad [{size // 3}]"
    assert len(library.batches) <= most


@virtual
async def test_two_keys_at_fault_are_both_found() -> None:
    library = Library(poison=(3, 60))
    async with using(library.tool) as executor:
        results = await ask_all(executor, range(64))
    assert [n for n, result in enumerate(results) if result.is_error] == [3, 60]
    assert len(library.batches) == 23


@virtual
async def test_a_write_for_several_keys_is_not_made_again_because_one_of_them_failed() -> None:
    written: list[str] = []

    @Tool.batchable(key_arg="key", effect="write")
    async def look(keys: list[str]) -> list[str]:
        for key in keys:
            if key == "d":
                raise ValueError("no d")
            written.append(key)
        return keys

    async with using(look) as executor:
        await ask_all(executor, "abcd")
    assert sorted(written) == sorted(set(written))


@virtual
async def test_a_batch_that_takes_too_long_fails_in_its_time_and_not_in_that_of_all_its_halves() -> None:
    library = Library(1000.0, timeout=10.0)
    async with using(library.tool) as executor:
        results = await ask_all(executor, range(100))
        assert all("took longer than its 10 s" in result.content for result in results)
        assert now() <= 100


@virtual
async def test_callers_that_leave_before_the_window_closes_are_not_asked_for() -> None:
    library = Library(window=1.0)
    async with using(library.tool) as executor:
        asked = [asyncio.create_task(ask(executor, n)) for n in range(6)]
        await asyncio.sleep(0.5)
        for task in asked[::2]:
            task.cancel()
        await asyncio.wait(asked)
        assert [task.result().content for task in asked[1::2]] == ["about 1", "about 3", "about 5"]
        alone = asyncio.create_task(ask(executor, 9))
        await asyncio.sleep(0.5)
        alone.cancel()
        await asyncio.sleep(5)
    assert library.batches == [[1, 3, 5]]


@virtual
async def test_callers_that_leave_while_it_runs_do_not_disturb_the_others() -> None:
    library = Library(1.0)
    async with using(library.tool) as executor:
        asked = [asyncio.create_task(ask(executor, n)) for n in range(4)]
        await asyncio.sleep(0.5)
        asked[0].cancel()
        await asyncio.wait(asked)
        assert asked[3].result().content == "about 3"
        assert (await ask(executor, 0)).content == "about 0"  # nobody kept what nobody waited for
    assert library.batches == [[0, 1, 2, 3], [0]]


@virtual
async def test_callers_that_left_are_not_asked_for_again_in_the_halves() -> None:
    library = Library(1.0, poison=(0,))
    async with using(library.tool) as executor:
        asked = [asyncio.create_task(ask(executor, n)) for n in range(4)]
        await asyncio.sleep(0.5)
        for task in asked[1:3]:
            task.cancel()
        await asyncio.wait(asked)
        assert (asked[0].result().is_error, asked[3].result().content) == (True, "about 3")
    assert sorted(itertools.chain(*library.batches[1:])) == [0, 3]


@virtual
async def test_a_batch_without_callers_is_cancelled() -> None:
    ended: list[str] = []

    @Tool.batchable(key_arg="key")
    async def look(keys: list[str]) -> list[str]:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return keys

    async with using(look) as executor:
        asked = [asyncio.create_task(ask(executor, key)) for key in "abc"]
        await asyncio.sleep(1)
        for task in asked:
            task.cancel()
        await asyncio.wait(asked)
        await asyncio.sleep(1)
        assert ended == ["cancelled"]


@virtual
async def test_keys_that_cannot_be_hashed_are_answered_in_order() -> None:
    @Tool.batchable(key_arg="key")
    async def look(keys: list[dict[str, int]]) -> list[int]:
        return [sum(key.values()) for key in keys]

    async with using(look) as executor:
        results = await ask_all(executor, [{"a": 1}, {"a": 1, "b": 2}, {"a": 1}])
    assert [result.content for result in results] == ["1", "3", "1"]


@virtual
async def test_keys_that_cannot_be_hashed_and_a_dict_are_a_result() -> None:
    @Tool.batchable(key_arg="key")
    async def look(keys: list[list[int]]) -> dict[str, int]:
        return {str(key): sum(key) for key in keys}

    async with using(look) as executor:
        assert all(result.is_error for result in await ask_all(executor, [[1], [2]]))


@virtual
async def test_calls_that_differ_in_what_they_must_share_are_apart() -> None:
    seen: list[tuple[str, bool, tuple[str, ...]]] = []

    @Tool.batchable(key_arg="key")
    async def look(keys: list[str], lang: str = "en", exact: bool = False) -> list[str]:
        seen.append((lang, exact, tuple(keys)))
        return [f"{key} in {lang}" for key in keys]

    async with using(look) as executor:
        async with asyncio.TaskGroup() as group:
            group.create_task(ask_all(executor, "ab"))
            group.create_task(ask_all(executor, "ac", lang="de"))
            group.create_task(ask_all(executor, "d", lang="en"))
            group.create_task(ask_all(executor, "a", exact=True))
        assert (await ask(executor, "a", lang="de")).content == "a in de"
    assert sorted(seen) == [("de", False, ("a", "c")), ("en", False, ("a", "b", "d")), ("en", True, ("a",))]


@virtual
async def test_a_batch_keeps_to_the_pace_of_its_tool_as_one_execution() -> None:
    library = Library(1.0, max_batch=10, max_concurrent=2)
    async with using(library.tool) as executor:
        await ask_all(executor, range(60))
    assert library.times == pytest.approx([0, 0, 1, 1, 2, 2])
    limited = Library(0.0, max_batch=10, rate_limit=1)
    async with using(limited.tool) as executor:
        started = now()
        await ask_all(executor, range(30))
    assert [time - started for time in limited.times] == pytest.approx([0, 1, 2])


@virtual
async def test_a_batch_is_tried_again_as_a_whole_when_its_error_may_pass() -> None:
    tries = itertools.count()
    seen: list[int] = []

    @Tool.batchable(key_arg="key", retries=2, retry_on=(ConnectionError,))
    async def look(keys: list[str]) -> list[str]:
        seen.append(len(keys))
        if next(tries) < 2:
            raise ConnectionError("away")
        return keys

    async with using(look) as executor:
        assert [result.content for result in await ask_all(executor, "abc")] == ["a", "b", "c"]
    assert seen == [3, 3, 3]


@virtual
async def test_a_cancellation_that_leaks_out_of_the_function_is_a_result_for_everybody() -> None:
    @Tool.batchable(key_arg="key")
    async def look(keys: list[str]) -> list[str]:
        raise asyncio.CancelledError("leaked")

    async with using(look) as executor:
        assert all(result.is_error for result in await ask_all(executor, "abc"))


@virtual
async def test_closing_while_calls_are_gathered_ends_them() -> None:
    library = Library(window=100.0)
    executor = ToolExecutor([library.tool], timeout=None, max_tokens=10)
    waiting = asyncio.create_task(ask(executor, 1))
    await asyncio.sleep(1)
    await executor.aclose()
    await asyncio.wait([waiting])
    await asyncio.sleep(200)
    assert library.batches == []


async def test_many_sync_batches_share_the_threads() -> None:
    def look(keys: list[int]) -> dict[int, int]:
        return {key: key * key for key in keys}

    tool = Tool.batchable(key_arg="key", max_batch=3)(look)
    async with using(tool) as executor:
        results = await ask_all(executor, range(300))
    assert [result.content for result in results] == [str(n * n) for n in range(300)]


@pytest.mark.parametrize("options", [{"max_batch": 0}, {"max_batch": 1.5}, {"window": -1}, {"window": float("nan")}])
def test_a_batch_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        Tool.batchable(key_arg="key", **options)(lambda keys: keys)


def test_a_batch_function_without_keys_is_refused() -> None:
    with pytest.raises(SpecError):
        Tool.batchable(key_arg="key")(lambda: None)
