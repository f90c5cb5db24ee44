"""Servers that refuse requests: at random, by a rate, by the number in flight, for a while, and several of these.

Each is compared in virtual time with a loop that sends the same work with the same retries and the same number in
flight, or with what the server could do at best."""

import asyncio
import random
from dataclasses import dataclass

import pytest
from tests.support.engine_harness import now, run
from tests.support.event_list import EventList

from batch_agent import BackendError, ErrorKind
from batch_agent.core.events import LimitChanged
from batch_agent.core.options import Retry
from batch_agent.core.requests import Reply, Request
from batch_agent.schedule.retry import retry_delay
from batch_agent.testing import ScriptedBackend, run_virtual, say

ROUND_TRIP = 0.002


@dataclass
class Server:
    """Takes `seconds` for an answer, a round trip for a refusal."""

    seed: int
    share: float = 0.0
    """Of the requests, refused at random."""
    rate: float = float("inf")
    burst: float = 0.0
    most: int = 10**9
    """Requests in service."""
    outage: tuple[float, float] = (0.0, 0.0)
    retry_after: float | None = None
    status: int = 429
    seconds: float = 0.1
    refused: int = 0
    in_service: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.tokens, self.filled_at = self.burst, 0.0

    async def answer(self) -> None:
        await asyncio.sleep(ROUND_TRIP / 2 * (0.5 + self.chance.random()))
        if self._refuses():
            self.refused += 1
            await asyncio.sleep(ROUND_TRIP / 2)
            kind = ErrorKind.RATE_LIMITED if self.status == 429 else ErrorKind.UNAVAILABLE
            raise BackendError(kind, "busy", retry_after=self.retry_after, status=self.status)
        self.in_service += 1
        try:
            await asyncio.sleep(self.seconds * (0.7 + 0.6 * self.chance.random()))
        finally:
            self.in_service -= 1

    def _refuses(self) -> bool:
        if self.chance.random() < self.share or self.in_service >= self.most:
            return True
        if self.outage[0] <= now() < self.outage[1]:
            return True
        if self.rate == float("inf"):
            return False
        self.tokens = min(self.burst, self.tokens + (now() - self.filled_at) * self.rate)
        self.filled_at = now()
        if self.tokens < 1:
            return True
        self.tokens -= 1
        return False


async def by_agents(server: Server, agents: int, inflight: int, *, is_found: bool = False) -> tuple[float, list[int]]:
    """Seconds, and the limits on the way; `is_found`: the limit begins there and is looked for."""

    async def answer(request: Request) -> Reply:
        await server.answer()
        return say("done")

    log = EventList()
    options = {} if is_found else {"max_inflight": inflight}
    backend = ScriptedBackend(answer, inflight=inflight)
    results = await run(backend, list(map(str, range(agents))), max_dispatched=agents, events=log, **options)
    assert all(result.ok for result in results)
    return now(), [event.inflight for event in log.events if isinstance(event, LimitChanged)]


async def by_a_loop(server: Server, requests: int, inflight: int) -> float:
    room = asyncio.Semaphore(inflight)

    async def ask() -> None:
        for failures in range(1, 30):
            async with room:
                try:
                    await server.answer()
                except BackendError as error:
                    failure = error
                else:
                    return
            counted = BackendError(ErrorKind.RATE_LIMITED, "busy", retry_after=failure.retry_after)
            await asyncio.sleep(retry_delay(Retry(), counted, failures, random.random()) or 0.0)

    async with asyncio.TaskGroup() as group:
        for _ in range(requests):
            group.create_task(ask())
    return now()


@pytest.mark.slow
@pytest.mark.parametrize("agents", [10, 100, 1000])
@pytest.mark.parametrize("retry_after", [None, 0.0, 1.0, 2.0, 60.0])
@pytest.mark.parametrize(("share", "status"), [(0.05, 429), (0.1, 503), (0.2, 429), (0.2, 503)])
def test_random_refusals_take_no_longer_than_a_plain_loop_with_the_same_retries(
    agents: int, retry_after: float | None, share: float, status: int
) -> None:
    random.seed(1)
    ours = theirs = 0.0
    for seed in range(2 if agents == 1000 else 20):  # the same requests are refused of both, in the order they come
        server = Server(seed, share, retry_after=retry_after, status=status)
        seconds, limits = run_virtual(by_agents(server, agents, 16))
        assert limits == []
        ours += seconds
        theirs += run_virtual(by_a_loop(Server(seed, share, retry_after=retry_after, status=status), agents, 16))
    assert ours < 1.15 * theirs


def test_random_refusals_do_not_keep_the_concurrency_limit_from_growing() -> None:
    random.seed(1)
    _, limits = run_virtual(by_agents(Server(1, 0.2, retry_after=1.0), 1000, 32, is_found=True))
    assert limits[:3] == [64, 128, 256]


@pytest.mark.parametrize("retry_after", [None, 1.0])
def test_a_rate_limit_is_fully_used_with_few_refusals(retry_after: float | None) -> None:
    random.seed(1)
    server = Server(1, rate=20, burst=20, retry_after=retry_after)
    seconds, limits = run_virtual(by_agents(server, 300, 16))
    assert seconds < 1.1 * 14
    assert limits[-1] <= 8
    assert server.refused < 150  # a loop has more than a thousand


@pytest.mark.slow
@pytest.mark.parametrize("retry_after", [None, 1.0])
@pytest.mark.parametrize("share", [0.0, 0.1])
def test_a_server_limit_on_concurrent_requests_is_found_within_seconds_and_kept(
    retry_after: float | None, share: float
) -> None:
    random.seed(1)
    server = Server(1, share, most=100, retry_after=retry_after, seconds=0.5)
    seconds, limits = run_virtual(by_agents(server, 5000, 32, is_found=True))
    assert seconds < 1.15 * 25 + (3 if retry_after is None else 8)  # each pause that it asks for is made
    assert all(90 <= limit <= 110 for limit in limits[8:])


@pytest.mark.slow
@pytest.mark.parametrize("retry_after", [None, 1.0])
@pytest.mark.parametrize("is_found", [True, False])
def test_a_rate_limit_of_slow_requests_is_used_without_a_storm_of_refusals(
    retry_after: float | None, is_found: bool
) -> None:
    """The limit follows the requests in service down to the rate times the latency."""
    random.seed(1)
    server = Server(1, rate=1, burst=60, seconds=20, retry_after=retry_after)
    seconds, limits = run_virtual(by_agents(server, 300, 32 if is_found else 64, is_found=is_found))
    assert seconds < 1.1 * (240 + 20)
    assert server.refused < 300  # it was more than a thousand, and some agents failed
    assert limits[-1] < 64


@pytest.mark.parametrize("retry_after", [1.0, 10.0])
def test_a_retry_after_of_a_limit_on_concurrent_requests_holds_back_only_what_was_refused(retry_after: float) -> None:
    random.seed(1)
    server = Server(1, most=12, retry_after=retry_after)
    seconds, _ = run_virtual(by_agents(server, 1000, 16))
    assert seconds < 1.1 * 1000 / 12 * 0.1 + retry_after
    assert server.refused < 150


def test_a_fixed_limit_above_the_server_limit_is_lowered_to_it() -> None:
    random.seed(1)
    server = Server(1, most=12)
    seconds, limits = run_virtual(by_agents(server, 1000, 16))
    assert set(limits) <= {11, 12, 13, 14}
    assert seconds < 1.2 * 1000 / 12 * 0.1
    assert server.refused < 150


@pytest.mark.parametrize("retry_after", [None, 1.0])
def test_after_an_outage_the_concurrency_is_as_before(retry_after: float | None) -> None:
    random.seed(1)
    server = Server(1, outage=(2.0, 5.0), retry_after=retry_after)
    seconds, limits = run_virtual(by_agents(server, 1000, 16))
    assert seconds < 1.1 * (1000 / 16 * 0.1 + 3)
    assert limits[-1] == 16
    assert server.refused < 150


@pytest.mark.slow
def test_a_rate_limit_is_found_among_random_refusals() -> None:
    random.seed(1)
    server = Server(1, 0.1, rate=100, burst=50)
    seconds, _ = run_virtual(by_agents(server, 2000, 32, is_found=True))
    assert seconds < 1.3 * 19.5
    assert server.refused < 1000
