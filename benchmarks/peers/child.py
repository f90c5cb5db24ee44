"""One peer at one piece of work: `python -m benchmarks.peers.child PEER WORK`, where WORK is JSON.

It prints that it is ready, once it is imported and warm, waits for a line, works, and prints what it cost.
"""

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from importlib import import_module
from typing import Any

from benchmarks.peers.work import Tally, Work, memory_kb

_WARM_UP = 16
_TICK_S = 0.005
Lag = tuple[float, float]


def main() -> None:
    peer, work = sys.argv[1], Work.from_json(sys.argv[2])
    began = time.perf_counter()
    adapter = import_module(f"benchmarks.peers.adapters.{peer}")
    _in_loop(lambda: _warm_up(adapter.run, work))
    start = {"start_s": time.perf_counter() - began, "start_cpu_s": cpu_s()}
    _say(start)
    if not sys.stdin.readline():
        return
    tally, lags = Tally(work), list[Lag]()
    cpu, began = cpu_s(), time.perf_counter()
    _in_loop(lambda: _watched(adapter.run(work, tally), lags if "--lag" in sys.argv else None))
    spent = {"wall_s": time.perf_counter() - began, "cpu_s": cpu_s() - cpu}
    lag = {"worst_lag_s": max(late for late, _ in lags), "worst_busy_s": max(busy for _, busy in lags)} if lags else {}
    _say({**start, **spent, "peak_mb": _peak_mb(), **tally.numbers(), **lag, "first_words": tally.first_words})


def _say(numbers: dict[str, Any]) -> None:
    print(json.dumps(numbers), flush=True)


async def _warm_up(run: Callable[[Work, Tally], Coroutine[Any, Any, None]], work: Work) -> None:
    """What is imported at the first request, and made once for a process, is of the start."""
    few = replace(work, agents=_WARM_UP, tool_s=None if work.tool_s is None else 0.0, holds=False)
    await run(replace(few, checkpoint=few.checkpoint and f"{few.checkpoint}-warm-up"), Tally(few))


def _in_loop(make: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """On uvloop, which is in every environment: the loop is no difference between peers."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(make())
    else:
        uvloop.run(make())


async def _watched(run: Coroutine[Any, Any, None], lags: list[Lag] | None) -> None:
    if lags is None:
        await run
        return
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(_watch(lags))
        await run
        watching.cancel()


async def _watch(lags: list[Lag]) -> None:
    """How late a timer is: for so long nothing else could run. The CPU of that time is the part that is no other
    process's."""
    while True:
        began, busy = time.perf_counter(), time.thread_time()
        await asyncio.sleep(_TICK_S)
        lags.append((time.perf_counter() - began - _TICK_S, time.thread_time() - busy - _TICK_S))


def cpu_s() -> float:
    """User and system seconds of this process, and of those that it has started."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    ticks = os.sysconf("SC_CLK_TCK")
    return sum(one.ru_utime + one.ru_stime for one in used) + sum(_ticks(pid) for pid in _below(os.getpid())) / ticks


def _peak_mb() -> float:
    return sum(memory_kb("VmHWM", pid) for pid in (os.getpid(), *_below(os.getpid()))) / 1024


def _below(parent: int) -> list[int]:
    """All processes under a process, as they are now."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    parents = {pid: int(found[1]) for pid in pids if (found := _stat(pid))}
    below = [parent]
    for one in below:
        below += [pid for pid, above in parents.items() if above == one]
    return below[1:]


def _ticks(pid: int) -> int:
    """Those of its own, and of its children that have ended."""
    return sum(map(int, _stat(pid)[11:15]))


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name; none for a process that is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


if __name__ == "__main__":
    main()
