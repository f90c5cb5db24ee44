"""Results written while a run goes on: whatever becomes of it, they can be read."""

import csv
import os
import random
import resource
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import duckdb
import orjson
import pytest
from tests.support.forked_programs import Programs
from tests.support.waits import wait_until

from batch_agent import AgentResult, SpecError
from batch_agent.atomic_file import atomic_write
from batch_agent.data import ResultWriter, open_results
from batch_agent.data import parquet_writer as spooled

NAMES = ["out.jsonl", "out.csv", "out.parquet"]


def indices(path: Path) -> list[int]:
    match path.suffix:
        case ".csv":
            with path.open(newline="", encoding="utf-8") as file:
                return [int(row["index"]) for row in csv.DictReader(file)]
        case ".parquet":
            return [row[0] for row in duckdb.read_parquet(str(path)).select("index").fetchall()]
        case _:
            return [orjson.loads(line)["index"] for line in path.read_bytes().splitlines()]


def spool(path: Path) -> Path:
    return path.with_name(f"{path.name}.rows.jsonl")


@pytest.mark.parametrize("name", NAMES)
def test_a_file_holds_what_was_written(tmp_path: Path, name: str) -> None:
    path = tmp_path / "deep" / name
    with open_results(path) as file:
        for n in (1, 0):
            file.write(AgentResult(n, "k", {"a": "ü\n"}, {"b": {1, 2}}))
    assert indices(path) == ([0, 1] if name == "out.parquet" else [1, 0])
    assert os.listdir(path.parent) == [name]


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv"])
def test_a_row_is_on_disk_as_soon_as_it_is_written(tmp_path: Path, name: str) -> None:
    with open_results(tmp_path / name) as file:
        file.write(AgentResult(0, "k", {"a": 1}, output={"b": [1]}))
        assert indices(tmp_path / name) == [0]


@pytest.mark.parametrize("name", NAMES)
def test_an_older_file_is_replaced_by_the_first_result_and_not_before(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for n in (1, 2):
        with open_results(path) as file:
            assert n == 1 or indices(path) == [1]
            file.write(AgentResult(n, "k"))
        assert indices(path) == [n]
    with pytest.raises(KeyboardInterrupt), open_results(path):
        raise KeyboardInterrupt
    assert indices(path) == [2]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_without_results_replaces_an_older_file_with_an_empty_one(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with open_results(path) as file:
        file.write(AgentResult(0, "k"))
    with open_results(path):
        pass
    assert indices(path) == []
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_in_the_home_folder_is_written_there(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with open_results(f"~/{name}") as file:
        file.write(AgentResult(0, "k"))
    assert indices(tmp_path / name) == [0]


@pytest.mark.parametrize("name", NAMES)
def test_two_runs_cannot_write_to_one_file(tmp_path: Path, name: str) -> None:
    with open_results(tmp_path / name) as file:
        file.write(AgentResult(0, "k"))
        with pytest.raises(SpecError, match="is being written by another run"):
            open_results(tmp_path / name)
    assert indices(tmp_path / name) == [0]


def test_a_csv_has_the_same_columns_in_every_row(tmp_path: Path) -> None:
    with open_results(tmp_path / "out.csv") as file:
        file.write(AgentResult(0, "k", "plain", 'a "quoted"\ntext, ünd'))
        file.write(AgentResult(1, "k", {"a": 1}, {"b": None}))
        file.write(AgentResult(2, "k", float("nan"), float("inf")))
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as opened:
        first, second, third = csv.DictReader(opened)
    assert (first["input"], first["output"]) == ("plain", 'a "quoted"\ntext, ünd')
    assert (second["input.a"], second["output.b"], second["input"], second["ok"]) == ("1", "", "", "true")
    assert (third["input"], third["output"]) == ("", "")


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("file/out.jsonl", "cannot be written"),
        ("file/out.parquet", "cannot be written"),
        ("folder", "cannot be written"),
        ("folder.parquet", "cannot be written: it is a folder"),
        ("out.xlsx", r"results must be a \.jsonl, \.csv or \.parquet file, not '\.xlsx'"),
    ],
)
def test_a_path_that_cannot_be_written_is_a_clear_error(tmp_path: Path, place: str, problem: str) -> None:
    (tmp_path / "file").write_text("")
    for folder in ("folder", "folder.parquet"):
        (tmp_path / folder).mkdir()
    with pytest.raises(SpecError, match=f"--out .*{problem}"):
        open_results(tmp_path / place, "--out")


def test_parquet_without_duckdb_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(SpecError, match=r"pip install 'batch-agent\[data\]'"):
        open_results(tmp_path / "out.parquet")
    assert list(tmp_path.iterdir()) == []


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """As if the disk were full: files may not become longer."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk_costs_the_last_row_and_no_other(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    written = 0
    with open_results(path) as file:
        with room_for(20_000), suppress(SpecError):
            while written < 1000:
                file.write(AgentResult(written, "k", "x" * 100))
                written += 1
        with room_for(20_000), pytest.raises(SpecError, match=r"out .*cannot be written: File too large"):
            file.write(AgentResult(written, "k", "x" * 100))
    assert 10 < written < 200
    assert indices(path) == list(range(written))


def test_rows_that_cannot_be_written_to_parquet_stay_in_the_spool_file(tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    file = open_results(path)
    for n in range(2000):
        file.write(AgentResult(n, "k", random.Random(n).randbytes(200).hex()))
    with (
        room_for(2000),
        pytest.raises(SpecError, match=r"cannot be written: [^{}]*File too large. All results are in .*rows\.jsonl"),
    ):
        file.__exit__(None, None, None)
    assert indices(spool(path)) == list(range(2000))
    with open_results(path) as again:
        assert indices(spool(path)) == list(range(2000))
        again.write(AgentResult(7, "k"))
    assert indices(path) == [7]
    assert os.listdir(tmp_path) == ["out.parquet"]


def test_the_parquet_file_is_up_to_date_when_no_more_rows_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spooled, "_MIN_PAUSE", 0.0)
    monkeypatch.setattr(spooled, "_MAX_TIME_SHARE", 1.0)
    path = tmp_path / "out.parquet"
    with open_results(path) as file:
        for n in range(6):
            file.write(AgentResult(n, "k", {"n": n if n < 3 else "text"}))
        wait_until(lambda: path.exists() and indices(path) == list(range(6)))


def test_rewriting_the_parquet_file_takes_a_small_share_of_the_time() -> None:
    assert spooled.pause_after(2.0) == pytest.approx(38.0)
    assert spooled.pause_after(0.001) == 1.0


def test_an_error_in_the_block_is_the_one_that_is_raised_and_nothing_is_lost(tmp_path: Path) -> None:
    def work(file: ResultWriter, gone: Path) -> None:
        shutil.rmtree(gone, ignore_errors=True)
        file.write(AgentResult(0, "k"))
        raise KeyboardInterrupt

    gone = tmp_path / "gone"
    with pytest.raises(KeyboardInterrupt), open_results(tmp_path / "out.parquet") as file:
        work(file, gone)
    assert indices(tmp_path / "out.parquet") == [0]
    with pytest.raises(KeyboardInterrupt), open_results(gone / "out.parquet") as file:
        work(file, gone)


RUN = """
import sys, time
from batch_agent import AgentResult
from batch_agent.data import open_results
with open_results(sys.argv[1]) as file:
    for n in range(1_000_000):
        file.write(AgentResult(n, "k", {"n": n}, {"text": "x" * 50}))
        time.sleep(0.001)
"""


def test_a_run_that_is_killed_leaves_parquet_and_all_its_rows(tmp_path: Path, programs: Programs) -> None:
    path = tmp_path / "out.parquet"
    program = programs.start(RUN, str(path), cwd=tmp_path)
    wait_until(lambda: path.exists() and spool(path).stat().st_size > 100_000)
    program.send_signal(signal.SIGKILL)
    assert program.wait() == -signal.SIGKILL
    rows = spool(path).read_bytes().splitlines(keepends=True)
    whole = [orjson.loads(row)["index"] for row in rows if row.endswith(b"\n")]
    assert whole == list(range(len(whole)))
    found = indices(path)
    assert found == list(range(len(found)))
    assert 0 < len(found) <= len(whole)


def test_a_special_file_is_not_replaced_by_a_regular_file(tmp_path: Path) -> None:
    pipe = tmp_path / "results.jsonl"
    os.mkfifo(pipe)
    with pytest.raises(SpecError, match="not a regular file"), atomic_write(pipe):
        pass
    assert pipe.is_fifo()
