"""Kills processes that an agent's commands left behind. OpenCode kills a command with its process group; a process
that has left the group survives, and its parent is a server that other agents still use."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from .home import MARK

_KILL_ATTEMPTS = 20
_POLL_INTERVAL = 0.05  # the exit of a process that is not our child is not announced


async def kill_orphans(private_dir: Path) -> None:
    """Kills every process that was started from a directory in `private_dir`. Does nothing where processes do not
    expose their environment, as on macOS; there they end with the run."""
    if sys.platform == "linux":
        await asyncio.to_thread(_kill_all, os.fsencode(f"{MARK}={private_dir}{os.sep}"))


def _kill_all(mark: bytes) -> None:
    """Repeated, since a process may start another before it is killed."""
    for _ in range(_KILL_ATTEMPTS):
        found = [pid for pid in _processes() if _is_marked(pid, mark)]
        for pid in found:
            _kill(pid, mark)
        if not found:
            return
        time.sleep(_POLL_INTERVAL)


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
