"""Memory and throughput of a run whose inputs are read while it runs: 10,000 and 1,000,000 rows in one process each.

    python -m benchmarks.lazy_inputs [--rows 1000000] [--rounds 3]

The rows come from a generator, and the results of `stream` are counted and dropped. The backend answers in the process,
so that nothing but the client is measured. Once without `key`, and once with `key="id"`. Memory is what the process
holds (VmRSS) after 10,000 agents and with the last result; throughput is agents per second of CPU, because the machine
may be busy.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from batch_agent import BatchAgent, Usage
from batch_agent.core.requests import Delta, Finished, Request, TextDelta
from batch_agent.testing import ScriptedBackend, say
from benchmarks import report
from benchmarks.peers.work import memory_kb

FEW = 10_000


class ConstantBackend(ScriptedBackend):
    """Backend that gives every request the same answer, and keeps none of them."""

    def __init__(self) -> None:
        super().__init__(lambda _: say("ok"))

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[Delta]]:
        yield _answer()

    async def leave(self, agent: str) -> None:
        pass


async def _answer() -> AsyncIterator[Delta]:
    yield TextDelta("ok")
    yield Finished("stop", Usage(10, 0, 1))


def rows(count: int) -> Iterator[dict[str, str]]:
    for number in range(count):
        yield {"id": f"customer-{number:09}", "text": f"What does customer {number} say?"}


async def measure(count: int, key: str | None) -> dict[str, float]:
    """A run in this process."""
    done, kb_at_few, kb_at_end, began = 0, 0, 0, time.process_time()
    options: dict[str, Any] = {} if key is None else {"key": key}
    stream = BatchAgent.stream(
        task="{text}", inputs=rows(count), backend=ConstantBackend(), max_inflight=64, progress=False, **options
    )
    async for result in stream:
        done += result.ok
        if done == FEW:
            kb_at_few = memory_kb("VmRSS", os.getpid())
        if done == count:  # the run still holds what it has kept
            kb_at_end = memory_kb("VmRSS", os.getpid())
    if done != count:
        raise SystemExit(f"{count - done} of {count} agents failed")
    cpu = time.process_time() - began
    return {
        "agents_per_cpu_s": round(count / cpu, 1),
        "grown_mb": round((kb_at_end - kb_at_few) / 1e3, 1),
        "peak_mb": round(memory_kb("VmHWM", os.getpid()) / 1e3, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="runs of 10,000 rows before and after the long one")
    parser.add_argument("--measure", nargs=2, metavar=("ROWS", "KEY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        count, key = options.measure
        print(json.dumps(asyncio.run(measure(int(count), key or None))))
        return
    numbers = {name: _compare(key, options.rows, options.rounds) for name, key in (("no key", ""), ("key", "id"))}
    print(report.write("lazy_inputs", {"rows": options.rows, **numbers}))
    print(json.dumps(numbers, indent=2))


def _compare(key: str, count: int, rounds: int) -> dict[str, Any]:
    """The long run, between short ones: a busy machine slows both."""
    before = [_in_own_process(FEW, key) for _ in range(rounds)]
    many = _in_own_process(count, key)
    few = [*before, *(_in_own_process(FEW, key) for _ in range(rounds))]
    rate = sorted(each["agents_per_cpu_s"] for each in few)[len(few) // 2]
    return {
        "few": few,
        "many": many,
        "throughput_against_few": round(many["agents_per_cpu_s"] / rate, 3),
        "grown_mb_per_million": round(many["grown_mb"] * 1e6 / (count - FEW), 1) if count > FEW else None,
    }


def _in_own_process(count: int, key: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.lazy_inputs", "--measure", str(count), key]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    numbers: dict[str, float] = json.loads(done.stdout)
    return numbers


if __name__ == "__main__":
    main()
