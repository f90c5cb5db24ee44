"""Events of workers reach the submitter's views, in a consistent order per agent."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ParamSpec

import pytest
from tests.support.virtual_time import virtual

from batch_agent import StoreError, Usage
from batch_agent.cluster.events.message import EventBatch, encode_events, read
from batch_agent.cluster.events.relay import EventRelay
from batch_agent.cluster.memory.memory_coordinator import MemoryCoordinator
from batch_agent.core.events import (
    AgentFinished,
    AgentReassigned,
    AgentStarted,
    BudgetReported,
    CallsEnded,
    Event,
    LoadSampled,
    Notice,
    Paused,
    Resumed,
    RunStarted,
    SchedulingReported,
    ToolsUsed,
    TurnEnded,
    TurnStarted,
    WorkerEvent,
)
from batch_agent.core.results import AgentResult, CallRecord, ToolUse
from batch_agent.core.run_reports import Scheduling
from batch_agent.observe.live.state import LiveState
from batch_agent.store.memory_store import MemoryStore
from batch_agent.testing import run_virtual

P = ParamSpec("P")
RUN = RunStarted("vllm", "m", 8, 10)


def now() -> float:
    return asyncio.get_running_loop().time()


class Seen:
    """Who watches: what was seen, and of some of it when it was."""

    def __init__(self) -> None:
        self.state = LiveState()
        self.events: list[Event] = []
        self.times: list[float] = []

    def emit(self, event: Event) -> None:
        self.emit_at(now(), event)

    def emit_at(self, at: float, event: Event) -> None:
        self.state.emit(event)
        self.events.append(event)
        self.times.append(at)

    def of(self, key: str) -> list[Event]:
        """What is told of an agent."""
        return [event for event in self.events if _key(event) == key]


def _key(event: Event) -> str | None:
    inner = event.event if isinstance(event, WorkerEvent) else event
    return inner.result.key if isinstance(inner, AgentFinished) else getattr(inner, "key", None)


class Process:
    """One that shares the run. Its clock may be wrong, and its line to the hub cut."""

    def __init__(
        self,
        coordinator: MemoryCoordinator,
        name: str,
        *,
        asks: bool,
        clock_error: float = 0.0,
        has_view: bool = True,
    ) -> None:
        self._coordinator = coordinator
        self.name = name
        self.seen = Seen()
        self.sent: list[EventBatch] = []
        self.is_cut = self.is_slow = False
        line: Any = self
        self.relay = EventRelay(line, name, self.seen if has_view else None, is_submitter=asks, clock=now)
        self.relay.publisher._clock = lambda: now() + 1e9 + clock_error
        self.tells = self.relay.emit
        self.runs = self.relay.local.emit if asks else self.relay.emit
        """What its engine emits."""

    async def publish(self, data: bytes, *, to_workers: bool) -> None:
        if self.is_cut:
            raise StoreError("The coordinator cannot be reached.")
        while self.is_slow:
            await asyncio.sleep(1)
        message = read(data)
        assert message is not None
        self.sent.append(message)
        await self._coordinator.updates.publish(data, to_workers=to_workers)

    @asynccontextmanager
    async def active(self) -> AsyncIterator[None]:
        reading = asyncio.create_task(self._read(await self._coordinator.updates.position()))
        try:
            async with self.relay.open():
                yield
        finally:
            reading.cancel()
            await asyncio.wait([reading])

    async def _read(self, after: Any) -> None:
        while True:
            news = await self._coordinator.updates.poll(after, wait=5.0)
            after = news.after
            if not self.is_cut:
                self.relay.on_messages(news.published)

    def works(self, key: str, index: int = 0) -> None:
        """An agent of one turn, up to where its result is handed out."""
        self.runs(AgentStarted(key, index))
        self.runs(TurnStarted(key, 1))
        self.runs(turn(key))
        self.runs(done(key, index))


@asynccontextmanager
async def sharing(*asking: str, working: tuple[str, ...] = (), **options: Any) -> AsyncIterator[list[Process]]:
    """Those who ask have begun, and everybody knows of each other."""
    coordinator = MemoryCoordinator(MemoryStore())
    processes = [Process(coordinator, name, asks=True) for name in asking]
    processes += [Process(coordinator, name, asks=False, **options) for name in working]
    async with AsyncExitStack() as stack:
        for process in processes:
            await stack.enter_async_context(process.active())
            process.tells(RUN)
        await asyncio.sleep(1)
        yield processes
    assert asyncio.all_tasks() == {asyncio.current_task()}


def turn(key: str, usage: Usage = Usage(10, 5, 1)) -> TurnEnded:  # noqa: B008 - frozen
    return TurnEnded(key, 1, usage, "stop", 0.0, 1.0, None, 1)


def done(key: str, index: int = 0, *, resumed: bool = False) -> AgentFinished:
    return AgentFinished(AgentResult(index, key, output="yes", turns=1), resumed)


def accounts(each: int) -> Callable[[], ToolsUsed]:
    """What tools say of themselves: so much more, each time they are asked."""
    requested = itertools.count(each, each)
    return lambda: ToolsUsed((ToolUse("look", next(requested)),))


def test_an_event_message_is_decoded_unchanged_and_invalid_ones_are_ignored() -> None:
    happened: list[tuple[float, Event]] = [(1.5, AgentStarted("k", 3)), (2.5, Notice("two\nlines"))]
    message = EventBatch("w", 3.25, ("k",), (AgentStarted("l", 4),), True, False, True, encode_events(happened))
    found = read(message.encode())
    assert found == message
    assert list(found.events) == happened
    for data in (b"", b"\xff", b"7", b'["w"]', b'{"a":1}', b'["w","then",[],[],false,false]'):
        assert read(data) is None
    newer = EventBatch("w", 1.0, lines=b'[1.0,"Dreamt","",{}]\n' + encode_events(happened[:1])).encode()
    assert [event for _, event in read(newer).events] == [AgentStarted("k", 3)]  # type: ignore[union-attr]


@virtual
async def test_events_of_an_agent_on_another_worker_are_relayed_once() -> None:
    async with sharing("caller", working=("w",)) as (caller, w):
        w.works("a")
        caller.tells(done("a"))  # its ending is in the news before its story
        assert caller.seen.of("a") == []
        await asyncio.sleep(1)
        begins: list[Event] = [AgentStarted("a", 0), TurnStarted("a", 1), turn("a")]
        assert caller.seen.of("a") == [*(WorkerEvent("w", event) for event in begins), done("a")]
        state = caller.seen.state
        assert (state.run_stats.done, len(state.stages[""].agents), state.turn_usage) == (1, 0, Usage(10, 5, 1))
        assert state.turns == {"w": 1}
        assert w.seen.of("a") == [*begins, done("a")]


@virtual
async def test_events_are_published_in_batches_four_times_a_second() -> None:
    async with sharing("caller", working=("w",)) as (_, w):
        before = len(w.sent)
        for number in range(100):
            w.works(f"k{number}")
            await asyncio.sleep(0.01)
        await asyncio.sleep(60)
        assert len(w.sent) - before in (3, 4, 5)
        assert {key for message in w.sent for key in message.ended} == {f"k{number}" for number in range(100)}


@virtual
async def test_a_lone_process_sends_no_events_and_sees_its_own_at_once() -> None:
    async with sharing("caller") as (caller,):
        caller.works("a")
        caller.tells(done("a"))
        assert caller.seen.events[1:] == [AgentStarted("a", 0), TurnStarted("a", 1), turn("a"), done("a")]
        await asyncio.sleep(60)
    assert [message.is_listening for message in caller.sent] == [True] + [False] * 20  # then it announces itself
    assert not any(message.lines or message.ended or message.is_leaving for message in caller.sent)
    brief = Process(caller._coordinator, "brief", asks=True)
    async with brief.active():
        brief.tells(RUN)
    assert brief.sent == []


@virtual
async def test_a_worker_to_which_nobody_listens_sends_no_events_and_a_listener_gets_the_last_ones() -> None:
    async with sharing(working=("w",)) as (w,):
        w.works("old")
        await asyncio.sleep(10)
        assert not any(message.lines or message.ended for message in w.sent)
        w.works("new")
        w.runs(AgentStarted("running", 1))
        caller = Process(w._coordinator, "caller", asks=True)
        async with caller.active():
            caller.tells(RUN)
            caller.tells(done("new"))
            await asyncio.sleep(1)
            assert [type(event) for event in caller.seen.of("new")] == [WorkerEvent] * 3 + [AgentFinished]
            assert len(caller.seen.of("running")) == 1
            assert caller.seen.of("old") == []
            w.works("next")
            await asyncio.sleep(1)
            assert len(caller.seen.of("next")) == 3
            assert Notice not in {type(event.event) for event in caller.seen.events if isinstance(event, WorkerEvent)}


@virtual
async def test_events_before_the_answer_to_an_announcement_are_not_lost() -> None:
    async with sharing("caller") as (caller,):
        for name, seconds in (("joins", 5.0), ("leaves at once", 0.0)):
            late = Process(caller._coordinator, name, asks=False)
            async with late.active():
                late.tells(RUN)
                late.works(name)
                await asyncio.sleep(seconds)
            await asyncio.sleep(1)
            assert [type(event.event) for event in caller.seen.of(name) if isinstance(event, WorkerEvent)][:3] == [
                AgentStarted,
                TurnStarted,
                TurnEnded,
            ]


@virtual
async def test_a_request_for_events_that_was_lost_is_repeated() -> None:
    async with sharing(working=("w",)) as (w,):
        caller = Process(w._coordinator, "caller", asks=True)
        async with caller.active():
            w.is_cut = True  # the worker does not hear of the caller
            caller.tells(RUN)
            await asyncio.sleep(1)
            w.is_cut = False
            await asyncio.sleep(5)
            w.works("a")
            await asyncio.sleep(1)
            assert len(caller.seen.of("a")) == 3


@virtual
async def test_two_submitters_see_the_events_of_each_other() -> None:
    async with sharing("one", "other") as (one, other):
        one.works("a")
        other.works("b")
        for each in (one, other):
            each.tells(done("a"))
            each.tells(done("b"))
        await asyncio.sleep(1)
        for each in (one, other):
            assert (each.seen.state.run_stats.done, each.seen.state.turn_usage) == (2, Usage(20, 10, 2))
        assert one.seen.state.turns == {"": 1, "other": 1}
        assert other.seen.state.turns == {"": 1, "one": 1}


@virtual
async def test_agents_of_a_later_submitter_without_a_view_are_seen_by_the_others() -> None:
    async with sharing("one") as (one,):
        silent = Process(one._coordinator, "silent", asks=True, has_view=False)
        async with silent.active():
            silent.tells(RUN)
            silent.works("a")
            await asyncio.sleep(5)
            assert one.seen.of("a") == [
                WorkerEvent("silent", event) for event in (AgentStarted("a", 0), TurnStarted("a", 1), turn("a"))
            ]


@virtual
async def test_a_later_submitter_sees_agents_that_were_already_running() -> None:
    async with sharing(working=("w",)) as (w,):
        w.runs(AgentStarted("a", 7))
        await asyncio.sleep(10)
        late = Process(w._coordinator, "late", asks=True)
        async with late.active():
            await asyncio.sleep(10)
            assert late.seen.events == []  # nothing is seen of a run that has not begun here
            late.tells(RUN)
            await asyncio.sleep(1)
            assert late.seen.of("a") == [WorkerEvent("w", AgentStarted("a", 7))]
            assert len(late.seen.state.stages[""].agents) == 1


@virtual
async def test_an_agent_that_moves_to_another_worker_leaves_the_first_and_finishes_once() -> None:
    async with sharing("caller", working=("v", "w")) as (caller, v, w):
        v.runs(AgentStarted("a", 0))
        v.runs(TurnStarted("a", 1))
        await asyncio.sleep(1)
        w.runs(AgentStarted("a", 0))
        await asyncio.sleep(1)
        v.runs(TurnStarted("a", 2))  # it does not know yet
        v.runs(turn("a"))
        v.runs(AgentReassigned("a"))
        await asyncio.sleep(1)
        assert caller.seen.of("a") == [
            WorkerEvent("v", AgentStarted("a", 0)),
            WorkerEvent("v", TurnStarted("a", 1)),
            WorkerEvent("v", AgentReassigned("a")),
            WorkerEvent("w", AgentStarted("a", 0)),
            WorkerEvent("v", turn("a")),
        ]
        w.runs(done("a"))
        caller.tells(done("a"))
        await asyncio.sleep(1)
        v.runs(AgentStarted("a", 0))  # told late, by one that was cut off
        await asyncio.sleep(1)
        assert caller.seen.of("a")[5:] == [done("a")]
        assert (caller.seen.state.run_stats.done, len(caller.seen.state.stages[""].agents)) == (1, 0)


@virtual
async def test_late_events_of_a_disconnected_worker_do_not_take_an_agent_back() -> None:
    async with sharing("caller", working=("v", "w")) as (caller, v, w):
        for each in (v, w):
            each.runs(LoadSampled("vllm", 0, 8))
        await asyncio.sleep(1)
        v.is_slow = True
        v.runs(AgentStarted("a", 0))
        await asyncio.sleep(5)
        w.runs(AgentStarted("a", 0))
        await asyncio.sleep(1)
        v.is_slow = False
        v.runs(AgentReassigned("a"))
        await asyncio.sleep(1)
        assert caller.seen.of("a") == [WorkerEvent("w", AgentStarted("a", 0))]


@virtual
async def test_events_of_a_lost_agent_come_from_the_worker_that_has_it() -> None:
    async with sharing("caller", working=("w",)) as (caller, w):
        caller.runs(AgentStarted("a", 0))
        await asyncio.sleep(1)
        w.runs(AgentStarted("a", 0))
        await asyncio.sleep(1)
        caller.runs(AgentReassigned("a"))
        assert caller.seen.of("a") == [
            AgentStarted("a", 0),
            AgentReassigned("a"),
            WorkerEvent("w", AgentStarted("a", 0)),
        ]
        assert caller.seen.times[-2] == caller.seen.times[-1]


@pytest.mark.parametrize("clock_error", [-3600.0, 0.0, 3600.0])
def test_relayed_events_have_correct_times_whatever_the_remote_clock(clock_error: float) -> None:
    async def test() -> None:
        async with sharing("caller", working=("w",), clock_error=clock_error) as (caller, w):
            began = now()
            for event in (AgentStarted("a", 0), TurnStarted("a", 1), turn("a")):
                w.runs(event)
                await asyncio.sleep(0.4)
            w.runs(done("a"))
            caller.tells(done("a"))
            await asyncio.sleep(1)
            assert caller.seen.of("a")[-1] == done("a")
            times = [round(at - began, 1) for at in caller.seen.times[-4:]]
            assert times == [0.0, 0.4, 0.8, 0.8]

    run_virtual(test())


@virtual
async def test_a_worker_that_leaves_or_is_silent_has_no_running_agents() -> None:
    async with sharing("caller", working=("v",)) as (caller, v):
        w = Process(v._coordinator, "w", asks=False)
        async with w.active():
            for each in (v, w):
                each.runs(AgentStarted(each.name, 0))
                each.runs(LoadSampled("vllm", 3, 8, kv_usage=0.5))
                each.runs(Paused(1.0, "busy"))
            await asyncio.sleep(1)
            state = caller.seen.state
            assert state.backends == {"vllm": LoadSampled("vllm", 6, 16, kv_usage=0.5)}
            assert sorted(state.paused.split("; ")) == ["v: busy", "w: busy"]
        await asyncio.sleep(1)
        assert caller.seen.of("w")[-1] == WorkerEvent("w", AgentReassigned("w"))
        assert (state.backends["vllm"].inflight, state.paused) == (3, "v: busy")
        v.is_cut = True
        await asyncio.sleep(30)
        assert caller.seen.of("v")[-1] == WorkerEvent("v", AgentReassigned("v"))
        assert (state.backends["vllm"].limit, state.paused) == (0, "")
        v.is_cut = False
        v.runs(Resumed())
        await asyncio.sleep(1)
        assert len(state.stages[""].agents) == 1  # it is back, with what it still has


@virtual
async def test_results_do_not_wait_for_a_worker_that_is_gone() -> None:
    async with sharing("caller", working=("w",)) as (caller, w):
        w.runs(AgentStarted("a", 0))
        await asyncio.sleep(1)
        w.is_cut = True
        caller.tells(done("a"))
        await asyncio.sleep(10)
        assert caller.seen.of("a")[-1] == done("a")


@virtual
async def test_closing_waits_a_limited_time_for_the_events_of_the_last_results() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    caller, w = Process(coordinator, "caller", asks=True), Process(coordinator, "w", asks=False)
    async with w.active():
        async with caller.active():
            caller.tells(RUN)
            await asyncio.sleep(1)
            w.works("a")
            await asyncio.sleep(1)
            w.works("b")
            caller.tells(done("b"))
        assert (caller.seen.of("b")[-1], caller.seen.state.turn_usage) == (done("b"), Usage(20, 10, 2))
        assert caller.seen.of("a")[-1] == WorkerEvent("w", AgentReassigned("a"))  # somebody else has asked for it
        async with caller.active():
            caller.tells(RUN)
            w.works("c")
            await asyncio.sleep(1)
            caller.tells(done("d"))
            began = now()
        assert caller.seen.of("d") == [done("d")]
        assert now() - began == pytest.approx(2.0, abs=0.3)


@virtual
async def test_a_finished_agent_of_another_submitter_is_not_shown_as_running() -> None:
    async with sharing("caller", working=("w",)) as (caller, w):
        w.works("theirs")
        caller.works("theirs too")
        await asyncio.sleep(11)
        assert (len(caller.seen.state.stages[""].agents), caller.seen.state.run_stats.done) == (0, 0)
        assert caller.seen.of("theirs too")[-1] == AgentReassigned("theirs too")
        caller.tells(done("theirs"))  # it was ours, and read slowly
        assert caller.seen.state.run_stats.done == 1


@virtual
async def test_tool_counts_of_all_workers_are_added_at_the_end() -> None:
    async with sharing("caller", working=("v", "w")) as (caller, v, w):
        for number, each in enumerate((v, w), 1):
            each.relay.publisher.account = accounts(10 * number)
            for _ in range(3):
                each.runs(CallsEnded("a", 1, (CallRecord("look", "", True, 1.0),), 1.0))
                await asyncio.sleep(1)
        caller.tells(ToolsUsed((ToolUse("look", 5),)))
        assert caller.seen.state.tools.total.calls == 6
        seen = caller.seen
    message = [event for event in seen.events if isinstance(getattr(event, "event", event), ToolsUsed)]
    assert message == [
        ToolsUsed((ToolUse("look", 5),)),
        WorkerEvent("v", ToolsUsed((ToolUse("look", 30),))),
        WorkerEvent("w", ToolsUsed((ToolUse("look", 60),))),
    ]
    assert sum(tool.requested for tool in seen.state.tools.reports) == 95


@virtual
async def test_run_level_events_are_emitted_only_by_the_submitter() -> None:
    async with sharing("caller", working=("w",)) as (caller, w):
        before = len(caller.seen.events)
        for event in (RUN, SchedulingReported(Scheduling()), BudgetReported(1, 2.0)):
            w.runs(event)
        w.runs(Notice("loading"))
        await asyncio.sleep(1)
        assert caller.seen.events[before:] == [WorkerEvent("w", Notice("loading"))]
        assert caller.seen.state.notice == "w: loading"


@virtual
async def test_a_submitter_that_does_not_work_is_left_out_of_backend_load() -> None:
    async with sharing("caller", working=("w",)) as (caller, w):
        caller.tells(LoadSampled("vllm", 0, 64))
        w.runs(LoadSampled("vllm", 3, 8))
        await asyncio.sleep(1)
        assert caller.seen.state.backends == {"vllm": LoadSampled("vllm", 3, 8)}


@virtual
async def test_an_unreachable_coordinator_loses_events_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with sharing("caller", working=("w",)) as (caller, w):
        w.is_cut = True
        with caplog.at_level(logging.WARNING, "batch_agent"):
            for number in range(3):
                w.runs(TurnStarted("a", number))
                await asyncio.sleep(1)
        assert [record.getMessage() for record in caplog.records] == [
            "The coordinator cannot be reached. Meanwhile, other processes do not see the events of this one."
        ]
        for number in range(10_010):
            w.runs(TurnStarted("a", number))
        w.is_cut = False
        await asyncio.sleep(1)
        assert caller.seen.state.notice == "w: 13 events of this worker were lost: its counts are too low."
        assert sum(len(list(message.events)) for message in w.sent[-6:]) == 10_001
