"""Servers that a test process which is killed does not leave behind."""

import asyncio
import subprocess
import sys
from pathlib import Path

from tests.support.process_table import children_of, gone

ROOT = Path(__file__).parents[2]
STARTER = """
import sys
from tests.support.guarded_process import GuardedProcess

print(GuardedProcess("/bin/sleep", "600")._guard.pid, flush=True)
sys.stdin.read()
"""


async def test_a_server_ends_with_a_test_process_that_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTER], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as starter:
        assert starter.stdout is not None
        guard = int(starter.stdout.readline())
        async with asyncio.timeout(30):
            while not (servers := children_of(guard)):
                await asyncio.sleep(0.01)
        starter.kill()
    for pid in guard, *servers:
        await gone(pid)
