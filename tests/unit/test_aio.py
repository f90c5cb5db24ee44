"""One exception instead of a group of them."""

import asyncio

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
