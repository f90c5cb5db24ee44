"""Whether files have more rows than a number, without reading all of them."""

import gzip
from pathlib import Path

import duckdb
import pytest

from batch_agent import SpecError
from batch_agent.data.file_formats import InputFile, iter_files
from batch_agent.data.input_files import has_more_rows, local_data_files


def has_more(source: str | Path, count: int, input_format: str | None = None) -> bool:
    return has_more_rows(local_data_files(source, input_format, None), count)


def test_lines_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"a": 1}\n' * 1_000)
    assert has_more(file, 999)
    assert not has_more(file, 1_000)


def test_rows_of_all_matching_files_count_together(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("a\n" + "1\n" * 9)
    assert has_more(str(tmp_path / "*.csv"), 19)  # with the headers
    assert not has_more(str(tmp_path / "*.csv"), 20)
    assert len(list(iter_files(local_data_files(str(tmp_path / "*.csv"), None, None)))) == 18


def test_compressed_lines_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl.gz"
    file.write_bytes(gzip.compress(b"1\n" * 500))
    assert has_more(file, 499)
    assert not has_more(file, 500)
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(SpecError, match="it ends too early"):
        has_more(file, 500)


def test_the_metadata_of_parquet_has_the_number(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    duckdb.sql("SELECT range AS a FROM range(2000)").write_parquet(str(file))
    assert has_more(file, 1_999)
    assert not has_more(file, 2_000)


def test_no_more_is_read_than_it_takes_to_know(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"1\n" * 1_000)
    missing = InputFile(tmp_path / "missing.jsonl", "missing.jsonl", "jsonl")
    [first] = local_data_files(file, None, None)
    assert has_more_rows([first, missing], 999)
    with pytest.raises(SpecError, match=r"missing\.jsonl"):
        has_more_rows([first, missing], 1_000)


@pytest.mark.parametrize("source", ["https://host/rows.jsonl", "s3://bucket/rows.jsonl", "-"])
def test_addresses_are_no_local_files(source: str) -> None:
    assert local_data_files(source, None, None) == []


def test_a_folder_and_a_list_in_one_json_are_taken_for_small(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1,\n2,\n3]")
    assert local_data_files(tmp_path, None, None) == []
    assert not has_more(tmp_path / "a.json", 1)
