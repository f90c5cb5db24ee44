"""Backends at their worst, in virtual time: slow ones that refuse in part, held runs that are left, stubborn tools."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine_harness import asked, now, run, stream, waiting_tool
from tests.support.event_list import EventList

from batch_agent import AgentResult, BackendError, ErrorKind, RunStopped, Tool
from batch_agent.backends.diagnostics import _Prober
from batch_agent.backends.probe import probe_tools
from batch_agent.core.events import Paused, RequestRetried
from batch_agent.core.messages import ToolCall
from batch_agent.core.requests import CallDelta, Delta, Finished, Request, Usage
from batch_agent.observe.live.state import LiveState
from batch_agent.testing import Answer, ScriptedBackend, by_turn, call, calls, say

BUSY = BackendError(ErrorKind.UNAVAILABLE, "HTTP 503: over capacity", status=503)
ASKS_TO_WAIT = BackendError(ErrorKind.UNAVAILABLE, "HTTP 503: wait", retry_after=1.0, status=503)
BROKEN = BackendError(ErrorKind.CONNECTION, "The connection broke")


class Room(ScriptedBackend):
    """Takes `room` requests at once, `seconds` each, and says 503 to all others at once."""

    def __init__(self, room: int, seconds: float, error: BackendError = BUSY) -> None:
        async def answer(request: Request) -> Answer:
            if self.busy >= room:
                return error
            self.busy += 1
            try:
                await asyncio.sleep(seconds)
            finally:
                self.busy -= 1
            return say(asked(request))

        self.busy = 0
        super().__init__(answer)


def numbers(count: int) -> list[str]:
    return [str(n) for n in range(count)]


async def test_a_server_that_refuses_a_fifth_long_answer_is_not_taken_to_be_down() -> None:
    results = await run(Room(4, seconds=60), numbers(12), max_inflight=8)
    assert [result.output for result in results] == numbers(12)


async def test_three_blocked_prompts_do_not_stop_the_run_while_other_agents_get_answers() -> None:
    async def answer(request: Request) -> Answer:
        if int(asked(request)) in (3, 5, 7):
            return BackendError(ErrorKind.AUTH, "HTTP 403: blocked by the firewall", status=403)
        await asyncio.sleep(30)
        return say("fine")

    results = await run(ScriptedBackend(answer), numbers(50), max_inflight=16)
    assert [result.index for result in results if not result.ok] == [3, 5, 7]


async def test_one_prompt_that_always_gets_503_with_retry_after_fails_alone() -> None:
    others: list[float] = []

    def answer(request: Request) -> Answer:
        if asked(request) == "0":
            return ASKS_TO_WAIT
        others.append(now())
        return say("fine")

    results = await run(ScriptedBackend(answer, seconds=0.1), numbers(400), max_inflight=4)
    assert [result.index for result in results if not result.ok] == [0]
    assert max(others) < 15


@pytest.mark.parametrize("error", [BUSY, ASKS_TO_WAIT], ids=["plain", "retry-after"])
async def test_a_poisoned_prompt_as_the_last_agent_fails_only_that_agent(error: BackendError) -> None:
    def answer(request: Request) -> Answer:
        return error if asked(request) == "39" else say("fine")

    results = await run(ScriptedBackend(answer, seconds=0.1), numbers(40), max_inflight=4)
    assert [result.index for result in results if not result.ok] == [39]


@pytest.mark.parametrize("kind", [ErrorKind.CONNECTION, ErrorKind.SERVER])
async def test_a_server_that_always_fails_stops_the_run_before_every_agent_has_failed(kind: ErrorKind) -> None:
    answered: list[str] = []

    def answer(request: Request) -> Answer:
        if len(answered) >= 20:
            return BackendError(kind, "It broke")
        answered.append(asked(request))
        return say("fine")

    with pytest.raises(RunStopped):
        await run(ScriptedBackend(answer, seconds=0.1), numbers(500), max_inflight=8)


async def test_a_hanging_server_is_given_up_after_two_rounds_also_with_few_agents() -> None:
    async def answer(request: Request) -> Answer:
        await asyncio.sleep(10**6)
        return say("")

    with pytest.raises(RunStopped, match="hangs"):
        await run(ScriptedBackend(answer, inflight=128), numbers(20), timeout_per_turn=10)


async def test_a_dead_server_behind_a_load_balancer_that_resets_stops_the_run() -> None:
    count = iter(range(10**6))

    def answer(request: Request) -> Answer:
        return BROKEN if next(count) % 3 == 2 else BackendError(ErrorKind.UNAVAILABLE, "Cannot connect")

    with pytest.raises(RunStopped):
        await run(ScriptedBackend(answer, seconds=0.1), numbers(500), max_inflight=8)


async def test_a_retry_after_beyond_the_patience_is_not_retried_twice_a_second() -> None:
    def answer(request: Request) -> Answer:
        return BackendError(ErrorKind.UNAVAILABLE, "loading", retry_after=20.0, status=503) if now() < 20 else say("up")

    backend = ScriptedBackend(answer)
    results = await run(backend, numbers(8), max_inflight=8)
    assert all(result.ok for result in results)
    assert len(backend.requests) <= 3 * 8


async def test_every_second_request_refused_with_retry_after_loses_no_agent() -> None:
    count = iter(range(10**6))

    def answer(request: Request) -> Answer:
        return ASKS_TO_WAIT if next(count) % 2 else say(asked(request))

    results = await run(ScriptedBackend(answer, seconds=0.1), numbers(200), max_inflight=32)
    assert [result.output for result in results] == numbers(200)


@pytest.mark.slow
async def test_an_outage_hits_only_requests_in_flight_and_is_reported_once_per_pause() -> None:
    log = EventList()

    def answer(request: Request) -> Answer:
        return BackendError(ErrorKind.UNAVAILABLE, "Cannot connect") if 0.3 <= now() < 8 else say("fine")

    results = await run(ScriptedBackend(answer, seconds=0.2), numbers(3000), max_inflight=1000, events=log)
    assert all(result.ok for result in results)
    assert sum(isinstance(event, Paused) for event in log.events) <= 8


@pytest.mark.slow
async def test_an_unreachable_backend_is_probed_by_a_few_agents_only() -> None:
    def answer(request: Request) -> Answer:
        return BackendError(ErrorKind.UNAVAILABLE, "Cannot connect") if 0.3 <= now() < 8 else say("fine")

    backend, log = ScriptedBackend(answer, seconds=0.2), EventList()
    await run(backend, numbers(3000), max_inflight=1000, events=log)
    assert sum(isinstance(event, RequestRetried) for event in log.events) <= 2000


async def test_the_progress_line_no_longer_shows_a_pause_that_is_over() -> None:
    state = LiveState()

    def answer(request: Request) -> Answer:
        if now() < 3:
            return BackendError(ErrorKind.UNAVAILABLE, "Cannot connect")
        if len(request.messages) < 20:
            return call("wait")
        return say("fine")

    async with stream(
        ScriptedBackend(answer, seconds=1.0), numbers(4), events=state, tools=[waiting_tool(5)], max_turns=30
    ) as results:
        await asyncio.sleep(40)
        assert state.run_stats.done == 0
        assert state.paused == ""
        async for _ in results:
            pass


@pytest.mark.parametrize("seconds", [0.1, 1.0, 2.3, 7.0])
async def test_a_paused_run_can_be_cancelled_at_any_time(seconds: float) -> None:
    backend = ScriptedBackend(lambda request: BackendError(ErrorKind.UNAVAILABLE, "Cannot connect"), seconds=0.1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            await run(backend, numbers(1000), max_inflight=64)
    assert backend.in_flight == 0


async def test_a_run_can_be_cancelled_during_the_prefix_warmup() -> None:
    backend = ScriptedBackend(lambda request: say("fine"), seconds=50.0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await run(backend, numbers(100), warm_prefix=True)
    assert backend.in_flight == 0
    assert len(backend.requests) == 1


async def test_when_the_warmup_agent_fails_another_agent_warms_the_prefix() -> None:
    async def answer(request: Request) -> Answer:
        await asyncio.sleep(1000 if not request.agent and len(backend.requests) == 1 else 1)
        return say("fine")

    backend = ScriptedBackend(answer)
    results = await run(backend, numbers(4), warm_prefix=True, max_inflight=1, timeout_per_agent=10)
    assert [result.ok for result in results] == [False, True, True, True]


async def test_a_prefix_warmup_of_a_hanging_server_ends_at_the_turn_timeout() -> None:
    async def answer(request: Request) -> Answer:
        if not request.agent:
            await asyncio.sleep(10**6)
        return say("fine")

    results = await run(ScriptedBackend(answer), numbers(4), warm_prefix=True, timeout_per_turn=0.2)
    assert all(result.ok for result in results)
    assert now() < 5


async def test_the_prefix_warmup_is_not_counted_as_time_to_first_token() -> None:
    async def answer(request: Request) -> Answer:
        await asyncio.sleep(20 if not request.agent else 1)
        return say("fine")

    results = await run(ScriptedBackend(answer), numbers(4), warm_prefix=True, streaming=True)
    assert [result.timing.ttft[0] for result in results] == pytest.approx([1.0] * 4)


async def test_the_tool_trial_on_a_hanging_server_times_out() -> None:
    async def answer(request: Request) -> Answer:
        await asyncio.sleep(10**6)
        return say("")

    with pytest.raises(BackendError):
        await probe_tools(ScriptedBackend(answer), "m")
    assert now() < 3600


async def test_doctor_reports_a_hanging_server() -> None:
    async def answer(request: Request) -> Answer:
        await asyncio.sleep(10**6)
        return say("")

    check = await _Prober(ScriptedBackend(answer)).plain()
    assert check.state == "failed"
    assert now() < 3600


async def test_a_run_that_is_stopped_twice_still_has_all_finished_results(tmp_path: Path) -> None:
    inputs = numbers(60)

    async def late(request: Request) -> Answer:
        if int(asked(request)) < 20:
            return BackendError(ErrorKind.BAD_REQUEST, "not now")
        return say("fine")

    first = await run(ScriptedBackend(late), inputs, max_inflight=4, checkpoint_dir=tmp_path)
    assert sum(result.ok for result in first) == 40
    dead = ScriptedBackend(lambda request: BackendError(ErrorKind.UNAVAILABLE, "Cannot connect"))
    with pytest.raises(RunStopped) as stopped:
        await run(dead, inputs, max_inflight=4, checkpoint_dir=tmp_path)
    assert [result.index for result in stopped.value.results if result.ok] == list(range(20, 60))


async def test_a_stopped_run_resumes_in_the_middle_of_its_agents(tmp_path: Path) -> None:
    looked: list[float] = []

    @Tool.define(effect="stateful")  # a claim would wait for the disk, in real time
    async def look() -> str:
        looked.append(now())
        return "seen"

    def dies(request: Request) -> Answer:
        if len(request.messages) > 1:
            return BackendError(ErrorKind.UNAVAILABLE, "Cannot connect")
        return call("look")

    with pytest.raises(RunStopped) as stopped:
        await run(ScriptedBackend(dies), numbers(6), tools=[look], checkpoint_dir=tmp_path)
    assert stopped.value.results == []
    assert len(looked) == 6
    alive = ScriptedBackend(by_turn(call("look"), say("ok")))
    results = await run(alive, numbers(6), tools=[look], checkpoint_dir=tmp_path)
    assert [result.output for result in results] == ["ok"] * 6
    assert len(looked) == 6


async def test_stopping_a_run_does_not_wait_for_blocking_tools() -> None:
    gate = threading.Event()

    @Tool.define
    def block() -> str:
        gate.wait(20)
        return "late"

    def answer(request: Request) -> Answer:
        if asked(request) == "0":
            return call("block")
        return BackendError(ErrorKind.AUTH, "HTTP 401", status=401)

    try:
        with pytest.raises(RunStopped):
            await run(ScriptedBackend(answer, seconds=0.1), numbers(20), tools=[block], max_inflight=1)
        assert not gate.is_set()
    finally:
        gate.set()


async def test_status_401_after_a_hundred_answers_stops_the_run_and_keeps_them() -> None:
    backend: ScriptedBackend

    def answer(request: Request) -> Answer:
        if len(backend.requests) > 100:
            return BackendError(ErrorKind.AUTH, "HTTP 401: revoked", status=401)
        return say("fine")

    backend = ScriptedBackend(answer)
    with pytest.raises(RunStopped, match="revoked") as stopped:
        await run(backend, numbers(1000), max_inflight=8)
    assert sum(result.ok for result in stopped.value.results) == 100
    assert {result.error.kind for result in stopped.value.results if result.error} == {ErrorKind.AUTH}
    assert len(backend.requests) <= 100 + 8


async def test_a_key_that_is_revoked_while_slow_requests_are_in_flight_stops_the_run_with_their_answers(
    tmp_path: Path,
) -> None:
    sent, is_revoked = 0, True

    async def answer(request: Request) -> Answer:
        nonlocal sent
        sent += 1
        if sent > 40 and is_revoked:
            return BackendError(ErrorKind.AUTH, "HTTP 401: revoked", status=401)
        await asyncio.sleep(2 + sent % 7)
        return say("fine")

    backend = ScriptedBackend(answer)
    with pytest.raises(RunStopped, match="revoked") as stopped:
        await run(backend, numbers(300), max_inflight=8, checkpoint_dir=tmp_path)
    assert sum(result.ok for result in stopped.value.results) == 40
    assert len(stopped.value.results) <= 40 + 16
    is_revoked, sent = False, 0
    results = await run(backend, numbers(300), max_inflight=8, checkpoint_dir=tmp_path)
    assert all(result.ok for result in results)
    assert sent == 260


async def test_status_404_after_a_hundred_answers_stops_the_run_and_keeps_them() -> None:
    backend: ScriptedBackend

    def answer(request: Request) -> Answer:
        if len(backend.requests) > 100:
            return BackendError(ErrorKind.NOT_FOUND, "HTTP 404: unloaded", status=404)
        return say("fine")

    backend = ScriptedBackend(answer)
    with pytest.raises(RunStopped, match="unloaded") as stopped:
        await run(backend, numbers(1000), max_inflight=8)
    assert sum(result.ok for result in stopped.value.results) == 100


async def test_a_server_that_never_answers_stops_the_run() -> None:
    async def answer(request: Request) -> Answer:
        await asyncio.sleep(10**6)
        return say("")

    backend = ScriptedBackend(answer)
    with pytest.raises(RunStopped, match="hangs"):
        await run(backend, numbers(1000), max_inflight=8, timeout_per_turn=0.2)
    assert len(backend.requests) <= 24


def sheds(share: float, seed: int, error: BackendError = BUSY) -> ScriptedBackend:
    """Answers after a second, but refuses a share of the requests, and those at once."""
    draw = random.Random(seed)

    async def answer(request: Request) -> Answer:
        if draw.random() < share:
            return error
        await asyncio.sleep(1)
        return say(asked(request))

    return ScriptedBackend(answer)


async def test_random_503s_of_five_percent_lose_no_agent() -> None:
    results = await run(sheds(0.05, 7), numbers(2000), max_inflight=64)
    assert [result.output for result in results] == numbers(2000)


async def test_random_503s_of_five_percent_pause_no_other_agent() -> None:
    log = EventList()
    await run(sheds(0.05, 7), numbers(2000), max_inflight=64, events=log)
    assert sum(isinstance(event, Paused) for event in log.events) <= 5


async def test_random_503s_without_retries_fail_their_agents_and_not_the_run() -> None:
    results = await run(sheds(0.05, 7), numbers(500), max_inflight=64, max_retries=0)
    assert 450 < sum(result.ok for result in results) < 500


async def test_a_server_that_replies_529_gets_fewer_requests() -> None:
    log = EventList()
    overloaded = BackendError(ErrorKind.UNAVAILABLE, "HTTP 529: overloaded", status=529)
    backend = Room(8, seconds=1, error=overloaded)
    results = await run(backend, numbers(400), max_inflight=64, events=log)
    assert all(result.ok for result in results)
    assert len(backend.requests) < 3 * 400


async def test_a_pause_is_reported_with_its_whole_length() -> None:
    def answer(request: Request) -> Answer:
        if now() < 1:
            wait = 1.0 if asked(request) == "0" else 9.0
            return BackendError(ErrorKind.RATE_LIMITED, "wait", retry_after=wait, status=429)
        return say("fine")

    log = EventList()
    await run(ScriptedBackend(answer, seconds=0.1), numbers(40), events=log)
    assert max(event.seconds for event in log.events if isinstance(event, Paused)) == 9.0


class Speaker(ScriptedBackend):
    """Streams calls at once and then speaks on for `rest` seconds, after which its first `fails` answers break off."""

    def __init__(self, *wanted: ToolCall, rest: float = 2.0, fails: int = 0, finish: Any = "calls") -> None:
        super().__init__(lambda request: say("done"))
        self._wanted, self._rest, self._fails, self._end = wanted, rest, fails, finish

    async def _deltas(self, request: Request) -> AsyncGenerator[Delta, None]:
        if len(request.messages) > 1:
            async for delta in super()._deltas(request):
                yield delta
            return
        for wanted in self._wanted:
            yield CallDelta(wanted)
        await asyncio.sleep(self._rest)
        if len(self.requests) <= self._fails:
            raise BackendError(ErrorKind.CONNECTION, "reset")
        yield Finished(self._end, Usage())


def wants(name: str, arguments: str = '{"at": 1}', call_id: str = "") -> ToolCall:
    return ToolCall(call_id, name, arguments)


async def early(backend: ScriptedBackend, *tools: Tool, inputs: Any = ("a",), **options: Any) -> list[AgentResult]:
    return await run(backend, list(inputs), tools=list(tools), streaming_tool_dispatch=True, backoff=0.01, **options)


async def test_two_equal_calls_in_one_answer_are_one_execution_and_two_results() -> None:
    seen: list[int] = []

    @Tool.define(effect="read")
    async def look(at: int) -> str:
        seen.append(at)
        return f"seen {at}, {len(seen)}"

    backend = Speaker(wants("look", call_id="x"), wants("look", call_id="x"))
    [result] = await early(backend, look)
    assert result.ok
    told = backend.requests[-1].messages[-1].results  # type: ignore[union-attr]
    assert [r.content for r in told] == ["seen 1, 1", "seen 1, 1"]
    assert len({r.call.id for r in told}) == 2


async def test_a_broken_stream_does_not_wait_for_a_started_tool_that_blocks_a_thread() -> None:
    gate, runs = threading.Event(), []

    @Tool.define(effect="read")
    def look(at: int) -> str:
        runs.append(at)
        if len(runs) == 1:
            gate.wait(20)
        return "seen"

    try:
        [result] = await early(Speaker(wants("look"), fails=1), look)
        assert result.ok
        assert not gate.is_set()
    finally:
        gate.set()


async def test_a_started_tool_that_raises_on_cancellation_affects_no_agent() -> None:
    log: list[str] = []

    @Tool.define(effect="read")
    async def look(at: int) -> str:
        log.append("start")
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            log.append("cancelled")
            raise ValueError("I will not") from None
        return "seen"

    [result] = await early(Speaker(wants("look"), fails=1), look)
    assert result.ok
    assert log == ["start", "cancelled", "start"]


async def test_a_tool_that_is_slow_to_cancel_is_waited_for_without_a_slot() -> None:
    @Tool.define(effect="read")
    async def look(at: int) -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            await asyncio.sleep(10)
        return "seen"

    backend = Speaker(wants("look"), fails=1)
    results = await early(backend, look, inputs=("a", "b"), max_inflight=1)
    assert all(result.ok for result in results)
    assert [asked(request) for request in backend.requests[:2]] == ["a", "b"]


async def test_a_run_cancelled_while_it_abandons_a_tool_leaves_no_task_behind() -> None:
    ended: list[float] = []

    @Tool.define(effect="read")
    async def look(at: int) -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            await asyncio.sleep(10)
            ended.append(now())
        return "seen"

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(4):  # the stream breaks at 2, the tool is cancelled and takes until 12
            await early(Speaker(wants("look"), fails=1), look)
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in left:
        await asyncio.wait([task])
    assert left == []


async def test_tools_started_early_for_a_refused_answer_are_abandoned() -> None:
    log: list[str] = []

    @Tool.define(effect="read")
    async def look(at: int) -> str:
        try:
            await asyncio.sleep(50)
        except asyncio.CancelledError:
            log.append("cancelled")
            raise
        return "seen"

    [result] = await early(Speaker(wants("look"), finish="refusal"), look)
    assert result.error is not None
    assert result.error.kind is ErrorKind.REFUSED
    assert log == ["cancelled"]


async def test_stopping_the_run_cancels_the_started_tools_of_all_agents() -> None:
    log: list[str] = []

    @Tool.define(effect="read")
    async def look(at: int) -> str:
        try:
            await asyncio.sleep(50)
        except asyncio.CancelledError:
            log.append("cancelled")
            raise
        return "seen"

    class Mixed(Speaker):
        async def _deltas(self, request: Request) -> AsyncGenerator[Delta, None]:
            if asked(request) == "bad":
                await asyncio.sleep(1)
                raise BackendError(ErrorKind.AUTH, "HTTP 401", status=401)
            async for delta in super()._deltas(request):
                yield delta

    with pytest.raises(RunStopped):
        await early(Mixed(wants("look"), rest=5), look, inputs=("a", "b", "bad"))
    assert log == ["cancelled"]  # one execution for both


async def test_tools_started_early_run_exactly_once_per_answer_during_an_outage() -> None:
    done: Counter[int] = Counter()

    @Tool.define(effect="read")
    async def look(at: int) -> str:
        await asyncio.sleep(3)
        done[at] += 1
        return f"seen {at}"

    class Flaky(ScriptedBackend):
        async def _deltas(self, request: Request) -> AsyncGenerator[Delta, None]:
            at = int(asked(request))
            if len(request.messages) == 1:
                yield CallDelta(wants("look", f'{{"at": {at}}}'))
                await asyncio.sleep(1)
                if 0.5 < now() < 8:
                    raise BackendError(ErrorKind.UNAVAILABLE if at % 2 else ErrorKind.CONNECTION, "away")
                yield Finished("calls", Usage())
            else:
                async for delta in super()._deltas(request):
                    yield delta

    backend = Flaky(by_turn(calls(), say("done")))
    results = await early(backend, look, inputs=numbers(40), max_inflight=16, max_retries=20)
    assert all(result.ok for result in results)
    assert done == dict.fromkeys(range(40), 1)


async def test_a_few_refusals_before_the_first_answers_cost_little_more_than_the_wait_they_ask_for() -> None:
    count = iter(range(10**6))

    async def answer(request: Request) -> Answer:
        if next(count) in (3, 9, 20, 31, 40):
            return ASKS_TO_WAIT
        await asyncio.sleep(0.05)
        return say(asked(request))

    results = await run(ScriptedBackend(answer), numbers(100), max_inflight=64)
    assert [result.output for result in results] == numbers(100)
    assert now() < 1.2
