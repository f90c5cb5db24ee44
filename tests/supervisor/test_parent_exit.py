"""Whatever becomes of our process, nothing that it ran is left."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.support.process_harness import HERE, marked, until_none_is
from tests.support.process_table import gone, is_alive

ROOT = HERE.parent.parent


@contextmanager
def ours(mark: str, way: str = "alone") -> Iterator[tuple["subprocess.Popen[str]", list[str]]]:
    """A process that runs a family; what it says when all of them are there."""
    argv = [sys.executable, str(HERE / "parent_process.py"), way, mark]
    env = {**os.environ, "MARK": mark, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        try:
            said = process.stdout.readline().split()
            assert {int(member) for member in said[1:]} | {process.pid} < marked(mark)
            yield process, said
        finally:
            process.kill()


@pytest.mark.parametrize("to_group", [False, True])
async def test_a_parent_killed_by_sigkill_leaves_no_process(mark: str, to_group: bool) -> None:
    with ours(mark) as (process, _):
        (os.killpg if to_group else os.kill)(process.pid, signal.SIGKILL)
        assert await asyncio.to_thread(process.wait) == -signal.SIGKILL
        await until_none_is(mark)


async def test_ctrl_c_kills_all_processes_before_the_parent_exits(mark: str) -> None:
    with ours(mark) as (process, _):
        os.killpg(process.pid, signal.SIGINT)
        assert await asyncio.to_thread(process.wait) == -signal.SIGINT
        assert marked(mark) == set()


async def test_a_fork_that_outlives_the_parent_keeps_no_process_alive(mark: str) -> None:
    with ours(mark, "forked") as (process, (fork, *members)):
        process.kill()
        await asyncio.to_thread(process.wait)
        for member in members:
            await gone(int(member))
        assert is_alive(int(fork))
        os.kill(int(fork), signal.SIGKILL)
        await until_none_is(mark)
