"""Inputs beyond the window of a real server, with a real checkpoint; the process may be killed between the parts."""

import asyncio
import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.forked_programs import Programs

from batch_agent import AgentResult, BatchAgent, ErrorKind
from batch_agent.sim import Script, SimConfig, SimServer

WINDOW = 1200
RUN = """
import asyncio, sys
from batch_agent import BatchAgent, Tool

TEXTS = [f"# Document {n}\\n\\n" + f"It has number {n} and some more words to say.\\n\\n" * 400 for n in range(2)]
SHORT = ["one short text", "another short text"]

@Tool.define
async def look(key: str) -> str:
    await asyncio.sleep(0.005)
    print("called", flush=True)
    return f"about {key}"

def main(folder, url):
    return BatchAgent.run(
        task="Look this up: {it}", inputs=[*TEXTS, *SHORT], tools=[look], output_schema=dict[str, int], backend=url,
        checkpoint_dir=folder, max_inflight=2, oversized="chunk",
    )

if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def sim() -> Iterator[SimServer]:
    with SimServer(SimConfig(step_base_ms=3, max_model_len=WINDOW), Script(answer_tokens=4)) as server:
        yield server


async def test_the_server_never_sees_a_prompt_that_does_not_fit(sim: SimServer) -> None:
    inputs = ["short", "word " * 1_500, "汉字" * 3_000, "x" * 3_000, "x" * 40_000]
    results = await BatchAgent.run(task="{it}", inputs=inputs, backend=sim.url)
    assert [result.ok for result in results] == [True, False, False, True, False]
    errors = [result.error for result in results if result.error]
    assert {error.kind for error in errors} == {ErrorKind.CONTEXT_OVERFLOW}
    assert all("the context window has 1,200" in error.message for error in errors)  # ours, not the server's


async def test_any_kind_of_long_text_is_answered_in_chunks(sim: SimServer) -> None:
    inputs = ["short", "word " * 1_500, "汉字" * 3_000, "x" * 20_000, "def f():\n    return 1\n\n\n" * 400]
    results = await BatchAgent.run(
        task="Read: {it}",
        inputs=inputs,
        backend=sim.url,
        oversized="chunk",
        max_tokens=100,
        output_schema=dict[str, int],
    )
    assert [str(result.error) for result in results if not result.ok] == []
    assert results[0].turns == 1
    assert all(result.turns >= 3 for result in results[1:])


def rows(folder: Path) -> dict[str, list[int]]:
    """Where the facts of each agent stand in the checkpoint."""
    found: dict[str, list[int]] = {}
    with sqlite3.connect(f"file:{folder}/run.sqlite3?mode=ro", uri=True) as db:
        for key, seq in db.execute("SELECT key, seq FROM facts WHERE kind = 'replied' ORDER BY seq"):
            found.setdefault(key, []).append(seq)
    db.close()
    return found


def run_and_kill(programs: Programs, said: Path, folder: Path, url: str, calls: int) -> None:
    program = programs.start(RUN, str(folder), url, stdout=said)
    with said.open() as lines:
        for number, _ in enumerate(lines, 1):
            if number == calls:
                program.send_signal(signal.SIGKILL)
    assert program.wait() == -signal.SIGKILL


@pytest.mark.slow
def test_chunks_answered_before_a_kill_are_not_requested_again(
    sim: SimServer, tmp_path: Path, programs: Programs
) -> None:
    said, folder = tmp_path / "said", tmp_path / "checkpoint"
    os.mkfifo(said)
    done: dict[str, list[int]] = {}
    for calls in (3, 4, 5):
        run_and_kill(programs, said, folder, sim.url, calls)
        now = rows(folder)
        assert all(now[key] == places for key, places in done.items())
        done = {key: places for key, places in now.items() if len(places) == 2}
    assert any(".part" in key for key in done)

    namespace: dict[str, Any] = {"__name__": "kill_test"}
    exec(RUN, namespace)
    results: list[AgentResult] = asyncio.run(namespace["main"](folder, sim.url))
    assert [str(result.error) for result in results if not result.ok] == []
    after = rows(folder)
    assert all(after[key] == places for key, places in done.items())
    for result in results:
        agents = [places for key, places in after.items() if key.partition(".")[0] == result.key]
        assert result.turns == sum(map(len, agents)) == 2 * len(agents)
        assert len(result.tool_calls) == len(agents)
    assert [result.turns > 2 for result in results] == [True, True, False, False]

    again: list[AgentResult] = asyncio.run(namespace["main"](folder, sim.url))
    assert rows(folder) == after
    assert [(r.output, r.turns, r.usage, r.tool_calls) for r in again] == [
        (r.output, r.turns, r.usage, r.tool_calls) for r in results
    ]
