"""Servers of tests that end with the process that started them, also if that one is killed."""

import subprocess
import sys
from pathlib import Path
from typing import IO

_GUARD = """
import _thread, os, signal, sys

child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child decides

def end():
    os.read(0, 1)
    os.kill(child, signal.SIGKILL)

_thread.start_new_thread(end, ())
os.waitpid(child, 0)
"""


class GuardedProcess:
    """Child of a guard, which kills it when the guard's input ends. `PR_SET_PDEATHSIG` would not do: it is about the
    thread that started the server, which in some tests is one of an executor."""

    def __init__(self, *command: str | Path, stderr: IO[bytes] | int | None = None) -> None:
        guard = [sys.executable, "-I", "-S", "-c", _GUARD]
        self._guard = subprocess.Popen([*guard, *command], stdin=subprocess.PIPE, stderr=stderr)

    @property
    def stderr(self) -> IO[bytes]:
        assert self._guard.stderr is not None
        return self._guard.stderr

    def has_ended(self) -> bool:
        return self._guard.poll() is not None

    def kill(self) -> None:
        """As `kill -9` does. Returns when it is gone."""
        self._guard.communicate()
