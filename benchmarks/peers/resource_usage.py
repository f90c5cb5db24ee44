"""CPU and memory of this process and of all that it starts. Nothing is imported that an environment may lack."""

import os
import resource
import threading
import time
from collections.abc import Callable

from benchmarks.peers.work import memory_kb

_BETWEEN_S = 0.05
_TICKS = os.sysconf("SC_CLK_TCK")


class Account:
    """A process that ends takes its numbers with it, and Ray's parents do not ask for them: its CPU is kept as it was
    when last seen."""

    def __init__(self) -> None:
        self._ticks: dict[int, int] = {}
        self._peak_kb = 0
        self._looking_s = 0.0

    def look_often(self) -> Callable[[], None]:
        """In a thread whose own CPU is not counted, until what is returned is called: where processes come and go."""
        over = threading.Event()
        threading.Thread(target=self._watch, args=(over,), daemon=True).start()
        return over.set

    @property
    def cpu_s(self) -> float:
        """User and system seconds, up to now."""
        self._look()
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime - self._looking_s + sum(list(self._ticks.values())) / _TICKS

    @property
    def peak_mb(self) -> float:
        """Of those that were there together, the most that each had by then."""
        self._look()
        return self._peak_kb / 1024

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(_BETWEEN_S):
            self._look()
            self._looking_s = time.thread_time()

    def _look(self) -> None:
        below = _below(os.getpid())
        for pid in below:
            if found := _stat(pid):
                self._ticks[pid] = int(found[11]) + int(found[12])
        self._peak_kb = max(self._peak_kb, sum(memory_kb("VmHWM", pid) for pid in (os.getpid(), *below)))


def _below(parent: int) -> list[int]:
    """All processes under a process, as they are now."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    parents = {pid: int(found[1]) for pid in pids if (found := _stat(pid))}
    below = [parent]
    for one in below:
        below += [pid for pid, above in parents.items() if above == one]
    return below[1:]


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name; none for a process that is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []
