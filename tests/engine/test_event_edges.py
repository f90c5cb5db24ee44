"""Events of runs that are cancelled, left, broken off, killed, resumed and shared: the story of each agent is sound."""

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine_harness import asked
from tests.support.event_list import EventList
from tests.support.forked_programs import Programs
from tests.support.shared_run_workers import LONG, Link, answers, calling, working

from batch_agent import BackendError, BatchAgent, ErrorKind, Flow, RunStopped, Tool
from batch_agent.core.events import (
    AgentFinished,
    AgentReassigned,
    AgentStarted,
    BudgetReported,
    CallsEnded,
    CallsStarted,
    Event,
    RequestRetried,
    RunStarted,
    SchedulingReported,
    StageEvent,
    ToolsUsed,
    TurnEnded,
    TurnStarted,
    WorkerEvent,
)
from batch_agent.core.messages import ToolResults
from batch_agent.core.requests import Reply, Request
from batch_agent.observe.event_codec import read_line
from batch_agent.observe.event_log import FILE
from batch_agent.observe.run_stats import RunStats
from batch_agent.testing import ScriptedBackend, call, run_virtual, say

OF_AGENT = AgentStarted | TurnStarted | TurnEnded | CallsStarted | CallsEnded | RequestRetried | AgentFinished
MAY_FOLLOW = {
    "": {"AgentStarted", "AgentFinished"},  # finished at once: resumed, or refused before it was sent
    "AgentStarted": {"TurnStarted", "CallsStarted", "AgentFinished"},
    "TurnStarted": {"TurnEnded", "RequestRetried", "AgentFinished"},
    "RequestRetried": {"TurnStarted", "RequestRetried", "AgentFinished"},
    "TurnEnded": {"CallsStarted", "TurnStarted", "AgentFinished"},
    "CallsStarted": {"CallsEnded", "AgentFinished"},
    "CallsEnded": {"TurnStarted", "AgentFinished"},
    "AgentFinished": set[str](),
}


def stories(events: Iterable[Event]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for event in events:
        if isinstance(event, OF_AGENT):
            key = event.result.key if isinstance(event, AgentFinished) else event.key
            found.setdefault(key, []).append(type(event).__name__)
    return found


def check(events: Sequence[Event], *, ended: bool = True) -> None:
    """The run begins once and, unless it was killed, ends once; each agent does what can follow what it did before."""
    counts = Counter(type(event).__name__ for event in events)
    assert counts["RunStarted"] == 1
    assert counts["SchedulingReported"] == ended
    first = next(at for at, event in enumerate(events) if isinstance(event, RunStarted))
    assert not any(isinstance(event, OF_AGENT) for event in events[:first])
    for story in stories(events).values():
        for before, after in zip(["", *story], story, strict=False):
            assert after in MAY_FOLLOW[before], story


def finished(events: Iterable[Event]) -> list[AgentFinished]:
    return [event for event in events if isinstance(event, AgentFinished)]


class Ending:
    """Half of the agents answer; then the run ends, in one way or another."""

    def __init__(self) -> None:
        self.is_over = asyncio.Event()
        self.is_mended = False
        self.refuses = False

    async def script(self, request: Request) -> Reply:
        if not self.is_mended and int(asked(request).split()[-1]) >= 4:
            if self.refuses:
                raise BackendError(ErrorKind.AUTH, "not you")
            self.is_over.set()
            await asyncio.Event().wait()
        has_looked = any(isinstance(each, ToolResults) for each in request.messages)
        return say("done") if has_looked else call("look")

    def inputs(self) -> Iterator[str]:
        return (f"input {number}" for number in range(8))


@Tool.define
async def look() -> str:
    return "seen"


def options(ending: Ending, folder: Path, log: EventList) -> dict[str, Any]:
    return {
        "task": "{it}",
        "inputs": ending.inputs(),
        "tools": [look],
        "backend": ScriptedBackend(ending.script),
        "checkpoint_dir": folder,
        "events": log,
        "max_total_tokens": 10**9,
        "max_tokens": 100,
    }


async def cancel(ending: Ending, folder: Path, log: EventList) -> None:
    task = asyncio.get_running_loop().create_task(BatchAgent.run(**options(ending, folder, log)))
    await ending.is_over.wait()
    while len(finished(log.events)) < 4:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def leave(ending: Ending, folder: Path, log: EventList) -> None:
    done = 0
    async with BatchAgent.stream(**options(ending, folder, log)) as stream:
        async for _ in stream:
            done += 1
            if done == 4:
                break


async def refuse(ending: Ending, folder: Path, log: EventList) -> None:
    ending.refuses = True
    results = await BatchAgent.run(**options(ending, folder, log))
    assert [result.ok for result in results] == [True] * 4 + [False] * 4


async def break_off(ending: Ending, folder: Path, log: EventList) -> None:
    def inputs() -> Iterator[str]:
        yield from (f"input {number}" for number in range(4))
        raise ValueError("no more")

    with pytest.raises(RunStopped):
        await BatchAgent.run(**{**options(ending, folder, log), "inputs": inputs()})


@pytest.mark.slow
@pytest.mark.parametrize("end", [cancel, leave, refuse, break_off])
async def test_events_are_consistent_at_the_end_and_after_a_resume(
    tmp_path: Path, end: Callable[[Ending, Path, EventList], Awaitable[None]]
) -> None:
    ending, log = Ending(), EventList()
    await end(ending, tmp_path, log)
    check(log.events)
    before = {event.result.key for event in finished(log.events) if event.result.ok}
    assert len(before) == 4
    assert isinstance(log.events[-1], BudgetReported | ToolsUsed | SchedulingReported)

    ending.is_mended, again = True, EventList()
    results = await BatchAgent.run(**options(ending, tmp_path, again))
    check(again.events)
    assert {event.result.key for event in finished(again.events) if event.resumed} == before
    assert len(finished(again.events)) == len(results) == 8
    stats = RunStats()
    for event in again.events:
        stats.emit(event)
    assert (stats.done, stats.resumed, stats.failed) == (8, 4, 0)


PROGRAM = """
import asyncio, sys
from batch_agent import BatchAgent
from batch_agent.testing import ScriptedBackend, say

async def script(request):
    await asyncio.sleep(0.3 * int(request.messages[0].text.split()[-1]))
    return say("done")

asyncio.run(BatchAgent.run(
    task="{it}", inputs=[f"input {n}" for n in range(60)], backend=ScriptedBackend(script),
    checkpoint_dir=sys.argv[1], progress=False,
))
"""


@pytest.mark.slow
async def test_the_event_log_of_a_killed_run_is_consistent_and_a_resume_appends_to_it(tmp_path: Path) -> None:
    folder, said = tmp_path / "kept", tmp_path / "said"
    with Programs() as programs:
        program = programs.start(PROGRAM, str(folder), stdout=said)
        while not ((folder / FILE).exists() and b"AgentFinished" in (folder / FILE).read_bytes()):
            await asyncio.sleep(0.01)
        program.send_signal(signal.SIGKILL)
        assert program.wait() == -signal.SIGKILL
    whole = [line for line in (folder / FILE).read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    events = [read_line(line)[1] for line in whole[1:]]
    check(events, ended=False)
    log = EventList()
    backend = ScriptedBackend(lambda request: say("done"))
    inputs = [f"input {number}" for number in range(60)]
    await BatchAgent.run(task="{it}", inputs=inputs, backend=backend, checkpoint_dir=folder, events=log)
    check(log.events)
    resumed = {event.result.key for event in finished(log.events) if event.resumed}
    assert {event.result.key for event in finished(events)} <= resumed
    assert len(finished(log.events)) == 60
    assert len(backend.requests) == 60 - len(resumed)


def test_every_agent_of_a_shared_run_has_one_finished_event_at_the_submitter() -> None:
    async def main() -> None:
        link, log = Link(), EventList()
        backend = ScriptedBackend(lambda request: say("done"), seconds=2.0, inflight=2)
        other = ScriptedBackend(lambda request: say("done"), seconds=1.0, inflight=2)
        inputs = [f"input {number}" for number in range(20)]
        async with asyncio.TaskGroup() as group:
            asked_for = group.create_task(answers(calling(link, inputs, backend=backend, events=log, lease=LONG)))
            group.create_task(working(link.another(), backend=other))
        assert len(asked_for.result()) == 20
        assert backend.requests
        assert other.requests
        told = [event.event if isinstance(event, WorkerEvent) else event for event in log.events]
        assert Counter(event.result.index for event in finished(told)) == Counter(range(20))
        for story in stories(told).values():
            assert story.count("AgentFinished") == 1
            assert story[-1] == "AgentFinished"
        assert not any(isinstance(event, AgentReassigned) for event in told)

    run_virtual(main())


def test_each_stage_of_a_stopped_flow_has_a_consistent_event_history() -> None:
    def script(request: Request) -> Reply | BackendError:
        return BackendError(ErrorKind.BAD_REQUEST, "no") if "second" in asked(request) else say("done")

    log = EventList()
    flow = Flow([f"input {n}" for n in range(4)], backend=ScriptedBackend(script))
    flow = flow.map("first", "{it}").map("other", "second {first} {it}", on_failure="stop")
    with pytest.raises(RunStopped):
        run_virtual(flow.run(events=log))
    for stage in ("first", "other"):
        check([event.event for event in log.events if isinstance(event, StageEvent) and event.stage == stage])
