"""Drafts of files go: those of this process at once, those of killed ones when the file is written a day later."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from batch_agent.atomic_file import atomic_replace, atomic_write, remove_stale_temporaries, temporary_path, try_lock
from batch_agent.backends.embedded.model_cache import written_atomically
from batch_agent.core.results import AgentResult
from batch_agent.data.table_export import to_parquet

_KILLED = """
import os, signal, sys
from pathlib import Path
from batch_agent.atomic_file import atomic_write

with atomic_write(Path(sys.argv[1])) as file:
    file.write(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
_DAY = 86_400


def aged(path: Path, seconds: float) -> Path:
    then = time.time() - seconds
    os.utime(path, (then, then), follow_symlinks=False)
    return path


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def test_the_draft_of_a_killed_process_goes_when_the_file_is_written_a_day_later(tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    died = subprocess.run([sys.executable, "-c", _KILLED, str(target)], check=False)
    assert died.returncode == -signal.SIGKILL
    [draft] = tmp_path.iterdir()
    with atomic_write(target) as file:
        file.write(b"whole")
    assert names(tmp_path) == {"out.jsonl", draft.name}  # another process may still be at it
    aged(draft, 2 * _DAY)
    with atomic_write(target) as file:
        file.write(b"again")
    assert names(tmp_path) == {"out.jsonl"}
    assert target.read_bytes() == b"again"


def test_nothing_but_drafts_of_that_file_goes(tmp_path: Path) -> None:
    kept = [
        "out.jsonl",
        ".out.jsonl.20240101",
        ".out.jsonl.original",
        ".other.jsonl.1.batch-agent-draft",
        ".out.jsonl.",
    ]
    for name in kept:
        aged_file = tmp_path / name
        aged_file.write_text("mine")
        aged(aged_file, 9 * _DAY)
    folder, outside = tmp_path / ".out.jsonl.x.batch-agent-draft", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (outside / "file").write_text("mine")
    (folder / "link").symlink_to(outside)
    aged(folder, 2 * _DAY)
    link = tmp_path / ".out.jsonl.y.batch-agent-draft"
    link.symlink_to(outside)
    aged(link, 2 * _DAY)
    remove_stale_temporaries(tmp_path, ".out.jsonl.")
    assert names(tmp_path) == {*kept, "outside"}
    assert (outside / "file").read_text() == "mine"


def test_a_folder_that_is_not_there_has_no_drafts(tmp_path: Path) -> None:
    assert temporary_path(tmp_path / "gone" / "out.csv").parent == tmp_path / "gone"


def test_a_cached_file_leaves_no_draft(tmp_path: Path) -> None:
    old = tmp_path / ".model.gguf.abcdefgh.batch-agent-draft"
    old.write_text("half")
    aged(old, 2 * _DAY)
    with written_atomically(tmp_path / "model.gguf") as unfinished:
        assert unfinished.name.endswith(".batch-agent-draft")
        unfinished.write_text("whole")
    assert names(tmp_path) == {"model.gguf"}


def test_a_parquet_file_leaves_no_draft(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    to_parquet([AgentResult(0, "a", output="x")], tmp_path / "out.parquet")
    assert names(tmp_path) == {"out.parquet"}


def test_a_file_is_replaced_when_the_block_ends_and_left_when_it_raises(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    with atomic_replace(path) as draft:
        draft.write_text("one")
        assert not path.exists()
    with pytest.raises(UnicodeEncodeError), atomic_replace(path) as draft:
        draft.write_text("two \ud800", encoding="utf-8")
    assert path.read_text() == "one"
    assert list(tmp_path.iterdir()) == [path]


def test_the_lock_of_a_file_is_held_until_the_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    with path.open("rb") as one, path.open("rb") as two, path.open("rb") as three:
        assert try_lock(one.fileno(), is_shared=True) is True
        assert try_lock(two.fileno(), is_shared=True) is True
        assert try_lock(three.fileno()) is False
        one.close()
        two.close()
        assert try_lock(three.fileno()) is True
