"""Virtual time."""

import asyncio
import threading

from batch_agent.virtual_time import run_virtual


def test_a_thread_that_is_busy_when_the_loop_closes_is_waited_for() -> None:
    """Without the warning of a runner (from Python 3.12 on) that it took 300 seconds."""
    released, ended = threading.Event(), threading.Event()

    def work() -> None:
        released.wait(60)
        ended.set()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, work)
        loop.call_later(1000.0, released.set)

    run_virtual(main())
    assert ended.is_set()
