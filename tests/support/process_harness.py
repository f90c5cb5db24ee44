"""Commands for the tests of processes, and a search for processes that are left."""

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path

from batch_agent.supervisor import ProgramCommand

HERE = Path(__file__).parent
ENV = {"PATH": os.defpath}
FAMILY = [sys.executable, "-I", "-S", str(HERE / "process_tree.py")]


def sh(script: str, *, env: dict[str, str] = ENV, cwd: Path | None = None, stdin: str | None = None) -> ProgramCommand:
    return ProgramCommand(["/bin/sh", "-c", script], env, cwd, stdin)


def family(mark: str, way: str) -> ProgramCommand:
    """A program with children that try to get away; `mark` is on the command line of each."""
    return ProgramCommand([*FAMILY, way, mark], ENV)


def marked(mark: str) -> set[int]:
    """The processes with this on their command line or in their environment; the dead have neither."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes():
                found.add(int(folder.name))
    return found


async def until_none_is(mark: str) -> None:
    async with asyncio.timeout(60):
        while marked(mark):
            await asyncio.sleep(0.01)


def descriptors() -> set[str]:
    return {name for name in os.listdir("/proc/self/fd") if Path("/proc/self/fd", name).exists()}


def children() -> set[int]:
    """Of this process; dead ones that nobody has waited for are among them."""
    found = set[int]()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended since has no children
            found.update(map(int, (thread / "children").read_text().split()))
    return found
