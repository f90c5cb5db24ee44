"""Tests that run in virtual time."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

from batch_agent.virtual_time import VirtualTimeLoop

P = ParamSpec("P")
AsyncTest = Callable[P, Coroutine[Any, Any, None]]


def in_virtual_time(
    loop: type[VirtualTimeLoop] = VirtualTimeLoop,
    *,
    limit: float | None = None,
    check: Callable[[], None] = lambda: None,
) -> Callable[[AsyncTest[P]], Callable[P, None]]:
    """Decorator for tests that run in virtual time. A test must leave no task behind, and pass `check`, which is called
    inside the loop. `limit`: seconds of virtual time after which it fails."""

    def decorate(test: AsyncTest[P]) -> Callable[P, None]:
        @functools.wraps(test)
        def run(*args: P.args, **options: P.kwargs) -> None:
            async def main() -> None:
                async with asyncio.timeout(limit):
                    await test(*args, **options)
                assert asyncio.all_tasks() == {asyncio.current_task()}
                check()

            with asyncio.Runner(loop_factory=loop) as runner:
                runner.run(main())

        return run

    return decorate


def virtual(test: AsyncTest[P]) -> Callable[P, None]:
    """Runs a test in virtual time. It must leave no task behind."""
    return in_virtual_time()(test)
