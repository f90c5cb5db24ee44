"""Servers that refuse requests, over HTTP: agents beside a loop with the same retries and the same number in flight.

    python -m benchmarks.refusals [--rounds 3] [--out FILE]

A server on loopback answers after 50 ms. `random` refuses a share of the requests, drawn with the same seed for both;
`bucket` takes 20 requests in a second with a burst of 20; `bound` takes 12 requests at a time, and `mixed` does both.
The loop sends with 16 in flight and retries as agents do: after `Retry-After`, else with the same backoff. Ratios are
of sums over the rounds; one below 1 means that agents were done sooner. `search` has a server that takes 50 requests at
a time for 500 ms each, and agents without `max_inflight`: the loop has the server's limit, which the agents must find.
`kept` is the share of the server's limit that was in use from three seconds after the first request until nine tenths
of all requests were accepted.
"""

import argparse
import asyncio
import itertools
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from batch_agent import BackendError, BatchAgent, ErrorKind
from batch_agent.core.options import Retry
from batch_agent.schedule.retry import retry_delay
from benchmarks import report

INFLIGHT = 16
SETTLED_SECONDS = 3.0
"""Seconds in which a limit must be found."""
TARGET = 1.15
MANY = 300
"""Agents of a case that needs fewer rounds."""


@dataclass(frozen=True, slots=True)
class Case:
    """What a server refuses, and how many requests there are."""

    name: str
    agents: int
    share: float = 0.0
    rate: float = 0.0
    burst: int = 0
    bound: int = 0
    status: int = 429
    retry_after: float | None = None
    inflight: int | None = INFLIGHT
    """Limit of the agents; None: they must find the server's, which the loop has."""
    seconds: float = 0.05
    """Latency of an answer."""


class Service:
    """Chat completions, some of them refused."""

    def __init__(self, case: Case, seed: int) -> None:
        self._case = case
        self._chance = random.Random(seed)
        self._tokens, self._filled_at = float(case.burst), time.monotonic()
        self._in_service = 0
        self._accepted_at: list[float] = []
        self._busy: list[tuple[float, int]] = []
        """Requests in service from each point in time."""
        self.refused = 0

    def kept(self) -> float:
        """Mean requests in service, as a share of the limit, once it should be found; 0 if there was no time for it."""
        if not self._busy:
            return 0.0
        begin, end = self._busy[0][0] + SETTLED_SECONDS, self._accepted_at[int(0.9 * len(self._accepted_at))]
        area = 0.0
        for (at, level), (until, _) in itertools.pairwise(self._busy):
            area += level * max(0.0, min(until, end) - max(at, begin))
        return area / (end - begin) / self._case.bound if self._case.bound and end > begin else 0.0

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    async def chat(self, request: web.Request) -> web.Response:
        await request.read()
        if self._refuses():
            self.refused += 1
            wait = self._case.retry_after
            headers = {} if wait is None else {"Retry-After": f"{wait:g}"}
            return web.json_response({"error": {"message": "busy"}}, status=self._case.status, headers=headers)
        self._accepted_at.append(time.monotonic())
        self._serve(+1)
        try:
            await asyncio.sleep(self._case.seconds)
        finally:
            self._serve(-1)
        message = {"role": "assistant", "content": "done"}
        usage = {"prompt_tokens": 5, "completion_tokens": 1}
        return web.json_response({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})

    def _serve(self, change: int) -> None:
        self._in_service += change
        self._busy.append((time.monotonic(), self._in_service))

    def _refuses(self) -> bool:
        case = self._case
        if case.share and self._chance.random() < case.share:
            return True
        if case.bound and self._in_service >= case.bound:
            return True
        if not case.rate:
            return False
        now = time.monotonic()
        self._tokens = min(case.burst, self._tokens + (now - self._filled_at) * case.rate)
        self._filled_at = now
        if self._tokens < 1:
            return True
        self._tokens -= 1
        return False


@asynccontextmanager
async def up(service: Service) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/v1/models", service.models)
    app.router.add_post("/v1/chat/completions", service.chat)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def agents(url: str, case: Case) -> int:
    """How many have an answer."""
    count = case.agents
    inputs = [f"case {number}" for number in range(count)]
    results = await BatchAgent.run(
        task="{it}", inputs=inputs, backend=url, model="m", max_inflight=case.inflight, max_agents=count, progress=False
    )
    return sum(result.ok for result in results)


async def loop(url: str, case: Case) -> int:
    """A semaphore, a client and retries."""
    room, retry = asyncio.Semaphore(case.inflight or case.bound), Retry()

    async def ask(session: aiohttp.ClientSession, number: int) -> bool:
        body = {"model": "m", "messages": [{"role": "user", "content": f"case {number}"}]}
        failures = 0
        while True:
            async with room, session.post(f"{url}/v1/chat/completions", json=body) as answer:
                await answer.read()
                if answer.status == 200:
                    return True
                wait = answer.headers.get("Retry-After")
            failures += 1
            error = BackendError(ErrorKind.RATE_LIMITED, "busy", retry_after=None if wait is None else float(wait))
            delay = retry_delay(retry, error, failures, random.random())
            if delay is None:
                return False
            await asyncio.sleep(delay)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        return sum(await asyncio.gather(*(ask(session, number) for number in range(case.agents))))


async def measure(case: Case, way: Callable[[str, Case], Any], seed: int) -> dict[str, float]:
    service = Service(case, seed)
    async with up(service) as url:
        began = time.monotonic()
        answered = await way(url, case)
        seconds = time.monotonic() - began
        return {"seconds": seconds, "refused": service.refused, "answered": answered, "kept": service.kept()}


def cases() -> list[Case]:
    found = [
        Case(f"random {share:.0%} {status}", count, share, status=status, retry_after=wait)
        for share in (0.05, 0.1, 0.2)
        for status, wait in ((429, None), (429, 2.0), (503, None), (503, 2.0))
        for count in (10, 100, 1000)
    ]
    found += [Case("bucket 20/s", 300, rate=20, burst=20, retry_after=wait) for wait in (None, 1.0)]
    found += [Case("bound 12", 1000, bound=12, retry_after=wait) for wait in (None, 1.0)]
    found += [Case("mixed 12, 10%", 1000, 0.1, bound=12, retry_after=wait) for wait in (None, 1.0)]
    return found + [
        Case("search 50", 1500, bound=50, retry_after=wait, inflight=None, seconds=0.5) for wait in (None, 1.0)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="cases whose name begins with it")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    path: Path | None = None
    asyncio.run(measure(Case("first", 10), agents, 0))  # imports what a first run imports
    for case in cases():
        if case.name.startswith(given.only):
            rows.append(compared(case, given.rounds if case.agents >= MANY else 2 * given.rounds))
            missed = [f"{row['name']}, {row['agents']} agents" for row in rows if row["ratio"] > TARGET]
            path = report.write("refusals", {"target": TARGET, "missed": missed, "cases": rows}, given.out)
    print(path)


def compared(case: Case, rounds: int) -> dict[str, Any]:
    """Both ways in turns."""
    pairs = [[asyncio.run(measure(case, way, seed)) for way in (agents, loop)] for seed in range(rounds)]
    ours, theirs = ([pair[at] for pair in pairs] for at in (0, 1))
    row: dict[str, Any] = {**asdict(case), "rounds": rounds}
    for name, seen in (("agents_", ours), ("loop_", theirs)):
        row |= {name + key: round(statistics.median(each[key] for each in seen), 3) for key in seen[0]}
    # of sums: with few requests a round is decided by who is refused twice
    row["ratio"] = round(sum(each["seconds"] for each in ours) / sum(each["seconds"] for each in theirs), 3)
    print(
        f"{case.name:16} {case.agents:5} Retry-After {case.retry_after}: {row['agents_seconds']:.2f} s, "
        f"loop {row['loop_seconds']:.2f} s, ratio {row['ratio']:.2f}; "
        f"refused {row['agents_refused']:.0f} and {row['loop_refused']:.0f}; "
        f"kept {row['agents_kept']:.2f} and {row['loop_kept']:.2f}",
        flush=True,
    )
    return row


if __name__ == "__main__":
    main()
