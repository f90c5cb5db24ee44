"""Calls of Ray's actors, as coroutines can wait for them."""

import asyncio
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError


async def answer(asked: Any) -> Any:
    """What an actor said. Raises RayError. Cancelled, it leaves the call to its end: Ray does not like futures that are
    cancelled by others."""
    answered = asyncio.wrap_future(asked.future())
    try:
        await asyncio.wait([answered])
    except asyncio.CancelledError:
        answered.add_done_callback(_seen)
        raise
    return answered.result()


async def answer_while_wanted(asked: Any) -> Any:
    """The same; cancelled, it has the call ended, too."""
    try:
        return await answer(asked)
    except asyncio.CancelledError:
        with suppress(RayError, ConnectionError):
            ray.cancel(asked)
        raise


def _seen(answered: "asyncio.Future[Any]") -> None:
    """How it failed is nobody's concern any more."""
    if not answered.cancelled():
        answered.exception()


def kill(actor: Any) -> None:
    """Also where there is no cluster any more."""
    with suppress(RayError, ConnectionError, ValueError):
        ray.kill(actor)


def first_line(error: BaseException) -> str:
    """Ray's messages are long."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
