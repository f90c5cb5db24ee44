"""Claims are on the disk itself before a call is made; other facts are not worth that. What is lost is noticed."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from batch_agent import StoreError
from batch_agent.core.facts import Claimed, Started
from batch_agent.core.messages import ToolCall
from batch_agent.store.sqlite import SqliteStore

STARTED = Started(0, "a", "a")
CLAIMED = Claimed(ToolCall("1", "pay", "{}"))
FULL, NORMAL = 2, 1


class Watched(sqlite3.Connection):
    """Notes how each commit that wrote a fact was synchronized, and the kinds of these facts."""

    commits: "list[tuple[int, list[str]]]"

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql == "BEGIN":
            self.commits.append((super().execute("PRAGMA synchronous").fetchone()[0], []))
        elif sql.startswith("INSERT INTO facts"):
            self.commits[-1][1].extend(parameters[1::3])
        return super().execute(sql, parameters)


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> "list[tuple[int, list[str]]]":
    connect = sqlite3.connect
    Watched.commits = []
    monkeypatch.setattr(sqlite3, "connect", lambda path, **options: connect(path, factory=Watched, **options))
    return Watched.commits


async def test_a_claim_is_synced_and_nothing_else_is(tmp_path: Path, commits: "list[tuple[int, list[str]]]") -> None:
    store = SqliteStore(tmp_path)
    await store.open()
    store.record("a", STARTED)
    await store.settle("a")
    store.record("a", CLAIMED)
    await store.settle("a", sync=True)
    store.record("b", STARTED)
    await store.settle("b")
    await store.aclose()
    assert [(level, kinds) for level, kinds in commits if kinds] == [
        (NORMAL, ["started"]),
        (FULL, ["claimed"]),
        (NORMAL, ["started"]),
    ]


async def test_claims_of_one_moment_are_one_commit(tmp_path: Path, commits: "list[tuple[int, list[str]]]") -> None:
    store = SqliteStore(tmp_path)
    await store.open()

    async def claim(key: str) -> None:
        store.record(key, CLAIMED)
        await store.settle(key, sync=True)

    await asyncio.gather(*(claim(str(n)) for n in range(100)))
    await store.aclose()
    assert [(level, len(kinds)) for level, kinds in commits if kinds] == [(FULL, 100)]


async def killed_with_claims(folder: Path, number: int) -> None:
    """Leaves the files as a process that is killed does: with what it wrote in the log."""
    store = SqliteStore(folder / "live")
    await store.open()
    for n in range(number):
        store.record(str(n), STARTED)
        store.record(str(n), CLAIMED)
        await store.settle(str(n), sync=True)
    (folder / "dead").mkdir()
    for file in (folder / "live").iterdir():
        (folder / "dead" / file.name).write_bytes(file.read_bytes())
    await store.aclose()


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
async def test_a_log_that_is_missing_or_cut_is_noticed(tmp_path: Path, share: float) -> None:
    await killed_with_claims(tmp_path, 20)
    log = tmp_path / "dead" / "run.sqlite3-wal"
    data = log.read_bytes()
    log.write_bytes(data[: int(len(data) * share)]) if share else log.unlink()
    store = SqliteStore(tmp_path / "dead")
    with pytest.raises(StoreError, match="has lost its latest facts: 20 synchronous commits were made"):
        await store.open()
    (tmp_path / "dead" / "run.syncs").unlink()  # as the error says
    await store.open()
    await store.aclose()


async def test_a_log_that_is_whole_is_read(tmp_path: Path) -> None:
    await killed_with_claims(tmp_path, 3)
    store = SqliteStore(tmp_path / "dead")
    await store.open()
    assert await store.facts("2") == (STARTED, CLAIMED)
    await store.aclose()


async def test_a_checkpoint_that_was_moved_away_is_not_reported_as_lost(tmp_path: Path) -> None:
    await killed_with_claims(tmp_path, 3)
    for name in ("run.sqlite3", "run.sqlite3-wal", "run.sqlite3-shm"):
        (tmp_path / "dead" / name).unlink()
    for _ in range(2):
        store = SqliteStore(tmp_path / "dead")
        await store.open()
        await store.aclose()


async def test_a_run_has_a_name_of_its_own_and_keeps_it(tmp_path: Path) -> None:
    names = []
    for folder in ("a", "a", "b"):
        store = SqliteStore(tmp_path / folder)
        await store.open()
        names.append(await store.identity())
        await store.aclose()
    assert names[0] == names[1] != names[2]
    assert all(names)


async def test_a_checkpoint_of_a_version_without_names_keeps_the_keys_that_it_has(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await store.open()
    store.record("a", STARTED)
    await store.aclose()
    db = sqlite3.connect(tmp_path / "run.sqlite3")
    db.execute("DROP TABLE run")
    db.commit()
    db.close()
    (tmp_path / "run.syncs").unlink()
    await store.open()
    assert await store.identity() == ""
    await store.aclose()
