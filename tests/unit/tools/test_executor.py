"""Whatever a tool does, the model gets a result."""

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, field_serializer

from batch_agent import SpecError, Tool
from batch_agent.core.messages import ToolCall, ToolResult
from batch_agent.tools import ToolExecutor, as_tool


@pytest.fixture
async def use() -> AsyncIterator[Callable[..., ToolExecutor]]:
    executors: list[ToolExecutor] = []

    def make(*tools: Any, timeout: float | None = 10.0, max_tokens: int = 8000) -> ToolExecutor:
        executors.append(ToolExecutor([as_tool(tool) for tool in tools], timeout=timeout, max_tokens=max_tokens))
        return executors[-1]

    yield make
    for executor in executors:
        await executor.aclose()


Use = Callable[..., ToolExecutor]


async def outcome(executor: ToolExecutor, name: str, arguments: str = "{}") -> tuple[str, bool]:
    call = ToolCall("c1", name, arguments)
    [result] = await executor.session("agent").results([call])
    assert result.call is call
    return result.content, result.is_error


async def test_sync_and_async_tools_are_called_with_what_the_model_wrote(use: Use) -> None:
    def add(a: int, b: int = 1) -> int:
        return a + b

    async def join(words: list[str]) -> str:
        return " ".join(words)

    executor = use(add, join)
    assert [spec.name for spec in executor.specs] == ["add", "join"]
    assert await outcome(executor, "add", '{"a": 2}') == ("3", False)
    assert await outcome(executor, "join", '{"words": ["a", "b"]}') == ("a b", False)


async def test_a_sync_tool_runs_beside_the_loop_with_the_callers_context(use: Use) -> None:
    def where() -> str:
        return threading.current_thread().name

    assert (await outcome(use(where), "where"))[0] == "batch-agent-tool"


async def test_a_defined_tool_is_still_a_function() -> None:
    @Tool.define(description="Adds.", timeout=3.0)
    def add(a: int, b: int) -> int:
        return a + b

    assert add(1, b=2) == 3
    assert (add.name, add.description, add.limits.timeout) == ("add", "Adds.", 3.0)


@pytest.mark.parametrize("name", ["", "has space", "ünïcode", "x" * 65, "a.b"])
def test_a_name_that_servers_refuse_is_refused_here(name: str) -> None:
    with pytest.raises(SpecError, match="Tool name"):
        Tool.define(name=name or " ")(lambda: None)


def test_two_tools_of_one_name_are_refused() -> None:
    def f() -> None: ...

    with pytest.raises(SpecError, match="the same name: f"):
        ToolExecutor([as_tool(f), as_tool(f)], timeout=None, max_tokens=1)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("nothing", "{}", "There is no tool 'nothing'. The tools are: f."),
        ("f", "{", "not valid JSON"),
        ("f", "[]", "must be one JSON object"),
        ("f", '{"n": "x"}', "n: Input should be a valid integer"),
        ("f", "{}", "n: Field required"),
    ],
)
async def test_a_call_that_cannot_be_made_is_a_result(use: Use, name: str, arguments: str, words: str) -> None:
    def f(n: int) -> int:
        return n

    content, is_error = await outcome(use(f), name, arguments)
    assert is_error
    assert words in content


class Panic(BaseException):
    """As libraries in Rust raise it."""


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


@pytest.mark.parametrize(
    ("error", "content"),
    [
        (ValueError("no such thing"), "ValueError: no such thing"),
        (KeyError("q"), "KeyError: 'q'"),
        (StopIteration(), "RuntimeError: StopIteration"),
        (SystemExit(2), "SystemExit: 2"),
        (asyncio.CancelledError("leaked"), "CancelledError: leaked"),
        (TimeoutError("mine"), "TimeoutError: mine"),
        (UnspeakableError(), "UnspeakableError"),
        (Panic("index out of bounds"), "Panic: index out of bounds"),
        (GeneratorExit("odd"), "GeneratorExit: odd"),
        (BaseExceptionGroup("two", [SystemExit(1), ValueError()]), "BaseExceptionGroup: two (2 sub-exceptions)"),
    ],
)
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_tool_that_raises_is_a_result(use: Use, error: BaseException, content: str, is_async: bool) -> None:
    async def f_async() -> None:
        raise error

    def f() -> None:
        raise error

    if is_async and isinstance(error, StopIteration):
        content = "RuntimeError: coroutine raised StopIteration"
    tool = Tool.define(name="f")(f_async if is_async else f)
    assert await outcome(use(tool), "f") == (content, True)


class Model(BaseModel):
    town: str = "Ulm"


@dataclass
class Data:
    town: str = "Ulm"
    n: int = 3


class BadModel(BaseModel):
    town: str = "Ulm"

    @field_serializer("town")
    def fails(self, town: str) -> str:
        raise ValueError("cannot be shown")


class BadText:
    def __str__(self) -> str:
        raise RuntimeError("cannot be shown")


def numbers() -> Iterator[int]:
    yield from range(3)


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("text", "text"),
        ("", ""),
        (None, "done"),
        (True, "true"),
        (7, "7"),
        (1.5, "1.5"),
        (b"bytes", "bytes"),
        (b"\xff\x00", "[2 bytes of binary data]"),
        ([1, {"a": None}], '[1,{"a":null}]'),
        (Model(), '{"town":"Ulm"}'),
        ([Model()], '[{"town":"Ulm"}]'),
        (Data(), '{"town":"Ulm","n":3}'),
        ({1}, "[1]"),
        ({"a": 1j}, '{"a":"1j"}'),
        (numbers, "[0,1,2]"),
        ("half \ud800 pair", "half ? pair"),
        ({"a": "half \ud800 pair"}, None),
        ({"a": b"\xff"}, None),
        (float("nan"), "NaN"),
    ],
)
@pytest.mark.parametrize("is_async", [True, False])
async def test_every_shape_of_result_becomes_text(use: Use, value: Any, content: str | None, is_async: bool) -> None:
    def f() -> Any:
        return value() if value is numbers else value

    async def f_async() -> Any:
        return f()

    shown, is_error = await outcome(use(Tool.define(name="f")(f_async if is_async else f)), "f")
    assert not is_error
    assert content is None or shown == content
    shown.encode()


@pytest.mark.parametrize("value", [BadText(), BadModel()])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_value_that_cannot_be_shown_is_a_result(use: Use, value: Any, is_async: bool) -> None:
    async def f_async() -> Any:
        return value

    tool = Tool.define(name="f")(f_async if is_async else lambda: value)
    content, _ = await outcome(use(tool), "f")
    assert isinstance(content, str)


async def test_a_value_that_contains_itself_is_a_result(use: Use) -> None:
    loop: list[Any] = []
    loop.append(loop)
    content, _ = await outcome(use(Tool.define(name="f")(lambda: loop)), "f")
    assert content


async def test_a_long_result_is_cut_and_says_so_also_when_it_is_an_error(use: Use) -> None:
    def shout() -> str:
        return "x" * 1_000_000

    def fail() -> str:
        raise ValueError("x" * 1_000_000)

    @Tool.define(max_tokens=5)
    def brief() -> str:
        return "0123456789" * 10

    executor = use(shout, fail, brief, max_tokens=100)
    content, _ = await outcome(executor, "shout")
    assert content == "x" * 400 + "\n[cut here: 400 of 1000000 characters are shown]"
    content, is_error = await outcome(executor, "fail")
    assert is_error
    assert len(content) < 500
    assert (await outcome(executor, "brief"))[0].startswith("01234567890123456789\n[cut here: 20 of 100")


async def test_wrapped_async_functions_are_awaited(use: Use) -> None:
    async def look(q: str) -> str:
        return f"found {q}"

    @functools.wraps(look)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return look(*args, **kwargs)

    class Library:
        async def __call__(self, q: str) -> str:
            return f"found {q}"

    tools = [
        Tool.define(name="wrapped")(wrapped),
        Tool.define(name="partial")(functools.partial(look)),
        Tool.define(name="object")(Library()),
    ]
    executor = use(*tools)
    for name in ("wrapped", "partial", "object"):
        assert await outcome(executor, name, '{"q": "it"}') == ("found it", False)


async def test_a_tool_has_its_own_time_or_that_of_the_run(use: Use) -> None:
    @Tool.define(timeout=0.01)
    async def own() -> None:
        await asyncio.sleep(10)

    async def shared() -> None:
        await asyncio.sleep(10)

    executor = use(own, shared, timeout=0.02)
    unknown = "It is not known whether this call was made, or still will be. Check before you repeat it."
    assert await outcome(executor, "own") == (f"own took longer than its 0.01 s (timeout_per_tool). {unknown}", True)
    assert await outcome(executor, "shared") == (
        f"shared took longer than its 0.02 s (timeout_per_tool). {unknown}",
        True,
    )


async def test_a_tools_clock_starts_when_there_is_a_thread_for_it(use: Use) -> None:
    go_on = threading.Event()
    slow = Tool.define(name="slow")(lambda: go_on.wait(60))
    quick = Tool.define(name="quick", timeout=1.0)(lambda: "found")
    executor = use(slow, quick, timeout=None)
    async with asyncio.TaskGroup() as group:
        for _ in range(64):
            group.create_task(outcome(executor, "slow"))
        await asyncio.sleep(0)
        waiting = group.create_task(outcome(executor, "quick"))
        await asyncio.sleep(1.1)
        assert not waiting.done()
        go_on.set()
    assert waiting.result() == ("found", False)


async def test_however_many_tools_hang_there_is_a_thread_for_the_next(use: Use) -> None:
    hang = threading.Event()
    hung = Tool.define(name="hung", timeout=0.01)(lambda: hang.wait())
    executor = use(hung, Tool.define(name="quick")(lambda: "found"))
    calls = [ToolCall(str(n), "hung", "{}") for n in range(150)]
    try:
        results = await executor.session("agent").results(calls)
        assert all(result.is_error for result in results)
        assert await outcome(executor, "quick") == ("found", False)
    finally:
        hang.set()


async def test_calls_run_at_the_same_time_and_answer_in_order(use: Use) -> None:
    together = asyncio.Barrier(3)

    async def meet(n: int) -> int:
        await together.wait()
        return n

    calls = [ToolCall(str(n), "meet", f'{{"n": {n}}}') for n in range(3)]
    results = await use(meet).session("agent").results(calls)
    assert [result.content for result in results] == ["0", "1", "2"]
    assert all(isinstance(result, ToolResult) and result.seconds >= 0 for result in results)


async def test_cancelling_an_agent_cancels_its_calls(use: Use) -> None:
    ended: list[int] = []
    started = asyncio.Barrier(3)

    async def wait(n: int) -> None:
        try:
            await started.wait()
            await asyncio.Event().wait()
        finally:
            ended.append(n)

    calls = [ToolCall(str(n), "wait", f'{{"n": {n}}}') for n in range(2)]
    running = asyncio.create_task(use(wait).session("agent").results(calls))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(ended) == [0, 1]
