"""The checkpoint folder: who may use it, what happens when it cannot be used, and what it leaves behind."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from batch_agent import StoreError
from batch_agent.core.facts import Replied
from batch_agent.core.requests import Reply, Usage
from batch_agent.store.lock import DirectoryLock
from batch_agent.store.sqlite import FACT_INDEX, SqliteStore
from batch_agent.store.writer import WriterThread

FACT = Replied(Reply("42", "stop", Usage(10, 0, 2)))

HOLD = """
import asyncio, sys
from pathlib import Path
from batch_agent.store.sqlite import SqliteStore

async def main():
    await SqliteStore(Path(sys.argv[1])).open()
    print("open", flush=True)
    sys.stdin.read()

asyncio.run(main())
"""


def store_threads() -> list[threading.Thread]:
    """Those that are left, after a moment for those that have done their last work."""
    threads = [thread for thread in threading.enumerate() if thread.name == "batch-agent-store"]
    for thread in threads:
        thread.join(2)
    return [thread for thread in threads if thread.is_alive()]


async def test_a_checkpoint_that_another_process_uses_is_refused_until_that_process_is_gone(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(StoreError, match="Another run is using the checkpoint"):
            await SqliteStore(tmp_path).open()
        holder.kill()
    store = SqliteStore(tmp_path)
    await store.open()
    await store.aclose()


async def test_two_runs_of_one_process_cannot_use_the_same_checkpoint_at_once(tmp_path: Path) -> None:
    first = SqliteStore(tmp_path)
    await first.open()
    with pytest.raises(StoreError, match="Another run is using the checkpoint"):
        await SqliteStore(tmp_path).open()
    await first.aclose()
    second = SqliteStore(tmp_path)
    await second.open()
    await second.aclose()


async def test_the_lock_of_a_process_that_was_just_killed_is_waited_for(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    lock.take()
    asyncio.get_running_loop().call_later(0.01, lock.release)
    store = SqliteStore(tmp_path)
    await store.open()
    await store.aclose()


async def test_a_cancelled_open_releases_the_directory(tmp_path: Path) -> None:
    opening = asyncio.create_task(SqliteStore(tmp_path).open())
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert store_threads() == []
    store = SqliteStore(tmp_path)
    await store.open()
    await store.aclose()


@pytest.mark.parametrize("below", [".", "a/b/c"])
async def test_a_folder_that_does_not_exist_yet_is_made(tmp_path: Path, below: str) -> None:
    store = SqliteStore(tmp_path / below)
    await store.open()
    await store.aclose()
    assert (tmp_path / below / "run.sqlite3").is_file()


async def test_a_folder_that_cannot_be_made_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="writable"):
        await SqliteStore(tmp_path / "file" / "run").open()


READ_ONLY = """
import asyncio, os, sys
from pathlib import Path
from batch_agent import StoreError
from batch_agent.store.sqlite import SqliteStore

if os.geteuid() == 0:
    os.setuid(65534)
try:
    asyncio.run(SqliteStore(Path(sys.argv[1])).open())
except StoreError as error:
    print(error)
"""


def test_a_folder_that_is_read_only_is_a_store_error(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for path in (*tmp_path.parents, tmp_path):
        if path.owner() == folder.owner() and path.is_relative_to("/tmp") and path != Path("/tmp"):
            path.chmod(0o755)
    folder.chmod(0o555)
    done = subprocess.run(
        [sys.executable, "-c", READ_ONLY, str(folder)], capture_output=True, text=True, timeout=30, check=False
    )
    assert "Permission denied" in done.stdout, done.stderr
    assert "Check that the directory is writable" in done.stdout


async def test_a_checkpoint_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite3"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE facts (something TEXT)")
        db.execute("PRAGMA user_version = 99")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"newer version of batch-agent \(format 99") as raised:
        await SqliteStore(tmp_path).open()
    assert "writable" not in str(raised.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"this is no database" * 100, b"SQLite format 3\0" + b"\xff" * 8000])
async def test_a_damaged_checkpoint_is_said_to_be_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.sqlite3").write_bytes(content)
    with pytest.raises(StoreError, match="damaged") as raised:
        await SqliteStore(tmp_path).open()
    assert "run.sqlite3" in str(raised.value)
    assert store_threads() == []


async def test_facts_that_cannot_be_read_are_a_store_error(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await store.open()
    store.record("a", FACT)
    await store.aclose()
    with sqlite3.connect(tmp_path / "run.sqlite3") as db:
        db.execute("UPDATE facts SET data = '{}'")
    db.close()
    store = SqliteStore(tmp_path)
    await store.open()
    with pytest.raises(StoreError, match="facts of agent a"):
        await store.facts("a")
    await store.aclose()


async def test_facts_read_in_a_group_are_those_of_each_agent(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await store.open()
    for key in ("a", "b", "a"):
        store.record(key, FACT)
    assert await store.fact_lists(["b", "unknown", "a"]) == [(FACT,), (), (FACT, FACT)]
    assert await store.facts("a") == (FACT, FACT)
    assert await store.fact_lists([]) == []
    await store.aclose()


async def test_what_is_recorded_after_a_read_in_a_group_is_found(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await store.open()
    for key in ("a", "b"):
        store.record(key, FACT)
    await store.fact_lists(["a", "b"])
    store.record("a", FACT)
    store.restart("b", [])
    assert await store.facts("a") == (FACT, FACT)
    assert await store.facts("b") == ()
    await store.aclose()


async def test_only_as_many_facts_are_kept_in_memory_as_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batch_agent.store.sqlite._MAX_READ_AHEAD_BYTES", 1_000)
    store = SqliteStore(tmp_path)
    await store.open()
    keys = [str(number) for number in range(100)]
    for key in keys:
        store.record(key, FACT)
    await store.fact_lists(keys)
    assert 0 < len(store._read_ahead) < 20
    assert [await store.facts(key) for key in keys] == [(FACT,)] * 100
    assert not store._read_ahead
    await store.aclose()


async def test_the_next_waiter_gets_the_error_of_a_failed_write(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await store.open()
    with sqlite3.connect(tmp_path / "run.sqlite3") as db:
        db.execute("DROP TABLE facts")
    db.close()
    store.record("a", FACT)
    with pytest.raises(StoreError, match="cannot be used"):
        await store.settle()
    await store.aclose()
    assert store_threads() == []


async def test_a_store_that_is_not_open_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not open"):
        SqliteStore(tmp_path).record("a", FACT)


async def test_an_unexpected_error_in_the_writer_wakes_all_waiters(tmp_path: Path) -> None:
    writer = WriterThread(tmp_path / "db")

    def odd(db: sqlite3.Connection) -> None:
        raise ArithmeticError("odd")

    with pytest.raises(ArithmeticError):
        async with asyncio.timeout(60):
            await writer.wait(odd)
    with pytest.raises(ArithmeticError):
        async with asyncio.timeout(60):
            await writer.wait(lambda db: None)
    await writer.stop()
    assert store_threads() == []


async def test_a_cancelled_waiter_does_not_affect_others(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await store.open()
    store.record("a", FACT)
    impatient = asyncio.create_task(store.settle())
    await asyncio.sleep(0)
    impatient.cancel()
    store.record("b", FACT)
    await store.settle()
    assert tuple(await store.facts("a")) == (FACT,)
    await store.aclose()


async def test_closing_does_not_block_the_event_loop(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await store.open()
    go_on = threading.Event()
    store._opened.post(lambda db: go_on.wait(10))
    closing = asyncio.create_task(store.aclose())
    await asyncio.sleep(0.01)
    assert not closing.done()
    go_on.set()
    await closing
    assert store_threads() == []


async def test_work_of_a_closed_event_loop_ends_without_an_error(tmp_path: Path) -> None:
    writer = WriterThread(tmp_path / "db")
    go_on = threading.Event()

    def abandon() -> None:
        async def ask() -> None:
            asking = asyncio.ensure_future(writer.wait(lambda db: go_on.wait(10)))
            await asyncio.sleep(0)
            asking.cancel()

        asyncio.run(ask())

    await asyncio.to_thread(abandon)
    go_on.set()
    await writer.wait(lambda db: None)
    await writer.stop()


async def test_ten_thousand_facts_take_a_moment(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await store.open()
    started = time.process_time()
    for number in range(10_000):
        store.record(f"agent {number}", FACT)
    await store.settle()
    assert time.process_time() - started < 5
    await store.aclose()
    assert os.path.getsize(tmp_path / "run.sqlite3") > 100_000


def has_index(folder: Path) -> bool:
    with closing(sqlite3.connect(folder / "run.sqlite3")) as db:
        return bool(db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (FACT_INDEX,)).fetchall())


async def test_facts_are_indexed_at_the_end_of_a_run_or_when_one_is_looked_up(tmp_path: Path) -> None:
    for folder, is_looked_up in ((tmp_path / "added", False), (tmp_path / "read", True)):
        store = SqliteStore(folder)
        await store.open()
        store.record("a", FACT)
        await store.settle()
        if is_looked_up:
            assert await store.facts("a") == (FACT,)
        assert has_index(folder) is is_looked_up
        await store.aclose()
        assert has_index(folder)


async def test_a_checkpoint_of_a_killed_run_is_indexed_when_it_is_opened(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "killed")
    await store.open()
    store.record("a", FACT)
    await store.settle()
    shutil.copytree(tmp_path / "killed", tmp_path / "left")
    await store.aclose()
    assert not has_index(tmp_path / "left")
    resumed = SqliteStore(tmp_path / "left")
    await resumed.open()
    assert has_index(tmp_path / "left")
    assert await resumed.facts("a") == (FACT,)
    await resumed.aclose()


async def test_an_index_that_cannot_be_written_costs_no_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(db: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("batch_agent.store.sqlite.index_facts", full)
    store = SqliteStore(tmp_path)
    await store.open()
    store.record("a", FACT)
    await store.aclose()
    monkeypatch.undo()
    assert not has_index(tmp_path)
    again = SqliteStore(tmp_path)
    await again.open()
    assert await again.facts("a") == (FACT,)
    await again.aclose()
