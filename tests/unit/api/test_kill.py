"""The process may be killed anywhere: the next run loses nothing, and repeats nothing that was finished."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.forked_programs import Programs

from batch_agent import AgentResult
from batch_agent.core.events import AgentFinished, Event
from batch_agent.sim import Script, SimConfig, SimServer

AGENTS = 40
RUN = f"""
import asyncio, os, signal, sys
from batch_agent import BatchAgent, Tool
from batch_agent.core.events import AgentFinished

@Tool.define
async def look(key: str) -> str:
    await asyncio.sleep(0.005)
    return f"about {{key}}"

class PrintUntilKilled:
    def __init__(self, agents):
        self.left = agents

    def emit(self, event):
        if isinstance(event, AgentFinished):
            print(event.result.index, int(event.resumed), flush=True)
            self.left -= not event.resumed
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

def main(events, folder, url):
    return BatchAgent.run(
        task="Look {{it}} up", inputs=[f"thing {{n}}" for n in range({AGENTS})],
        tools=[look], output_schema=dict[str, int], backend=url, checkpoint_dir=folder, max_inflight=4, events=events,
    )

if __name__ == "__main__":
    asyncio.run(main(PrintUntilKilled(int(sys.argv[1])), *sys.argv[2:]))
"""


@pytest.fixture(scope="module")
def slow_sim() -> Iterator[SimServer]:
    with SimServer(SimConfig(step_base_ms=3), Script(answer_tokens=4)) as server:
        yield server


def run_and_kill(programs: Programs, folder: Path, url: str, after: int) -> dict[int, bool]:
    """A run that is killed when it has finished so many agents itself: its agents, and whether they were resumed."""
    program = programs.start(RUN, str(after), str(folder), url)
    assert program.wait() == -signal.SIGKILL
    lines = [line.split() for line in program.stdout.read_text().splitlines()]
    return {int(index): resumed == "1" for index, resumed in lines}


def test_a_run_killed_repeatedly_loses_no_result(slow_sim: SimServer, tmp_path: Path, programs: Programs) -> None:
    folder = tmp_path / "checkpoint"
    done: set[int] = set()
    for after in (1, 3, 8, 2, 12):
        finished = run_and_kill(programs, folder, slow_sim.url, after)
        assert not done & {index for index in finished if not finished[index]}
        done |= finished.keys()
    assert 26 <= len(done) < AGENTS

    resumed: dict[int, bool] = {}

    class Log:
        def emit(self, event: Event) -> None:
            if isinstance(event, AgentFinished):
                resumed[event.result.index] = event.resumed

    namespace: dict[str, object] = {"__name__": "kill_test"}
    exec(RUN, namespace)
    results: list[AgentResult] = asyncio.run(namespace["main"](Log(), folder, slow_sim.url))  # type: ignore[operator]
    assert [result.index for result in results] == list(range(AGENTS))
    assert [str(result.error) for result in results if not result.ok] == []
    assert all(result.turns == 2 and len(result.tool_calls) == 1 for result in results)
    assert all(resumed[index] for index in done)
