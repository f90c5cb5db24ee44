"""Threads for tools that block: reused, replaced when they hang, and never in the way of the end."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from batch_agent.tools.threads import DaemonThreads


def tool_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "batch-agent-tool"]


def all_gone() -> bool:
    for thread in tool_threads():
        thread.join(5)
    return tool_threads() == []


@pytest.fixture
def pool() -> Iterator[Callable[..., DaemonThreads]]:
    pools: list[DaemonThreads] = []

    def make(most: int = 64) -> DaemonThreads:
        pools.append(DaemonThreads(most))
        return pools[-1]

    yield make
    for threads in pools:
        threads.close()
    assert all_gone()


Pool = Callable[..., DaemonThreads]


async def run(threads: DaemonThreads, function: Callable[[], Any]) -> Any:
    async with threads.slots:
        return await threads.run(function)


async def test_one_thread_serves_many_calls_that_follow_each_other(pool: Pool) -> None:
    threads = pool()
    names = {await run(threads, threading.get_ident) for _ in range(50)}
    assert len(names) == 1


async def test_two_hundred_calls_at_once_share_the_threads_that_there_are(pool: Pool) -> None:
    threads = pool(16)
    running = most = 0
    lock = threading.Lock()

    def work() -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.001)
        with lock:
            running -= 1
        return 1

    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(run(threads, work)) for _ in range(200)]
    assert sum(call.result() for call in calls) == 200
    assert most <= 16
    assert len(tool_threads()) <= 16


async def test_a_thread_that_hangs_is_replaced_and_ends_when_it_comes_back(pool: Pool) -> None:
    threads = pool(2)
    hang = threading.Event()
    try:
        for _ in range(5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await run(threads, hang.wait)
        assert await run(threads, lambda: "still here") == "still here"
        assert len(tool_threads()) == 6
    finally:
        hang.set()
    async with asyncio.timeout(30):
        while len(tool_threads()) > 2:
            await asyncio.sleep(0.001)


async def test_busy_threads_end_after_their_work_once_closed(pool: Pool) -> None:
    threads = pool()
    go_on = threading.Event()
    busy = asyncio.create_task(run(threads, lambda: go_on.wait(5)))
    await asyncio.sleep(0.01)
    threads.close()
    go_on.set()
    assert await busy is True


async def test_what_a_thread_raises_is_raised_to_its_caller(pool: Pool) -> None:
    threads = pool()

    def work() -> None:
        raise ZeroDivisionError("in a thread")

    with pytest.raises(ZeroDivisionError, match="in a thread"):
        await run(threads, work)


async def test_closing_without_any_work_is_harmless() -> None:
    threads = DaemonThreads()
    threads.close()
    threads.close()


def test_a_loop_that_closes_before_a_thread_is_done_leaves_no_trace(capfd: pytest.CaptureFixture[str]) -> None:
    hang = threading.Event()

    async def main() -> None:
        threads = DaemonThreads()
        try:
            async with asyncio.timeout(0.01):
                await run(threads, hang.wait)
        except TimeoutError:
            pass
        threads.close()

    asyncio.run(main())
    hang.set()
    assert all_gone()
    assert capfd.readouterr().err == ""


HANG = """
import threading
from batch_agent import BatchAgent
from batch_agent.testing import ScriptedBackend, by_turn, call, say

def hang() -> str:
    threading.Event().wait()

backend = ScriptedBackend(by_turn(call("hang"), say("done")))
[result] = BatchAgent.run_sync(task="{it}", inputs=["a"], tools=[hang], timeout_per_tool=0.05, backend=backend)
print(result.text, result.tool_calls[0].ok)
"""


@pytest.mark.slow
def test_a_hung_tool_does_not_keep_the_program_from_ending() -> None:
    done = subprocess.run([sys.executable, "-c", HANG], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "done False\n"
    assert done.stderr.startswith("1 tool call is still running: a function in a thread cannot be stopped")
