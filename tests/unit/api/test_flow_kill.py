"""The process may be killed in any stage of a flow: the next one repeats nothing that was finished."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.forked_programs import Programs

from batch_agent.core.events import AgentFinished, Event, StageEvent
from batch_agent.flows.result import FlowResult
from batch_agent.sim import Script, SimConfig, SimServer

FLOW = """
import asyncio, os, signal, sys
from batch_agent import Flow
from batch_agent.core.events import AgentFinished, StageEvent

class PrintUntilKilled:
    def __init__(self, agents):
        self.left = agents

    def emit(self, event):
        if isinstance(event, StageEvent) and isinstance(event.event, AgentFinished):
            print(event.stage, event.event.result.key, int(event.event.resumed), flush=True)
            self.left -= not event.event.resumed
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

def main(events, folder, url):
    flow = Flow([{"it": n} for n in range(8)], backend=url, checkpoint_dir=folder, max_inflight=4, context_tokens=650)
    flow = flow.map("plan", "Plan {it}").expand("part", lambda item: range(3)).map("do", "Do {part} of {plan}")
    flow = flow.reduce("all", "Join {n}", max_tokens=8).map("last", "Last: {all}")
    return flow.run(events=events)

if __name__ == "__main__":
    asyncio.run(main(PrintUntilKilled(int(sys.argv[1])), *sys.argv[2:]))
"""


@pytest.fixture(scope="module")
def slow_sim() -> Iterator[SimServer]:
    with SimServer(SimConfig(step_base_ms=3), Script(answer_tokens=30)) as server:
        yield server


def run_and_kill(programs: Programs, folder: Path, url: str, after: int) -> dict[tuple[str, str], bool]:
    """A flow that is killed when it has finished so many agents itself: its agents, and whether they were resumed."""
    program = programs.start(FLOW, str(after), str(folder), url)
    assert program.wait() == -signal.SIGKILL, program.stderr.read_text()
    lines = [line.split() for line in program.stdout.read_text().splitlines()]
    return {(stage, key): resumed == "1" for stage, key, resumed in lines}


@pytest.mark.slow
def test_a_flow_killed_repeatedly_repeats_no_finished_work(
    slow_sim: SimServer, tmp_path: Path, programs: Programs
) -> None:
    folder = tmp_path / "checkpoint"
    done: set[tuple[str, str]] = set()
    for after in (3, 12, 15, 3):
        finished = run_and_kill(programs, folder, slow_sim.url, after)
        assert not done & {agent for agent, resumed in finished.items() if not resumed}
        done |= finished.keys()
    assert {"plan", "do", "all"} <= {stage for stage, _ in done}

    resumed: dict[tuple[str, str], bool] = {}

    class Log:
        def emit(self, event: Event) -> None:
            if isinstance(event, StageEvent) and isinstance(event.event, AgentFinished):
                resumed[event.stage, event.event.result.key] = event.event.resumed

    namespace: dict[str, object] = {"__name__": "kill_test"}
    exec(FLOW, namespace)
    outcome: FlowResult = asyncio.run(namespace["main"](Log(), folder, slow_sim.url))  # type: ignore[operator]
    [item] = outcome.items
    assert item.ok
    assert len(outcome.stages["all"].results) > 2
    assert done <= resumed.keys()
    assert all(resumed[agent] for agent in done)
    assert [report.failed for report in outcome.stages.values()] == [0, 0, 0, 0]
