"""What the commands of one agent have started, and is still there. OpenCode ends a command with its process group; who
has left that lives on, and belongs to a program that others still use."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from .home import MARK

_PASSES = 20
_PAUSE = 0.05  # nothing tells when a process that is no child of ours has ended


async def kill_orphans(beside: Path) -> None:
    """Kills whatever was started from a folder in there. Where processes do not show their environment, as on macOS,
    nothing is done: it ends with the run."""
    if sys.platform == "linux":
        await asyncio.to_thread(_end, os.fsencode(f"{MARK}={beside}{os.sep}"))


def _end(mark: bytes) -> None:
    """Again and again, since one may start another before it is killed."""
    for _ in range(_PASSES):
        found = [pid for pid in _processes() if _is_marked(pid, mark)]
        for pid in found:
            _kill(pid, mark)
        if not found:
            return
        time.sleep(_PAUSE)


def _processes() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid())


def _is_marked(pid: int, mark: bytes) -> bool:
    """One that has ended, or is another user's, shows nothing."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            return any(entry.startswith(mark) for entry in environ.read().split(b"\0"))
    except OSError:
        return False


def _kill(pid: int, mark: bytes) -> None:
    """Its number may be another's by now; what holds on to the process makes sure."""
    with suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            if _is_marked(pid, mark):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)
