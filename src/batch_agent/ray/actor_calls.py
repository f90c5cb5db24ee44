"""Awaitable calls of Ray actors."""

import asyncio
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError


async def call_result(call: Any) -> Any:
    """Result of an actor call. Raises RayError. If the waiter is cancelled, the call continues: Ray does not support
    futures that clients cancel."""
    future = asyncio.wrap_future(call.future())
    try:
        await asyncio.wait([future])
    except asyncio.CancelledError:
        future.add_done_callback(_consume_exception)
        raise
    return future.result()


async def cancellable_call_result(call: Any) -> Any:
    """Like `call_result`, but cancels the call if the waiter is cancelled."""
    try:
        return await call_result(call)
    except asyncio.CancelledError:
        with suppress(RayError, ConnectionError):
            ray.cancel(call)
        raise


def _consume_exception(future: "asyncio.Future[Any]") -> None:
    """Marks the exception as retrieved, so that asyncio does not log it."""
    if not future.cancelled():
        future.exception()


def kill(actor: Any) -> None:
    """Kills an actor. Does nothing if the actor or the cluster no longer exists."""
    with suppress(RayError, ConnectionError, ValueError):
        ray.kill(actor)


def first_line(error: BaseException) -> str:
    """First line of the message, because Ray's messages are long."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
