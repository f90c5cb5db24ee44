"""Table of running processes, for tests that must leave none behind."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

forking: set[int] = set()
"""Processes that only fork others for the tests of this process: their children count as its own."""


def children_of(*parents: int) -> set[int]:
    return {pid for pid, (state, above) in _processes().items() if above in parents and state != "Z"}


def own_children() -> set[int]:
    return children_of(os.getpid(), *forking) - forking


def is_alive(pid: int) -> bool:
    state, _ = _processes().get(pid, ("Z", 0))
    return state != "Z"


async def gone(pid: int) -> None:
    """Returns when the process has ended; the kernel needs a moment for it."""
    async with asyncio.timeout(30):
        while is_alive(pid):
            await asyncio.sleep(0.01)


async def written(path: Path) -> str:
    """What a process writes to a file, when it is there."""
    async with asyncio.timeout(30):
        while not path.exists() or not path.read_text().endswith("\n"):
            await asyncio.sleep(0.01)
    return path.read_text().strip()


def _processes() -> dict[int, tuple[str, int]]:
    """State and parent of every process."""
    found: dict[int, tuple[str, int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            found[int(stat.parent.name)] = state, int(parent)
    return found
