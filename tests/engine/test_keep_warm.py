"""kvflow through the whole engine: contexts of agents that wait for their tools are touched before they go."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.support.engine_harness import asked, now, waiting_tool

from batch_agent import BackendError, BatchAgent, ErrorKind
from batch_agent.core.messages import Assistant
from batch_agent.core.protocols.backend import ServerLoad
from batch_agent.core.requests import Reply, Request, Usage
from batch_agent.core.run_reports import KeepWarmStats
from batch_agent.data.results import Results
from batch_agent.engine.slots import Slots
from batch_agent.testing import Answer, ScriptedBackend, by_turn, call, say

KV_TOKENS = 100_000
RATE = 10_000
"""Tokens a second that others make the server compute: what is not used for ten seconds is gone."""
ROUND = 8.0
"""Seconds after which a context is touched: some looks before it goes."""


class Server(ScriptedBackend):
    """One whose other users fill its cache. Touches take `seconds` too."""

    def __init__(self, script: Callable[[Request], Answer | Awaitable[Answer]], **options: Any) -> None:
        self.options = {"kv_tokens": KV_TOKENS, "seconds": 0.1} | options
        super().__init__(script, **self.options)
        self.rate: float = RATE
        self.waiting = 0
        self.kv_usage = 0.0

    async def load(self) -> ServerLoad | None:
        return ServerLoad(waiting=self.waiting, kv_usage=self.kv_usage, computed=int(self.rate * now()))

    @property
    def touches(self) -> list[Request]:
        return [request for request in self.requests if is_touch(request)]


def is_touch(request: Request) -> bool:
    return request.sampling.max_tokens == 1


def wants(usage: Usage) -> Reply:
    return replace(call("wait"), usage=usage)


TURNS = by_turn(wants(Usage(4000, 0, 20)), say("done", Usage(4100, 4000, 20)))


def script(request: Request) -> Answer:
    return say("!", Usage(4000, 3984, 1)) if is_touch(request) else TURNS(request)  # type: ignore[return-value]


async def run(backend: Server, inputs: int = 1, seconds: float = 30.0, **options: Any) -> Results:
    options = {"tools": [waiting_tool(seconds)], "kvflow": True, "timeout_per_tool": None, **options}
    texts = [f"{index}" for index in range(inputs)]
    results: Results = await BatchAgent.run(task="{it}", inputs=texts, backend=backend, **options)
    assert backend.in_flight == 0
    return results


def warmth(results: Results) -> KeepWarmStats:
    assert results.scheduling.keep_warm is not None
    return results.scheduling.keep_warm


@pytest.fixture(autouse=True)
def no_slot_is_lost(monkeypatch: pytest.MonkeyPatch) -> list[Slots]:
    made: list[Slots] = []
    init = Slots.__init__

    def remember(slots: Slots, *given: Any, **named: Any) -> None:
        init(slots, *given, **named)
        made.append(slots)

    monkeypatch.setattr(Slots, "__init__", remember)
    return made


def in_use(made: list[Slots]) -> list[int]:
    return [slots._queue.in_use for slots in made]


async def test_a_context_gets_as_few_keep_warm_requests_as_keep_it_cached(no_slot_is_lost: list[Slots]) -> None:
    sent: list[float] = []

    def answer(request: Request) -> Answer:
        if is_touch(request):
            sent.append(now())
        return script(request)

    results = await run(Server(answer))
    assert [result.text for result in results] == ["done"]
    gaps = [later - earlier for earlier, later in zip([0.1, *sent], sent, strict=False)]
    assert len(gaps) == 3
    assert all(ROUND - 0.6 <= gap < 9.6 for gap in gaps), gaps
    assert in_use(no_slot_is_lost) == [0]


async def test_a_keep_warm_request_is_the_last_turn_for_one_token_at_the_lowest_priority() -> None:
    backend = Server(script)
    await run(backend, output_schema=None, streaming_tool_dispatch=True)
    first, *touches, last = backend.requests
    assert touches
    for touch in touches:
        assert touch == replace(
            first, sampling=touch.sampling, stream=False, priority=touch.priority, answer_schema=first.answer_schema
        )
        assert touch.messages == first.messages == last.messages[: len(first.messages)]
        assert touch.prompt is first.prompt
        assert touch.priority < first.priority
        assert touch.sampling is touches[0].sampling  # what dialects make of it is made once


async def test_keep_warm_requests_are_counted_apart_from_agent_usage() -> None:
    results = await run(Server(script))
    assert warmth(results) == KeepWarmStats(3, 3 * 17, 3)
    assert results[0].usage == Usage(8100, 4000, 40)


async def test_a_keep_warm_request_without_a_cache_hit_is_the_last_for_its_context() -> None:
    def answer(request: Request) -> Answer:
        return say("!", Usage(4000, 16, 1)) if is_touch(request) else script(request)

    results = await run(Server(answer), seconds=60)
    assert warmth(results) == KeepWarmStats(1, 3985, 0)


async def test_a_server_that_reports_no_cached_tokens_counts_as_neither_hit_nor_miss() -> None:
    def answer(request: Request) -> Answer:
        return say("!", Usage(4000, 0, 1)) if is_touch(request) else script(request)

    results = await run(Server(answer))
    assert warmth(results).requests == 3
    assert warmth(results).hits == 0


async def test_without_kvflow_there_are_no_keep_warm_requests() -> None:
    backend = Server(script)
    results = await run(backend, kvflow=False)
    assert backend.touches == []
    assert results.scheduling.keep_warm is None


@pytest.mark.parametrize("traits", [{"kv_tokens": None}, {"has_agent_sessions": True}, {"managed_cache": True}])
async def test_keep_warm_requests_are_not_sent_to_backends_without_a_cache_to_keep(traits: dict[str, Any]) -> None:
    backend = Server(script, **traits)
    await run(backend)
    assert backend.touches == []


async def test_keep_warm_requests_are_not_sent_to_a_server_that_reports_no_load() -> None:
    class Silent(Server):
        async def load(self) -> ServerLoad | None:
            return None

    backend = Silent(script)
    results = await run(backend)
    assert backend.touches == []
    assert warmth(results) == KeepWarmStats()


@pytest.mark.parametrize("state", [{"waiting": 1}, {"kv_usage": 0.9}, {"rate": 0.0}])
async def test_a_busy_server_or_one_without_other_users_gets_no_keep_warm_requests(state: dict[str, Any]) -> None:
    backend = Server(script)
    for name, value in state.items():
        setattr(backend, name, value)
    await run(backend)
    assert backend.touches == []


async def test_a_server_at_full_compute_gets_no_keep_warm_requests() -> None:
    backend = Server(script)
    backend.rate = 50_000.0  # its best was 4000 in a tenth of a second
    await run(backend)
    assert backend.touches == []


async def test_a_run_whose_agents_wait_for_slots_sends_no_keep_warm_requests() -> None:
    async def answer(request: Request) -> Answer:
        if asked(request) == "1":
            await asyncio.sleep(40)
        return script(request)

    backend = Server(answer)
    await run(backend, 2, max_inflight=1, timeout_per_turn=None)
    assert "0" not in map(asked, backend.touches)  # whose context would have gone while the other one was answered


async def test_a_tool_wait_of_the_expected_length_gets_no_keep_warm_requests() -> None:
    backend = Server(script)
    results = await run(backend, 8, seconds=8.7, max_dispatched=1)
    assert all(result.ok for result in results)
    # Four waits tell how long the tool takes; it ends just before the context goes.
    assert [asked(request) for request in backend.touches] == ["0", "1", "2", "3"]


async def test_a_keep_warm_request_in_flight_is_cancelled_when_the_tools_return(no_slot_is_lost: list[Slots]) -> None:
    async def answer(request: Request) -> Answer:
        if is_touch(request):
            await asyncio.sleep(20)
        return script(request)

    backend = Server(answer)
    results = await run(backend, seconds=12.0)
    assert results[0].ok
    assert len(backend.touches) == 1
    assert now() == pytest.approx(12.2)
    assert warmth(results) == KeepWarmStats()
    assert in_use(no_slot_is_lost) == [0]


async def test_a_hanging_keep_warm_request_is_given_up(no_slot_is_lost: list[Slots]) -> None:
    async def answer(request: Request) -> Answer:
        if is_touch(request):
            await asyncio.Event().wait()
        return script(request)

    backend = Server(answer)
    results = await run(backend, seconds=100.0)
    assert results[0].ok
    assert len(backend.touches) == 1  # after half a minute its context is gone
    assert in_use(no_slot_is_lost) == [0]


async def test_an_agent_that_ends_during_a_keep_warm_request_leaves_no_task(no_slot_is_lost: list[Slots]) -> None:
    async def answer(request: Request) -> Answer:
        if is_touch(request):
            await asyncio.sleep(20)
        return script(request)

    backend = Server(answer)
    results = await run(backend, timeout_per_agent=12.0)
    assert not results[0].ok
    assert len(backend.touches) == 1
    assert in_use(no_slot_is_lost) == [0]


@pytest.mark.parametrize("after", [8.2, 8.5, 8.6, 8.7, 8.8, 9.0])
async def test_a_run_cancelled_during_a_keep_warm_request_leaves_no_task(
    after: float, no_slot_is_lost: list[Slots]
) -> None:
    backend = Server(script, seconds=1.0)
    running = asyncio.create_task(run(backend))
    await asyncio.sleep(after)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert now() == pytest.approx(after)
    assert backend.in_flight == 0
    assert in_use(no_slot_is_lost) == [0]


FAILURES = [
    BackendError(ErrorKind.RATE_LIMITED, "slow down"),
    BackendError(ErrorKind.SERVER, "oh no", status=503),
    BackendError(ErrorKind.UNAVAILABLE, "nobody there"),
    BackendError(ErrorKind.BAD_REQUEST, "max_tokens must be at least 16"),
    BackendError(ErrorKind.AUTH, "no"),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.kind)
async def test_a_failed_keep_warm_request_is_not_repeated_soon_and_affects_no_agent(
    failure: BackendError, no_slot_is_lost: list[Slots]
) -> None:
    def answer(request: Request) -> Answer:
        return failure if is_touch(request) else script(request)

    backend = Server(answer)
    results = await run(backend, 3, seconds=20.0)
    assert [result.text for result in results] == ["done"] * 3
    assert now() == pytest.approx(20.2)
    assert len(backend.touches) == 3  # those that were under way already
    assert results.scheduling.limits == ()
    assert warmth(results) == KeepWarmStats()
    assert in_use(no_slot_is_lost) == [0]


async def test_retry_after_of_a_keep_warm_request_is_honored() -> None:
    def answer(request: Request) -> Answer:
        if is_touch(request) and now() < 10:
            return BackendError(ErrorKind.RATE_LIMITED, "slow down", retry_after=60.0)
        if is_touch(request):
            touched.append(now())
        return script(request)

    touched: list[float] = []
    turns = by_turn(*[wants(Usage(4000, 3900, 20))] * 12, say("done", Usage(4100, 4000, 20)))
    backend = Server(lambda request: answer(request) if is_touch(request) else turns(request))
    await run(backend, seconds=9.3, max_turns=20)
    assert touched
    assert min(touched) >= 68


@pytest.mark.parametrize("kvflow", [False, True])
async def test_an_exhausted_budget_ends_agents_as_without_keep_warm_requests(
    kvflow: bool, no_slot_is_lost: list[Slots]
) -> None:
    backend = Server(script)
    results = await run(backend, 3, kvflow=kvflow, max_total_tokens=3 * 4020 + 50, max_tokens=20)
    assert [result.error and result.error.kind for result in results] == [ErrorKind.BUDGET] * 3
    assert len(backend.requests) == 3
    assert now() == pytest.approx(30.1)
    assert in_use(no_slot_is_lost) == [0]


async def test_a_deadline_during_a_keep_warm_request_ends_the_agent_as_without_it() -> None:
    async def answer(request: Request) -> Answer:
        if is_touch(request):
            await asyncio.sleep(20)
        return script(request)

    backend = Server(answer)
    results = await run(backend, deadline=12.0)
    assert len(backend.touches) == 1
    assert results[0].error is not None
    assert results[0].error.kind is ErrorKind.BUDGET
    assert now() == 12.0


async def test_a_restarted_server_gets_no_keep_warm_requests_for_lost_contexts() -> None:
    class Restarted(Server):
        async def load(self) -> ServerLoad | None:
            return ServerLoad(computed=int(self.rate * (now() if now() < 5 else now() - 5)))

    backend = Restarted(script)
    await run(backend)
    assert backend.touches == []


async def test_keep_warm_requests_of_many_agents_never_exceed_the_slots(no_slot_is_lost: list[Slots]) -> None:
    backend = Server(script, inflight=4, fixed_inflight=True)
    results = await run(backend, 12)
    assert all(result.ok for result in results)
    assert backend.most_in_flight <= 4
    assert {asked(request) for request in backend.touches} == {f"{index}" for index in range(12)}
    assert in_use(no_slot_is_lost) == [0]


async def test_waits_for_tools_started_early_are_kept_warm_too() -> None:
    backend = Server(script)
    results = await run(backend, streaming_tool_dispatch=True)
    assert results[0].ok
    assert len(backend.touches) == 3


async def test_each_tool_wait_of_an_agent_is_kept_warm() -> None:
    turns = by_turn(wants(Usage(4000, 0, 20)), wants(Usage(4100, 4000, 20)), say("done", Usage(4200, 4100, 20)))
    backend = Server(lambda request: script(request) if is_touch(request) else turns(request))
    results = await run(backend, seconds=12.0)
    assert results[0].ok
    assert [_turn(request) for request in backend.touches] == [0, 1]


def _turn(request: Request) -> int:
    return sum(isinstance(message, Assistant) for message in request.messages)


async def test_few_contexts_are_kept_warm_at_a_time() -> None:
    at_once = most = 0

    async def answer(request: Request) -> Answer:
        nonlocal at_once, most
        if is_touch(request):
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.1)
            at_once -= 1
        return script(request)

    backend = Server(answer)
    await run(backend, inputs=12)
    assert len(backend.touches) >= 12
    assert most == 2


async def test_after_one_context_was_lost_the_others_of_a_poll_are_not_computed_again() -> None:
    def answer(request: Request) -> Answer:
        return say("!", Usage(4000, 16, 1)) if is_touch(request) else script(request)

    backend = Server(answer)
    await run(backend, inputs=12, seconds=9.0)
    assert 1 <= len(backend.touches) < 12
