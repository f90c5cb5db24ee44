"""Copy of a run on a real Redis server in a checkpoint directory."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.support.redis_server import RedisServer, redis_server

from batch_agent import BackendError, BatchAgent, StoreError, Tool, Usage
from batch_agent.cluster.redis.redis_coordinator import RedisCoordinator
from batch_agent.core.requests import Request
from batch_agent.store.reader import CheckpointReader
from batch_agent.testing import ScriptedBackend, by_turn, call, say

__all__ = ["redis_server"]


@pytest.fixture
def name() -> str:
    return f"run-{uuid4().hex}"


def asking(number: int, **options: Any) -> dict[str, Any]:
    return {"task": "{it}", "inputs": [{"it": str(n)} for n in range(number)], **options}


@pytest.mark.parametrize("number", [0, 1, 7])
async def test_a_run_of_any_number_of_inputs_is_copied(
    redis_server: RedisServer, name: str, tmp_path: Path, number: int
) -> None:
    backend = ScriptedBackend(lambda request: say("done"))
    await BatchAgent.run(backend=backend, store=redis_server.url, run_id=name, **asking(number))
    assert await BatchAgent.copy_run(redis_server.url, name, tmp_path) is False
    with CheckpointReader(tmp_path) as reader:
        assert [stored.value["it"] for stored in reader.inputs()] == [str(n) for n in range(number)]
    again = await BatchAgent.run(backend=backend, checkpoint_dir=tmp_path, **asking(number))
    assert [result.output for result in again] == ["done"] * number
    assert len(backend.requests) == number


async def test_a_copied_run_is_resumed_without_the_server_from_its_last_facts(
    redis_server: RedisServer, name: str, tmp_path: Path
) -> None:
    made: list[str] = []

    @Tool.define(effect="write")
    async def put(line: str) -> str:
        """Put it there."""
        made.append(line)
        return "put"

    stuck = asyncio.Event()
    turns = by_turn(call("put", line="x"), say("done"))

    async def answer(request: Request) -> Any:
        if request.turn and "0" not in str(getattr(request.messages[0], "text", "")):
            stuck.set()
            await asyncio.Event().wait()
        return turns(request)

    options = asking(3, tools=[put])
    stream = BatchAgent.stream(
        backend=ScriptedBackend(answer), store=redis_server.url, run_id=name, max_inflight=2, **options
    )
    async with stream:
        await anext(stream)
        await stuck.wait()
    before = len(made)
    await BatchAgent.copy_run(redis_server.url, name, tmp_path)
    results = await BatchAgent.run(backend=ScriptedBackend(turns), checkpoint_dir=tmp_path, **options)
    assert [result.output for result in results] == ["done"] * 3
    assert (len(made), before < 3 or len(made) == 3) == (3, True)


async def test_a_copy_counts_what_was_paid_for_replies_that_are_gone(
    redis_server: RedisServer, name: str, tmp_path: Path
) -> None:
    failing = ScriptedBackend(lambda request: say("", Usage(100, 0, 1)))
    shared: dict[str, Any] = {"store": redis_server.url, "run_id": name, "max_retries": 0}
    await BatchAgent.run(backend=failing, output_schema=int, **asking(2), **shared)
    await BatchAgent.run(
        backend=ScriptedBackend(lambda request: say("7", Usage(10, 0, 1))), output_schema=int, **asking(2), **shared
    )
    coordinator = RedisCoordinator(redis_server.url, name)
    await coordinator.open()
    spent = await coordinator.facts.spent()
    await coordinator.aclose()
    await BatchAgent.copy_run(redis_server.url, name, tmp_path)
    with CheckpointReader(tmp_path) as reader:
        assert reader.usage() == spent
    assert spent.input >= 220


async def test_a_run_that_never_got_a_plan_is_not_called_unknown(
    redis_server: RedisServer, name: str, tmp_path: Path
) -> None:
    with pytest.raises(BackendError):
        await BatchAgent.run(backend="http://127.0.0.1:9", store=redis_server.url, run_id=name, **asking(1))
    with pytest.raises(StoreError, match=f"The run '{name}' at .* has no plan: it is being started, or it ended"):
        await BatchAgent.copy_run(redis_server.url, name, tmp_path / "new")


async def test_a_directory_with_a_checkpoint_and_an_unknown_run_are_refused_and_leave_nothing_behind(
    redis_server: RedisServer, name: str, tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match="There is no run"):
        await BatchAgent.copy_run(redis_server.url, name, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    backend = ScriptedBackend(lambda request: say("done"))
    await BatchAgent.run(backend=backend, store=redis_server.url, run_id=name, **asking(1))
    await BatchAgent.copy_run(redis_server.url, name, tmp_path)
    with pytest.raises(StoreError, match=r"There is a checkpoint in .* already"):
        await BatchAgent.copy_run(redis_server.url, name, tmp_path)
