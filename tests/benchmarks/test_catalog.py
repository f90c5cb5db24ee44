"""The catalog of published results."""

from importlib.util import find_spec

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
