"""One peer at one piece of work: `python -m benchmarks.peers.peer_process PEER WORK`, where WORK is JSON.

It prints that it is ready, once it is imported and warm, waits for a line, works, and prints what it cost.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from importlib import import_module
from typing import Any

from benchmarks.peers.resource_usage import Account
from benchmarks.peers.work import Tally, Work

_WARM_UP = 16
_TICK_S = 0.005
Lag = tuple[float, float]


def main() -> None:
    peer, work = sys.argv[1], Work.from_json(sys.argv[2])
    began = time.perf_counter()
    adapter = import_module(f"benchmarks.peers.adapters.{peer}")
    account = Account()
    if hasattr(adapter, "STARTS_PROCESSES"):
        account.look_often()
    _in_loop(lambda: _warm_up(adapter.run, work))
    start = {"start_s": time.perf_counter() - began, "start_cpu_s": account.cpu_s}
    _say(start)
    if not sys.stdin.readline():
        return
    tally, lags = Tally(work), list[Lag]()
    cpu, began = account.cpu_s, time.perf_counter()
    _in_loop(lambda: _watched(adapter.run(work, tally), lags if "--lag" in sys.argv else None))
    spent = {"wall_s": time.perf_counter() - began, "cpu_s": account.cpu_s - cpu}
    lag = {"worst_lag_s": max(late for late, _ in lags), "worst_busy_s": max(busy for _, busy in lags)} if lags else {}
    _say({**start, **spent, "peak_mb": account.peak_mb, **tally.numbers(), **lag, "first_words": tally.first_words})


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


if __name__ == "__main__":
    main()
