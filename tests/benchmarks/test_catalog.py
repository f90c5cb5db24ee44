"""The catalog of published results."""

import argparse
import importlib
import pkgutil
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from benchmarks.__main__ import commits_of, is_current
from benchmarks.catalog import CATALOG, GROUPS, Published

import benchmarks
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


def test_the_commits_of_a_result_include_those_of_its_older_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    published = Published("peers", "peers", "peers")
    assert commits_of(published) == [None]
    report.write("peers", {"parts": {"lag": {}}}, tmp_path / "peers.json", commit="first")
    parts = report.parts_before(tmp_path / "peers.json") | {"start": {}}
    report.write("peers", {"parts": parts}, tmp_path / "peers.json", commit="second")
    assert commits_of(published) == ["second", "first"]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # libraries of peers that are installed here may be deprecated
def test_each_module_is_imported() -> None:
    elsewhere = set()
    for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            elsewhere.add(str(error.name).partition(".")[0])
    assert not elsewhere & {"batch_agent", "batch_agent_vllm", "benchmarks", "tests"}  # peers have their environments


@pytest.mark.slow
def test_each_command_knows_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no parser is not called: it would measure."""
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", _parse_only)
    for each in CATALOG:
        name, path = _module(each.words[0])
        if "parse_args()" in path.read_text():
            monkeypatch.setattr(sys, "argv", each.words)
            monkeypatch.delitem(sys.modules, name, raising=False)
            with pytest.raises(_ParsedError):
                runpy.run_module(name, run_name="__main__")


def _module(command: str) -> tuple[str, Path]:
    found = find_spec(f"benchmarks.{command}")
    if found is not None and found.submodule_search_locations:
        found = find_spec(f"benchmarks.{command}.__main__")
    assert found is not None, command
    assert found.origin is not None, command
    return found.name, Path(found.origin)


class _ParsedError(Exception):
    """Instead of the measurement."""


def _parse_only(parser: argparse.ArgumentParser) -> argparse.Namespace:
    _, unknown = parser.parse_known_args()
    assert not unknown
    assert parser.format_help()
    raise _ParsedError
