"""Iterators that tools return: read to their end or to the limit of a result."""

import asyncio
import functools
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest

from batch_agent import Tool
from batch_agent.core.messages import ToolCall
from batch_agent.tools import ToolExecutor, as_tool


async def ask(tool: Any, max_tokens: int = 100, **options: Any) -> tuple[str, bool]:
    executor = ToolExecutor([as_tool(tool)], timeout=10.0, max_tokens=max_tokens, **options)
    async with aclosing(executor):
        [result] = await executor.session("a").results([ToolCall("1", "count", "{}")])
    return result.content, result.is_error


async def count() -> AsyncIterator[int]:
    for number in range(3):
        await asyncio.sleep(0)
        yield number


class Counter:
    def __call__(self) -> AsyncIterator[int]:
        return count()


class AsyncCounter:
    async def __call__(self) -> AsyncIterator[int]:
        for number in range(3):
            yield number


def decorated() -> Any:
    @functools.wraps(count)
    def call() -> Any:
        return count()

    return call


async def returned() -> AsyncIterator[int]:
    return count()


@pytest.mark.parametrize("limits", [{}, {"max_concurrent": 2}])
@pytest.mark.parametrize(
    "function", [count, functools.partial(count), Counter(), AsyncCounter(), decorated(), returned]
)
async def test_an_async_generator_is_collected_as_any_iterator(function: Callable[..., Any], limits: Any) -> None:
    assert await ask(Tool.define(name="count", **limits)(function)) == ("[0,1,2]", False)


async def test_what_an_async_generator_raises_is_the_error_of_its_call() -> None:
    async def count() -> AsyncIterator[int]:
        yield 1
        raise ValueError("no more")

    assert await ask(count) == ("ValueError: no more", True)


@pytest.mark.parametrize("part", ["x" * 30, 7, "", None])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_generator_without_an_end_is_stopped_at_the_limit_and_the_model_is_told(
    part: Any, is_async: bool
) -> None:
    closed = []

    def parts() -> Iterator[Any]:
        try:
            while True:
                yield part
        finally:
            closed.append(True)

    async def parts_async() -> AsyncIterator[Any]:
        try:
            while True:
                yield part
        finally:
            closed.append(True)

    content, is_error = await ask(Tool.define(name="count")(parts_async if is_async else parts), max_tokens=10)
    text, _, marker = content.partition("\n")
    assert not is_error
    assert closed
    assert len(text) == 40
    assert marker == "[cut here: 40 characters are shown, and the tool's iterator was not read further]"


async def test_an_iterator_of_a_library_without_an_end_is_stopped_too() -> None:
    content, _ = await ask(Tool.define(name="count")(itertools.count), max_tokens=4)
    assert content.startswith("[0,1,2,3,4,5,6,7\n[cut here")


async def test_a_generator_up_to_the_limit_is_whole() -> None:
    def count() -> Iterator[int]:
        yield from range(8)

    assert await ask(count, max_tokens=5) == ("[0,1,2,3,4,5,6,7]", False)


async def test_a_summary_of_an_iterator_is_made_of_more_than_the_limit() -> None:
    async def shorten(text: str, tokens: int) -> str:
        return f"{len(text)} characters"

    def count() -> Iterator[str]:
        while True:
            yield "x" * 1000

    content, _ = await ask(Tool.summarizable(count), summarize=shorten)
    assert int(content.split()[0]) > 900_000


@pytest.mark.parametrize(
    "holding",
    [
        lambda numbers: {"name": "x", "rows": numbers},
        lambda numbers: [1, {"rows": (numbers, 2)}],
        lambda numbers: iter([{"rows": numbers}]),
    ],
)
async def test_a_generator_inside_of_a_result_is_stopped_at_the_limit_too(holding: Callable[[Any], Any]) -> None:
    closed = []

    def numbers() -> Iterator[int]:
        try:
            yield from itertools.count()
        finally:
            closed.append(True)

    def count() -> Any:
        return holding(numbers())

    content, is_error = await ask(count, max_tokens=10)
    assert not is_error
    assert closed
    assert "[0,1,2" in content
    assert "[cut here: 40 characters are shown, and the tool's iterator was not read further]" in content


async def test_a_short_generator_inside_of_a_result_is_whole() -> None:
    def count() -> Any:
        return {"rows": (number for number in range(3)), "more": [map(str, range(2))]}

    assert await ask(count) == ('{"rows":[0,1,2],"more":[["0","1"]]}', False)
