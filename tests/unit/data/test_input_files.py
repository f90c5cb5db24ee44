"""Inputs from files and folders: what is in them, and what is wrong with them."""

import tracemalloc
from itertools import islice
from pathlib import Path
from typing import Any

import duckdb
import pytest
from tests.support.forked_programs import Programs

from batch_agent import SpecError
from batch_agent.data import check_output_path, parquet, read_inputs, read_inputs_async
from batch_agent.data import input_files as files
from batch_agent.data.row_iterators import SizedRows


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("name", "content", "inputs"),
    [
        ("in.jsonl", '{"a": 1}\n\n"two"\n', [{"a": 1}, "two"]),
        ("in.ndjson", '\ufeff{"a": "ü"}\r\n{"a": null}', [{"a": "ü"}, {"a": None}]),
        ("IN.JSON", '[{"a": 1}]', [{"a": 1}]),
        ("in.csv", "\ufeffname,age\nAda,36\n\nZoë,\n", [{"name": "Ada", "age": "36"}, {"name": "Zoë", "age": ""}]),
        ("in.csv", 'text\n"two\nlines, ""quoted"""\n', [{"text": 'two\nlines, "quoted"'}]),
        ("in.tsv", "a\tb\n1\t2,3\n", [{"a": "1", "b": "2,3"}]),
        ("in.csv", f"text\n{'x' * 200_000}\n", [{"text": "x" * 200_000}]),
        ("in.csv", "\n\na,b\n1,2\n", [{"a": "1", "b": "2"}]),
        ("in.csv", '\ufeffname;price\r\n"A; B";1,5\r\n', [{"name": "A; B", "price": "1,5"}]),
        ("in.csv", "a;b,c\n1;2,3\n", [{"a;b": "1;2", "c": "3"}]),
        ("in.csv", "name\tage\nAda, Bo\t36\n", [{"name": "Ada, Bo", "age": "36"}]),
        ("in.csv", "name|age\nAda; Bo|36\n", [{"name": "Ada; Bo", "age": "36"}]),
        ("in.csv", '"Price, EUR";name;town\n1;Ada;Ulm\n', [{"Price, EUR": "1", "name": "Ada", "town": "Ulm"}]),
        ("in.csv", "Price, EUR;name;town\n1;Ada;Ulm\n", [{"Price, EUR": "1", "name": "Ada", "town": "Ulm"}]),
    ],
)
def test_a_file_is_read_by_its_suffix(tmp_path: Path, name: str, content: str, inputs: list[Any]) -> None:
    path = written(tmp_path / name, content)
    assert read_inputs(path) == read_inputs(str(path)) == inputs


def test_the_inputs_of_a_folder_are_its_text_files(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    written(tmp_path / "sub" / "a.txt", "\ufeffhello ü")
    written(tmp_path / ".hidden", "no")
    written(tmp_path / "image.bin", b"\0\1\2")
    (tmp_path / "loop").symlink_to(tmp_path)
    expected = [{"path": "sub/a.txt", "name": "a.txt", "text": "hello ü"}]
    assert read_inputs(tmp_path) == read_inputs(f"{tmp_path}/") == expected


def test_a_file_of_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.txt").symlink_to("/proc/self/mem")  # it can be opened, but its beginning not be read
    with pytest.raises(SpecError, match=r"broken\.txt' cannot be read: Input/output error"):
        read_inputs(tmp_path)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_a_timestamp_in_parquet_is_the_same_in_every_time_zone(tmp_path: Path, programs: Programs, zone: str) -> None:
    path = tmp_path / "in.parquet"
    duckdb.sql("SELECT TIMESTAMPTZ '2020-01-01 12:00:00+01:00' AS moment, [moment] AS several").write_parquet(str(path))
    code = "import sys; from batch_agent.data import read_inputs; print(read_inputs(sys.argv[1]))"
    program = programs.start(code, str(path), environment={"TZ": zone})
    assert program.wait() == 0
    moment = "datetime.datetime(2020, 1, 1, 11, 0, tzinfo=datetime.timezone.utc)"
    assert program.stdout.read_text() == f"[{{'moment': {moment}, 'several': [{moment}]}}]\n"


def test_results_may_not_overwrite_inputs_or_be_in_their_folder(tmp_path: Path) -> None:
    path = written(tmp_path / "in.jsonl", "1\n")
    (tmp_path / "link.jsonl").symlink_to(path)
    for same in (path, str(path), tmp_path / "link.jsonl"):
        with pytest.raises(SpecError, match=r"--out '.*in\.jsonl' would overwrite the inputs: use another file"):
            check_output_path(same, path, "--out")
    with pytest.raises(SpecError, match=r"out '.*out\.jsonl' is in the folder of the inputs"):
        check_output_path(f"{tmp_path}/", tmp_path / "deep" / "out.jsonl")
    for other in (tmp_path / "other.jsonl", tmp_path / "in.jsonl.checkpoint"):
        check_output_path(path, other)
    check_output_path([1, 2], path)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("in.txt", "x", "unknown suffix. Inputs are a .jsonl, .json, .csv, .tsv or .parquet file"),
        ("in.json", "{}", "must contain a list of inputs, not a single dict"),
        ("in.json", "[", "not valid JSON"),
        ("in.jsonl", '{"a": 1}\n{"a": \n', r"in\.jsonl, line 2: not valid JSON \(.*, column 6\)"),
        ("in.jsonl", b'{"a": "\xff"}\n', r"in\.jsonl, line 1: not UTF-8 .*encoding="),
        ("in.jsonl", "", "has no inputs"),
        ("in.csv", "", "has no inputs"),
        ("in.csv", "a,b\n", "has no inputs"),
        ("in.csv", "a,b\n1,2\n1,2,3\n", r"in\.csv, line 3: 3 cells for 2 columns"),
        ("in.csv", "a,b\n1\n", r"in\.csv, line 2: 1 cells for 2 columns"),
        ("in.csv", 'a,b\n1,"2\n', r"in\.csv, line 2: not valid CSV"),
        ("in.csv", b"a\n" + b"x\n" * 9000 + b"\xe4\n", r"in\.csv, line 9002: not UTF-8"),
        ("in.csv", "a;b\n1;2;3\n", r"in\.csv, line 2: 3 cells for 2 columns"),
        ("in.csv", "a,b,a\n1,2,3\n", "two columns named 'a'"),
        ("in.parquet", "no parquet", "cannot be read"),
    ],
)
def test_a_file_that_is_not_a_list_of_inputs_is_rejected(
    tmp_path: Path, name: str, content: str | bytes, problem: str
) -> None:
    with pytest.raises(SpecError, match=problem):
        read_inputs(written(tmp_path / name, content))


@pytest.mark.parametrize("place", ["nothing.jsonl", "nothing/", "nothing.parquet"])
def test_a_missing_file_is_a_clear_error(tmp_path: Path, place: str) -> None:
    with pytest.raises(SpecError, match="does not exist"):
        read_inputs(f"{tmp_path}/{place}")


def test_a_string_that_is_not_a_path_and_a_database_url_are_rejected_with_a_hint() -> None:
    with pytest.raises(SpecError, match=r"not one str: write inputs=\[\.\.\.\]\. A file is recognized by its suffix"):
        read_inputs("texts")
    with pytest.raises(SpecError, match=r"postgresql://\.\.\.: for inputs from a database, use SqlQuery"):
        read_inputs("postgresql://me:secret@host/db")


def test_a_large_file_is_checked_at_once_and_read_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MAX_BYTES", 100)
    path = written(tmp_path / "in.jsonl", "".join(f'{{"n": {n}}}\n' for n in range(1000)))
    rows = read_inputs(path)
    assert isinstance(rows, SizedRows)
    assert len(rows) == 1000
    assert list(rows) == list(rows) == [{"n": n} for n in range(1000)]
    with pytest.raises(SpecError, match="line 1001"):
        read_inputs(written(tmp_path / "in.jsonl", path.read_text() + "broken\n"))


@pytest.mark.slow
def test_a_large_parquet_file_is_read_lazily(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "it's [1] big.parquet"
    duckdb.sql("SELECT range AS n, 'text ' || range AS text FROM range(100000)").write_parquet(str(path))
    monkeypatch.setattr(parquet, "_MAX_BYTES", 1000)
    rows = read_inputs(path)
    assert isinstance(rows, SizedRows)
    assert len(rows) == 100_000
    tracemalloc.start()
    try:
        assert sum(row["n"] for row in islice(rows, 20_000)) == sum(range(20_000))
        assert tracemalloc.get_traced_memory()[1] < 2_000_000  # all of them are fifteen times that
    finally:
        tracemalloc.stop()
    monkeypatch.undo()
    assert read_inputs(path) == [{"n": n, "text": f"text {n}"} for n in range(100_000)]


def test_columns_of_parquet_that_differ_in_case_keep_their_names(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet as writer

    table = pa.table({"a": [1], "A": [[{"x": None}]], "s": [{"A": 1, "b": [2]}], "last": [float("nan")]})
    writer.write_table(table, tmp_path / "in.parquet")
    assert read_inputs(tmp_path / "in.parquet") == [{"a": 1, "A": [{"x": None}], "s": {"A": 1, "b": [2]}, "last": None}]
    writer.write_table(pa.table([[1], [2]], names=["a", "a"]), tmp_path / "twice.parquet")
    with pytest.raises(SpecError, match="two columns named 'a'"):
        read_inputs(tmp_path / "twice.parquet")


async def test_files_are_read_the_same_inside_an_event_loop(tmp_path: Path) -> None:
    assert await read_inputs_async(written(tmp_path / "in.jsonl", "1\n2\n")) == [1, 2]
    rows = [1, 2]
    assert await read_inputs_async(rows) is rows
    with pytest.raises(SpecError, match="does not exist"):
        await read_inputs_async(tmp_path / "nothing.csv")


def test_parquet_without_duckdb_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    with pytest.raises(SpecError, match=r"pip install 'batch-agent\[data\]'"):
        read_inputs(written(tmp_path / "in.parquet", b"PAR1"))


@pytest.mark.parametrize(
    ("name", "content"),
    [("ids.jsonl", '{{"id":{0},"n":[{0},0.5,1e30]}}'), ("ids.json", '[{{"id":{0},"n":[{0},0.5,1e30]}}]')],
)
@pytest.mark.parametrize("number", [12345678901234567890123, -12345678901234567890123, 2**64 + 1, 2**63 + 1, 7])
def test_integers_of_any_size_are_read_exactly(tmp_path: Path, name: str, content: str, number: int) -> None:
    (tmp_path / name).write_text(content.format(number))
    assert read_inputs(tmp_path / name) == [{"id": number, "n": [number, 0.5, 1e30]}]
