from pathlib import Path

import orjson
import pytest

from batch_agent.cli.data import InputFile, ResultFile, as_row
from batch_agent.core.errors import ErrorKind, SpecError
from batch_agent.core.results import AgentError, AgentResult


def test_json_lines_are_counted_and_can_be_read_twice(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text('{"a": 1}\n\n"two"\n')
    inputs = InputFile(file)
    assert len(inputs) == 2
    assert list(inputs) == list(inputs) == [{"a": 1}, "two"]


def test_a_broken_line_is_named_before_anything_runs(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text('{"a": 1}\n{"a": \n')
    with pytest.raises(SpecError, match=r"in\.jsonl, line 2"):
        InputFile(file)


def test_json_csv_and_folders_are_inputs_too(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('[{"a": 1}]')
    assert list(InputFile(tmp_path / "in.json")) == [{"a": 1}]
    (tmp_path / "in.csv").write_text("name,age\nAda,36\n", encoding="utf-8-sig")
    assert list(InputFile(tmp_path / "in.csv")) == [{"name": "Ada", "age": "36"}]
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a.txt").write_text("hello")
    (folder / ".hidden").write_text("no")
    (folder / "image.bin").write_bytes(b"\0\1\2")
    assert list(InputFile(folder)) == [{"path": "sub/a.txt", "name": "a.txt", "text": "hello"}]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("in.txt", "x", "takes a .jsonl"),
        ("in.json", "{}", "must hold a list"),
        ("in.json", "[", "not valid JSON"),
        ("in.jsonl", "", "has no inputs"),
    ],
)
def test_what_is_no_list_of_inputs_is_refused(tmp_path: Path, name: str, content: str, problem: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(SpecError, match=problem):
        InputFile(tmp_path / name)


def test_a_missing_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="There is no"):
        InputFile(tmp_path / "nothing.jsonl")


def test_a_result_is_on_disk_as_soon_as_it_is_written(tmp_path: Path) -> None:
    with ResultFile(tmp_path / "deep" / "out.jsonl") as file:
        file.write(AgentResult(0, "k", {"a": 1}, output={"b": {1, 2}}))
        row = orjson.loads((tmp_path / "deep" / "out.jsonl").read_bytes())
        assert row["ok"] is True
        assert row["output"] == {"b": [1, 2]}


def test_older_results_are_replaced_by_the_first_new_one_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("old\n")
    with ResultFile(path) as file:
        assert path.read_text() == "old\n"
        file.write(AgentResult(0, "k"))
    assert "old" not in path.read_text()


def test_a_place_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="cannot be written"):
        ResultFile(tmp_path / "file" / "out.jsonl")


def test_a_failed_row_says_why_and_a_long_input_is_shortened() -> None:
    error = AgentError(ErrorKind.SERVER, "boom", retryable=True)
    row = as_row(AgentResult(3, "k", {"text": "x" * 10_000}, text="half", error=error))
    assert row["error"] == {"kind": "server", "message": "boom", "retryable": True}
    assert row["text"] == "half"
    assert len(row["input"]["text"]) < 600
