"""What others see of a checkpoint, also of one that a run is writing to."""

import asyncio
import sqlite3
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from tests.support.forked_programs import Programs

from batch_agent import AgentResult, BatchAgent, SpecError, StoreError, Usage
from batch_agent.core.facts import Replied, Started
from batch_agent.core.requests import Request
from batch_agent.plan.row_keys import row_key
from batch_agent.store.reader import CheckpointReader
from batch_agent.store.sqlite import SCHEMA_VERSION, SqliteStore
from batch_agent.testing import Answer, ScriptedBackend, say


async def run(folder: Path, inputs: Any, **options: Any) -> list[AgentResult]:
    backend = ScriptedBackend(lambda request: say("done", Usage(10, 4, 1)))
    results: list[AgentResult] = await BatchAgent.run(
        **{"task": "{it}", "inputs": inputs, "backend": backend, "checkpoint_dir": folder, **options}
    )
    return results


async def test_agents_come_in_the_order_of_their_index_with_their_facts(tmp_path: Path) -> None:
    results = await run(tmp_path, ["ä", "b", "字"])
    with CheckpointReader(tmp_path) as reader:
        assert reader.plan()["question"]["task"] == "{it}"
        assert [(agent.index, agent.key) for agent in reader.agents()] == [(r.index, r.key) for r in results]
        stories = [facts for _, facts in reader.histories()]
    assert [facts[0].input for facts in stories if isinstance(facts[0], Started)] == ["ä", "b", "字"]
    assert all(isinstance(facts[1], Replied) for facts in stories)


async def test_a_run_can_be_looked_at_while_it_writes(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def answer(request: Request) -> Answer:
        if request.messages[0].text == "last":  # type: ignore[union-attr]
            await go_on.wait()
        return say("done", Usage(10, 4, 1))

    async with BatchAgent.stream(
        task="{it}", inputs=["a", "b", "last"], backend=ScriptedBackend(answer), checkpoint_dir=tmp_path
    ) as results:
        await anext(results)
        await anext(results)
        with CheckpointReader(tmp_path) as reader:
            assert reader.usage() == Usage(20, 8, 2)
            go_on.set()
            await anext(results)
            assert reader.usage() == Usage(30, 12, 3)


async def test_facts_of_a_run_that_still_adds_some_are_found_without_its_index(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await store.open()
    await store.save_plan({"question": {"task": "{it}"}})
    facts = [(Started(number, number, f"{number}"), Replied(say(f"{number}"))) for number in range(3)]
    for key, (started, _) in zip("cab", facts, strict=True):
        store.record(key, started)
    await store.settle()
    with CheckpointReader(tmp_path) as reader:
        histories = reader.histories()
        assert next(histories)[1] == facts[0][:1]
        assert reader.facts("a") == facts[1][:1]
        for key, (_, replied) in zip("cab", facts, strict=True):  # after the reader has made its own index
            store.record(key, replied)
        store.record("d", replace(facts[0][0], index=3))
        await store.settle()
        assert [each for _, each in histories] == facts[1:]
        assert [reader.facts(key) for key in "cd"] == [facts[0], (replace(facts[0][0], index=3),)]
        store.restart("d", facts[2])  # the store needs its index for that
        await store.settle()
        assert [reader.facts(key) for key in "cd"] == [facts[0], facts[2]]
        assert not list(tmp_path.glob("*-journal"))
    await store.aclose()


def test_a_run_that_was_killed_can_be_read(tmp_path: Path, programs: Programs) -> None:
    code = f"""
import os
from batch_agent import BatchAgent
from batch_agent.testing import ScriptedBackend, say

def stop(result):
    if result.index == 2:
        os._exit(9)

BatchAgent.run_sync(task="{{it}}", inputs=list("0123"), backend=ScriptedBackend(lambda request: say("done")),
                    max_inflight=1, checkpoint_dir={str(tmp_path)!r}, on_result=stop)
"""
    assert programs.start(code).wait() == 9
    with CheckpointReader(tmp_path) as reader:
        known = [agent.index for agent in reader.agents()]
    assert known[:3] == [0, 1, 2]


class Unwritable(sqlite3.Connection):
    """To a database in WAL mode on a read-only disk, unless nobody is said to write to it."""

    def __init__(self, address: str, **options: Any) -> None:
        super().__init__(address, **options)
        self._works = "immutable=1" in address

    def execute(self, *statement: Any) -> sqlite3.Cursor:
        if not self._works:
            raise sqlite3.OperationalError("unable to open database file")
        return super().execute(*statement)


async def test_a_finished_run_can_be_read_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run(tmp_path, ["a", "b"])
    monkeypatch.setattr("batch_agent.store.reader.sqlite3.connect", Unwritable)
    with CheckpointReader(tmp_path) as reader:
        assert [agent.index for agent in reader.agents()] == [0, 1]
    (tmp_path / "run.sqlite3-wal").touch()  # of a run that was killed, or is under way
    with pytest.raises(StoreError, match="unable to open database file"):
        CheckpointReader(tmp_path)


async def test_usage_of_a_failed_attempt_is_counted(tmp_path: Path) -> None:
    stubborn = ScriptedBackend(lambda request: say("no number", Usage(100, 0, 7)))
    healed = ScriptedBackend(lambda request: say("7", Usage(10, 4, 1)))
    await run(tmp_path, ["a"], output_schema=int, max_retries=0, backend=stubborn)
    await run(tmp_path, ["a"], output_schema=int, max_retries=0, backend=healed)
    with CheckpointReader(tmp_path) as reader:
        assert reader.usage() == Usage(110, 4, 8)


@pytest.mark.slow
async def test_thousands_of_agents_and_huge_texts_are_read_one_by_one(tmp_path: Path) -> None:
    await run(tmp_path, [f"{n} " + "ü" * (200_000 if n % 1000 == 0 else 1) for n in range(2000)])
    with CheckpointReader(tmp_path) as reader:
        stories = reader.histories()
        first, facts = next(stories)
        assert isinstance(facts[0], Started)
        assert (first.index, len(facts[0].task)) == (0, 200_002)
        assert sum(1 for _ in stories) == 1999
        assert reader.usage() == Usage(20_000, 8_000, 2_000)


async def test_agents_of_the_current_plan_hide_those_of_earlier_plans(tmp_path: Path) -> None:
    await run(tmp_path, ["a", "b"])
    again = await run(tmp_path, ["a", "b"], task="Again: {it}", plan_changed="rerun")
    with CheckpointReader(tmp_path) as reader:
        assert [agent.key for agent in reader.agents()] == [result.key for result in again]


async def test_no_agent_is_lost_where_two_runs_gave_the_same_index(tmp_path: Path) -> None:
    await run(tmp_path, ["a", {"it": date(2024, 1, 1)}])
    await run(tmp_path, ["b", {"it": date(2024, 1, 2)}, "a"])
    with CheckpointReader(tmp_path) as reader:
        assert [agent.index for agent in reader.agents()] == [0, 0, 1, 1]


async def test_an_input_with_the_id_of_an_earlier_one_is_read_as_the_run_reported_it(tmp_path: Path) -> None:
    rows = ({"id": number} for number in [1, 2, 2, 1, 3])  # not a list, which would be refused
    results = await run(tmp_path, rows, task="{id}", key="id")
    with CheckpointReader(tmp_path) as reader:
        read = {stored.index: (row_key(stored.key), stored.error) for stored in reader.inputs()}
        assert reader.find_input("2").index == 1
    assert read == {result.index: (result.key, result.error) for result in results}


async def test_an_agent_is_found_by_its_key_its_index_or_the_beginning_of_its_key(tmp_path: Path) -> None:
    results = await run(tmp_path, ["a", "b", "b"])
    with CheckpointReader(tmp_path) as reader:
        for result in results:
            assert reader.find(result.key).index == reader.find(str(result.index)).index == result.index
        assert reader.find(results[0].key[:8]).index == 0
        with pytest.raises(SpecError, match="matches 2 agents"):
            reader.find(results[1].key[:8])


async def test_the_error_for_an_unknown_agent_lists_known_agents(tmp_path: Path) -> None:
    [result] = await run(tmp_path, ["a"])
    with CheckpointReader(tmp_path) as reader:
        typo = ("0" if result.key[0] != "0" else "1") + result.key[1:10]
        with pytest.raises(SpecError, match=f"Did you mean {result.key}"):
            reader.find(typo)
        with pytest.raises(SpecError, match=r"Started agents: 1, from .* \(index 0\)"):
            reader.find("5000")


def test_a_folder_without_a_checkpoint_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="There is no checkpoint"):
        CheckpointReader(tmp_path)
    (tmp_path / "run.sqlite3").write_text("this is no database, but a text that is long enough to be one" * 20)
    with pytest.raises(StoreError, match="cannot be read"):
        CheckpointReader(tmp_path)


@pytest.mark.parametrize(("version", "problem"), [(SCHEMA_VERSION + 1, "newer version"), (0, "is not a checkpoint")])
def test_another_format_is_a_clear_error(tmp_path: Path, version: int, problem: str) -> None:
    db = sqlite3.connect(tmp_path / "run.sqlite3")
    db.execute(f"PRAGMA user_version = {version}")
    db.close()
    with pytest.raises(StoreError, match=problem):
        CheckpointReader(tmp_path)


async def test_a_run_that_could_not_start_leaves_a_checkpoint_that_says_so(tmp_path: Path) -> None:
    await run(tmp_path, [])
    db = sqlite3.connect(tmp_path / "run.sqlite3")
    db.execute("DELETE FROM plan")
    db.commit()
    db.close()
    with CheckpointReader(tmp_path) as reader:
        assert list(reader.agents()) == []
        with pytest.raises(StoreError, match="is empty"):
            reader.plan()
        with pytest.raises(SpecError, match="No agent has started"):
            reader.find("0")


async def test_written_tokens_and_prices_are_kept_also_of_restarted_agents(tmp_path: Path) -> None:
    long = Usage(500_000, 10, 5, 20, 30)
    usage = long.of_request + long.in_lane("flex") + Usage(9, 1, 2).in_lane("batch") + Usage(7, 0, 1).in_lane("batch")
    store = SqliteStore(tmp_path)
    await store.open()
    store.save_run([], (3.0, 0.3, 15.0, 3.75, 6.0))
    store.record("a", Replied(say("x", usage)))
    await store.settle()
    store.restart("a", [Replied(say("x", Usage(7, 0, 1, 2)))])
    await store.settle()
    assert await store.spent() == usage + Usage(7, 0, 1, 2)
    await store.aclose()
    with CheckpointReader(tmp_path) as reader:
        assert reader.usage() == usage + Usage(7, 0, 1, 2)
        assert reader.prices() == (3.0, 0.3, 15.0, 3.75, 6.0)
