"""A child that a tool forks ends where the tool's function ends, and leaves the run to its parent."""

import asyncio
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest

from batch_agent import Tool
from batch_agent.core.messages import ToolCall
from batch_agent.tools import ToolExecutor

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, that forks of threads may hang
        yield


def leave() -> None:
    sys.exit(3)


def leave_with_a_message() -> None:
    sys.exit("a message")


def fail() -> None:
    raise ZeroDivisionError


def leave_the_group() -> None:
    raise BaseExceptionGroup("", [KeyboardInterrupt()])


def go_on() -> None:
    """As a tool that forgets to end its child."""


async def result_of(fork: Callable[..., Any], **options: Any) -> str:
    async with aclosing(ToolExecutor([Tool.define(**options)(fork)], timeout=10, max_tokens=100)) as use:
        [result] = await use.session("a").results([ToolCall("1", "fork", "{}")])
    return result.content


def wait(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


ENDS = pytest.mark.parametrize(
    ("end", "status"), [(leave, 3), (leave_with_a_message, 1), (fail, 1), (leave_the_group, 1), (go_on, 0)]
)


@ENDS
async def test_a_child_of_a_tool_in_a_thread_ends_with_the_function(end: Callable[[], None], status: int) -> None:
    def fork() -> int:
        if child := os.fork():
            return wait(child)
        end()
        return 99

    assert await result_of(fork) == str(status)


@ENDS
@pytest.mark.parametrize("limits", [{}, {"max_concurrent": 2}])
async def test_a_child_of_an_async_tool_does_not_go_on_with_the_run(
    end: Callable[[], None], status: int, limits: Any
) -> None:
    async def fork() -> int:
        if child := os.fork():
            return await asyncio.to_thread(wait, child)
        end()
        return 99

    assert await result_of(fork, **limits) == str(status)


async def test_what_a_child_raises_is_on_the_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    def fork() -> int:
        if child := os.fork():
            return wait(child)
        raise ValueError("of the child")

    await result_of(fork)
    assert "ValueError: of the child" in capfd.readouterr().err


async def test_a_process_of_multiprocessing_has_its_own_end() -> None:
    def fork() -> int | None:
        process = multiprocessing.get_context("fork").Process(target=leave)
        process.start()
        process.join()
        return process.exitcode

    assert await result_of(fork) == "3"
