"""The process may be killed in any stage of a flow: the next one repeats nothing that was finished."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.forked_programs import Programs

from batch_agent.core.events import AgentFinished, Event, StageEvent
from batch_agent.flows.result import FlowResult
from batch_agent.sim import Script, SimConfig, SimServer

FLOW = """
import asyncio, sys
from batch_agent import Flow
from batch_agent.core.events import AgentFinished, StageEvent

class Print:
    def emit(self, event):
        if isinstance(event, StageEvent) and isinstance(event.event, AgentFinished):
            print(event.stage, event.event.result.key, int(event.event.resumed), flush=True)

def main(events, folder, url):
    flow = Flow([{"it": n} for n in range(8)], backend=url, checkpoint_dir=folder, max_inflight=4, context_tokens=650)
    flow = flow.map("plan", "Plan {it}").expand("part", lambda item: range(3)).map("do", "Do {part} of {plan}")
    flow = flow.reduce("all", "Join {n}", max_tokens=8).map("last", "Last: {all}")
    return flow.run(events=events)

if __name__ == "__main__":
    asyncio.run(main(Print(), *sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def slow_sim() -> Iterator[SimServer]:
    with SimServer(SimConfig(step_base_ms=3), Script(answer_tokens=30)) as server:
        yield server


def run_and_kill(programs: Programs, said: Path, folder: Path, url: str, after: int) -> dict[tuple[str, str], bool]:
    """Kills the flow after so many agents that it finished itself; says which were finished, and whether resumed."""
    finished: dict[tuple[str, str], bool] = {}
    program = programs.start(FLOW, str(folder), url, stdout=said)
    with said.open() as lines:
        for line in lines:
            stage, key, resumed = line.split()
            finished[stage, key] = resumed == "1"
            if list(finished.values()).count(False) == after:
                program.send_signal(signal.SIGKILL)
                break
    assert program.wait() == -signal.SIGKILL, program.stderr.read_text()
    return finished


@pytest.mark.slow
def test_a_flow_killed_repeatedly_repeats_no_finished_work(
    slow_sim: SimServer, tmp_path: Path, programs: Programs
) -> None:
    said, folder = tmp_path / "said", tmp_path / "checkpoint"
    os.mkfifo(said)
    done: set[tuple[str, str]] = set()
    for after in (3, 12, 15, 3):
        finished = run_and_kill(programs, said, folder, slow_sim.url, after)
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
