"""The catalog of published results."""

import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from benchmarks.__main__ import is_current
from benchmarks.catalog import CATALOG, GROUPS

from benchmarks import report


def test_each_file_of_results_has_its_command() -> None:
    files = {path.stem for path in report.RESULTS.glob("*.json")}
    listed = [each.result for each in CATALOG]
    assert files == set(listed)
    assert len(listed) == len(files)


def test_each_command_is_a_module_and_of_a_known_group() -> None:
    for each in CATALOG:
        assert find_spec(f"benchmarks.{each.words[0]}"), each
        assert each.group in GROUPS, each


def test_a_command_with_a_placeholder_is_left_to_its_caller() -> None:
    by_name = {each.result: each for each in CATALOG}
    assert by_name["tools"].is_complete
    assert not by_name["pools"].is_complete  # --peer DIRECTORY


def test_a_result_is_current_until_the_source_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    def commit(file: str, text: str) -> None:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
        git("add", file)
        git("commit", "-m", "A change")

    monkeypatch.setattr(report, "RESULTS", tmp_path / "benchmarks" / "results")
    git("init")
    commit("src/engine.py", "1")
    measured = report.circumstances(None)["commit"]
    commit("docs/page.md", "2")
    assert is_current(measured)
    (tmp_path / "src/engine.py").write_text("3")
    assert not is_current(measured)
    commit("src/engine.py", "3")
    assert not is_current(measured)
    assert not is_current("0000000")  # of a history that this repository does not have
    assert not is_current(None)
