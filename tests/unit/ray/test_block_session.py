"""Blocks of rows in one process: resources are opened once, and each block has its own checkpoint."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from batch_agent import AgentResult, BackendError, BatchSpec, ErrorKind, PlanMismatch, RunStopped, StoreError, Tool
from batch_agent.cluster.memory.memory_coordinator import MemoryCoordinator
from batch_agent.ray.block_checkpoints import BlockCheckpoints
from batch_agent.ray.block_run import BlockSession, Work, run_block
from batch_agent.run.resources import RunResources
from batch_agent.run.setup import RunSetup
from batch_agent.store.memory_store import MemoryStore
from batch_agent.testing import ScriptedBackend, by_turn, call, say


class Blocks:
    """Sessions of one directory of checkpoints, which all use the same server."""

    def __init__(self, folder: Path, backend: Any) -> None:
        self.backend = backend
        self.checkpoints = BlockCheckpoints(folder, is_temporary=False)
        self._opened: list[BlockSession] = []

    def open(self, **options: Any) -> BlockSession:
        spec = BatchSpec.of(**{"task": "{it}", "inputs": [], "backend": self.backend, "model": "m", **options})
        setup = RunSetup.validate(spec, None, input_fields=())
        session = BlockSession(setup, MemoryCoordinator(MemoryStore()))
        self._opened.append(session)
        return session

    def work(self, rows: list[Any]) -> Work[list[AgentResult]]:
        async def run(resources: RunResources) -> list[AgentResult]:
            results: list[AgentResult] = []

            async def put(result: AgentResult) -> None:
                results.append(result)

            async with self.checkpoints.open(rows) as (folder, store):
                await run_block(resources, folder.name, rows, store, put)
            return sorted(results, key=lambda result: result.index)

        return run

    def submit(self, session: BlockSession, rows: list[Any]) -> "Future[list[AgentResult]]":
        return session.submit(self.work(rows))

    def close(self) -> None:
        for session in self._opened:
            session.close()


def echo(request: Any) -> Any:
    return say(f"said {request.messages[-1].text.split()[-1]}")


@pytest.fixture
def blocks(tmp_path: Path) -> Iterator[Blocks]:
    made = Blocks(tmp_path, ScriptedBackend(echo))
    yield made
    made.close()


def rows(*names: str) -> list[Any]:
    return [{"it": name} for name in names]


def test_blocks_of_one_session_have_each_row_answered_once_also_equal_ones(blocks: Blocks) -> None:
    session = blocks.open()
    parts = [rows("a", "b", "a"), rows("a"), rows("c"), rows("a", "b", "a")]
    futures = [blocks.submit(session, part) for part in parts]
    for part, future in zip(parts, futures, strict=True):
        results = future.result(20)
        assert [result.output for result in results] == [f"said {row['it']}" for row in part]
        assert [result.index for result in results] == list(range(len(part)))


def test_the_next_session_adopts_the_checkpoint_of_a_block(blocks: Blocks) -> None:
    part = rows("a", "b", "c")
    first = blocks.open()
    blocks.submit(first, part).result(20)
    first.close()
    sent = len(blocks.backend.requests)
    assert [result.output for result in blocks.submit(blocks.open(), part).result(20)] == ["said a", "said b", "said c"]
    assert len(blocks.backend.requests) == sent == 3


def test_a_checkpoint_of_another_question_is_refused_or_run_again(blocks: Blocks) -> None:
    part = rows("a")
    blocks.submit(blocks.open(), part).result(20)
    with pytest.raises(PlanMismatch):
        blocks.submit(blocks.open(task="Now {it}"), part).result(20)
    [result] = blocks.submit(blocks.open(task="Now {it}", plan_changed="rerun"), part).result(20)
    assert result.ok


def test_tools_are_shared_by_all_blocks(tmp_path: Path) -> None:
    calls: list[str] = []

    @Tool.define(effect="read")
    def look_up(name: str) -> str:
        """Look a name up."""
        calls.append(name)
        return name

    made = Blocks(tmp_path, ScriptedBackend(by_turn(call("look_up", name="x"), say("done"))))
    session = made.open(tools=[look_up])
    futures = [made.submit(session, rows(f"a{number}", f"b{number}")) for number in range(3)]
    assert all(result.ok for future in futures for result in future.result(20))
    made.close()
    assert calls == ["x"]


def test_the_budget_is_one_for_all_blocks(tmp_path: Path) -> None:
    made = Blocks(tmp_path, ScriptedBackend(lambda _: say("ok")))
    session = made.open(max_total_tokens=4_000, max_tokens=100)
    futures = [made.submit(session, rows(*(f"{block}-{number}" for number in range(40)))) for block in range(4)]
    results = [result for future in futures for result in future.result(20)]
    made.close()
    assert len(results) == 160
    assert sum(result.usage.input + result.usage.output for result in results) <= 4_000


def test_a_session_that_cannot_open_gives_its_error_to_all_and_has_ended(tmp_path: Path) -> None:
    made = Blocks(tmp_path, "vllm://127.0.0.1:9")
    session = made.open(max_retries=0)
    futures = [made.submit(session, rows("a")) for _ in range(2)]
    for future in futures:
        with pytest.raises(BackendError):
            future.result(20)
    session.close()
    assert session.has_ended
    with pytest.raises(BackendError):
        made.submit(session, rows("b")).result(20)


def test_work_in_progress_ends_with_the_session(tmp_path: Path) -> None:
    async def wait_forever(_: Any) -> Any:
        await asyncio.Event().wait()

    made = Blocks(tmp_path, ScriptedBackend(wait_forever))
    session = made.open()
    future = made.submit(session, rows("a"))
    while not made.backend.requests and not future.done():
        asyncio.run(asyncio.sleep(0))
    session.close()
    with pytest.raises(StoreError, match="closed"):
        future.result(20)


def test_a_block_whose_backend_is_lost_is_an_error_and_others_go_on(tmp_path: Path) -> None:
    def fail_some(request: Any) -> Any:
        if "bad" in request.messages[-1].text:
            return BackendError(ErrorKind.AUTH, "the key is wrong", status=401)
        return echo(request)

    made = Blocks(tmp_path, ScriptedBackend(fail_some))
    session = made.open(max_retries=0)
    bad = made.submit(session, rows("bad"))
    with pytest.raises(RunStopped, match="the key is wrong"):
        bad.result(20)
    assert made.submit(session, rows("good")).result(20)[0].output == "said good"
    made.close()
