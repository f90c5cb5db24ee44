"""A real vLLM is killed in the middle of a batch, and another engine answers the rest."""

import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from tests.live.engines import vllm_server
from tests.live.forced_calls import NAME, ForcedCalls, call_of

from batch_agent import AgentResult, BatchAgent, Results, Tool, ToolContext

SHIPS = [{"ship": f"Vessel {number}"} for number in range(12)]
CALL = call_of("register", "name", NAME)
ANSWERS_BEFORE_THE_KILL = 3


class DoomedServer:
    """A vLLM that serves the model `doomed`, until it is killed."""

    def __init__(self, url: str, log: Path) -> None:
        self.url = url
        self._log = log
        self._answers = 0
        self.is_dead = False

    def count(self, result: AgentResult) -> None:
        """Kills it after some answers."""
        self._answers += 1
        if self._answers == ANSWERS_BEFORE_THE_KILL:
            for process in set(re.findall(r"\((?:APIServer|EngineCore) pid=(\d+)\)", self._log.read_text())):
                os.kill(int(process), signal.SIGKILL)
            self.is_dead = True


@pytest.fixture
def doomed(tmp_path: Path) -> Iterator[DoomedServer]:
    with vllm_server(tmp_path, "--served-model-name", "doomed") as url:
        yield DoomedServer(url, tmp_path / "vllm.log")


@pytest.mark.timeout(900)  # it may start two engines
async def test_what_a_killed_vllm_leaves_is_answered_by_another_one(
    doomed: DoomedServer, vllm_url: str, tmp_path: Path
) -> None:
    registered: list[str] = []

    @Tool.define(effect="write")
    async def register(name: str, context: ToolContext) -> str:
        """Registers a ship."""
        registered.append(context.input["ship"])
        return f"{context.input['ship']} is registered."

    options: dict[str, Any] = {
        "task": "Register {ship}, and say what it is.",
        "inputs": SHIPS,
        "tools": [register],
        "max_tokens": 64,
        "max_inflight": 3,
        "max_retries": 1,
        "checkpoint_dir": tmp_path / "run",
    }
    async with (
        aclosing(await ForcedCalls.open(doomed.url, "vllm", CALL, model="doomed")) as first,
        aclosing(await ForcedCalls.open(vllm_url, "vllm", CALL)) as second,
    ):
        results: Results[str] = await BatchAgent.run(
            backend=first, fallback=[second], on_result=doomed.count, out=tmp_path / "out.jsonl", **options
        )
    assert doomed.is_dead
    answered = Counter(result.model for result in results)
    print(dict(answered))
    assert [(result.index, result.error) for result in results] == [(n, None) for n in range(len(SHIPS))]
    assert answered["doomed"] >= ANSWERS_BEFORE_THE_KILL
    assert answered["smollm2"] >= len(SHIPS) // 2
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == len(SHIPS)
    # An agent that had registered its ship went on with its conversation: no call was made twice.
    assert sorted(registered) == sorted(row["ship"] for row in SHIPS)

    again: Results[str] = await BatchAgent.run(backend=doomed.url, model="doomed", fallback=[vllm_url], **options)
    assert [(each.output, each.model) for each in again] == [(each.output, each.model) for each in results]
    assert len(registered) == len(SHIPS)


@pytest.mark.nightly
async def test_what_a_killed_vllm_leaves_is_answered_by_the_embedded_model(doomed: DoomedServer) -> None:
    results: Results[str] = await BatchAgent.run(
        task="Describe {ship} in one sentence.",
        inputs=SHIPS,
        samples=2,
        backend=doomed.url,
        fallback=["local://"],
        max_tokens=12,
        max_inflight=3,
        max_retries=1,
        on_result=doomed.count,
    )
    assert doomed.is_dead
    assert [(each.index, each.sample, each.error) for each in results] == [
        (n, sample, None) for n in range(len(SHIPS)) for sample in range(2)
    ]
    models = Counter(each.model for each in results)
    print(dict(models))
    assert models["doomed"] >= ANSWERS_BEFORE_THE_KILL
    assert len(models) == 2
