"""A resumed run takes its jobs in groups, so that facts are read together; nothing else about the jobs changes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from batch_agent import BatchAgent, RunStopped
from batch_agent.core.agent_config import Job
from batch_agent.core.errors import ErrorKind
from batch_agent.engine.job_source import GroupedSource, InputSource, JobSource
from batch_agent.store.sqlite import SqliteStore
from batch_agent.testing import ScriptedBackend, say


class ReadLog:
    """Records which facts are read together."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []

    async def read(self, keys: Sequence[str]) -> None:
        self.groups.append(list(keys))


def job(index: int, value: Any, sample: int = 0) -> Job:
    return Job(index, f"k{index}", value, str(value))


async def jobs_of(source: GroupedSource) -> list[int]:
    found = []
    while (taken := await source.take()) is not None:
        found.append(taken.index)
    return found


async def test_each_job_is_taken_once_and_in_order_and_added_ones_follow() -> None:
    log, inputs = ReadLog(), InputSource(JobSource(list(range(150))), job)
    source = GroupedSource(inputs, log.read)
    assert await jobs_of(source) == list(range(150))
    assert [len(group) for group in log.groups] == [64, 64, 22]
    inputs.add([150, 151])
    assert source.total == 152
    assert await jobs_of(source) == [150, 151]
    assert await source.take() is None


async def test_jobs_before_an_input_that_raises_are_taken_first() -> None:
    def values() -> Any:
        yield from range(70)
        raise ConnectionError("gone")

    source, found = GroupedSource(InputSource(JobSource(values()), job), ReadLog().read), []
    for _ in range(70):
        taken = await source.take()
        assert taken is not None
        found.append(taken.index)
    for _ in range(2):
        with pytest.raises(RunStopped, match="gone") as stopped:
            await source.take()
        assert stopped.value.kind is ErrorKind.INPUTS
    assert found == list(range(70))


async def test_a_resumed_run_reads_the_facts_of_its_agents_in_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    original = SqliteStore.fact_lists

    async def fact_lists(self: SqliteStore, keys: Sequence[str]) -> Any:
        read.append(len(keys))
        return await original(self, keys)

    async def run(agents: int) -> list[Any]:
        backend = ScriptedBackend(lambda request: say("yes"))
        inputs = [{"x": number} for number in range(agents)]
        results = await BatchAgent.run(task="{x}", inputs=inputs, backend=backend, checkpoint_dir=tmp_path)
        assert [result.ok for result in results] == [True] * agents
        return backend.requests

    await run(100)
    monkeypatch.setattr(SqliteStore, "fact_lists", fact_lists)
    assert len(await run(103)) == 3  # with fewer agents than inputs, the checkpoint cannot be complete
    assert read == [64, 39]
    assert await run(103) == []
