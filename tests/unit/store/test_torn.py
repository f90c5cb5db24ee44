"""A checkpoint whose last bytes were torn off or overwritten still gives what came before them."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from batch_agent.core.facts import Replied
from batch_agent.core.requests import Reply, Usage
from batch_agent.store.sqlite import SqliteStore

STORY = [Replied(Reply(f"reply {number}", "stop", Usage(number))) for number in range(120)]


@pytest.fixture(scope="module")
def cut_short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint as it is in the middle of a run: the main file and a log."""
    live, copy = tmp_path_factory.mktemp("live"), tmp_path_factory.mktemp("copy")

    async def run() -> None:
        store = SqliteStore(live)
        await store.open()
        for number, fact in enumerate(STORY):
            store.record(f"agent-{number}", fact)
            await store.settle()
        for name in ("run.sqlite3", "run.sqlite3-wal"):
            shutil.copy(live / name, copy / name)
        await store.aclose()

    asyncio.run(run())
    return copy


def torn_copy(whole: Path, torn: Path, damage: str) -> Path:
    """As a power cut may leave it: the end of the log is not sound."""
    shutil.copytree(whole, torn)
    log = torn / "run.sqlite3-wal"
    size = log.stat().st_size
    assert size > 50_000
    with log.open("r+b") as file:
        if damage == "cut":
            file.truncate(size - 5_000)
        elif damage == "overwritten":
            file.seek(size - 5_000)
            file.write(os.urandom(5_000))
        else:
            file.seek(size)
            file.write(os.urandom(5_000))
    return torn


@pytest.mark.parametrize("damage", ["cut", "overwritten", "more"])
async def test_facts_before_a_torn_write_are_read_and_the_run_resumes(
    cut_short: Path, tmp_path: Path, damage: str
) -> None:
    store = SqliteStore(torn_copy(cut_short, tmp_path / "torn", damage))
    await store.open()
    known = [number for number in range(len(STORY)) if await store.facts(f"agent-{number}")]
    assert known == list(range(len(known)))
    assert len(known) >= (len(STORY) if damage == "more" else len(STORY) - 20)
    assert [await store.facts(f"agent-{number}") for number in known] == [(STORY[number],) for number in known]
    store.record("new", STORY[0])
    await store.settle()
    assert await store.facts("new") == (STORY[0],)
    await store.aclose()
