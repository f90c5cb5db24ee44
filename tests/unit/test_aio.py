"""One exception instead of a group of them."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from batch_agent import aio


async def fail(error: BaseException) -> None:
    raise error


async def test_the_clock_is_that_of_the_running_loop() -> None:
    before = asyncio.get_running_loop().time()
    assert before <= aio.now() <= asyncio.get_running_loop().time()


def test_an_exception_that_is_no_group_is_left_as_it_is() -> None:
    error = ValueError("x")
    assert aio.unwrap_group(error, KeyError) is error


def test_nested_groups_are_unwrapped_to_their_first_exception() -> None:
    first = ValueError("first")
    group = ExceptionGroup("", [ExceptionGroup("", [first, KeyError()]), OSError()])
    assert aio.unwrap_group(group) is first


def test_an_important_class_goes_before_others_in_the_order_of_the_classes() -> None:
    value, key, plain = ValueError(), KeyError(), OSError()
    group = ExceptionGroup("", [plain, value, key])
    assert aio.unwrap_group(group, KeyError, ValueError) is key
    assert aio.unwrap_group(group, ValueError, KeyError) is value
    assert aio.unwrap_group(group, IndexError) is plain


async def test_a_failed_task_group_raises_its_first_exception() -> None:
    error = ValueError("x")
    with pytest.raises(ValueError, match="x") as caught, aio.ungrouped(), aio.ungrouped():
        async with asyncio.TaskGroup() as group:
            group.create_task(fail(error))
    assert caught.value is error
    assert error.__suppress_context__


def test_an_exception_that_is_not_a_group_passes_through() -> None:
    with pytest.raises(KeyError), aio.ungrouped():
        raise KeyError("x")


async def test_an_exit_in_a_thread_is_made_although_a_cancellation_comes_while_no_thread_is_free() -> None:
    is_free, is_exited = threading.Event(), threading.Event()

    @contextmanager
    def views() -> Iterator[None]:
        yield
        is_exited.set()

    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    busy = loop.run_in_executor(None, is_free.wait)
    context = views()
    context.__enter__()
    exiting = asyncio.create_task(aio.exit_in_thread(context, None, None, None))
    await asyncio.sleep(0)
    exiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exiting
    is_free.set()
    await busy
    assert await asyncio.to_thread(is_exited.wait, 10)
