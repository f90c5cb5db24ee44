"""Rules of the tree: module names, class names, folder sizes and import circles.

`python -m scripts.code_structure --list` prints what there is.
"""

import pytest
from scripts.code_structure import NOUNS_IN_ED, NOUNS_IN_ING, Source, is_participle, strong_components

MAX_MODULES_IN_A_FOLDER = 20


@pytest.fixture(scope="module")
def source() -> Source:
    return Source()


def without_package(name: str) -> str:
    return name.removeprefix("batch_agent.")


@pytest.mark.slow
def test_no_module_is_named_by_a_gerund_or_participle(source: Source) -> None:
    assert {without_package(name) for name in source.participle_names()} == set()


@pytest.mark.slow
def test_no_public_class_name_is_defined_twice(source: Source) -> None:
    assert source.repeated_classes() == {}


@pytest.mark.slow
def test_no_folder_has_more_than_20_modules(source: Source) -> None:
    large = {folder: count for folder, count in source.folders().items() if count > MAX_MODULES_IN_A_FOLDER}
    assert large == {}


@pytest.mark.slow
def test_there_is_no_import_circle(source: Source) -> None:
    assert source.circles() == []


@pytest.mark.slow
def test_nothing_imports_in_a_circle_at_import_time(source: Source) -> None:
    assert source.circles(["top"]) == []


@pytest.mark.parametrize("stem", ["reading", "copy_listing", "asked", "told", "calls_made", "batched"])
def test_a_gerund_or_participle_is_found_in_the_last_part_of_a_name(stem: str) -> None:
    assert is_participle(stem)


@pytest.mark.parametrize("stem", ["circuit_breaker", "shared_store", "speed", "copy_seed", "routing", "string"])
def test_a_noun_is_not_taken_for_a_participle(stem: str) -> None:
    assert not is_participle(stem)


def test_every_exception_of_a_name_has_an_ending_that_needs_one() -> None:
    assert all(name.endswith("ing") and reason for name, reason in NOUNS_IN_ING.items())
    assert all(name.endswith("ed") for name in NOUNS_IN_ED)


def test_circles_that_share_a_module_are_one() -> None:
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d", "f"}, "f": set[str]()}
    assert sorted(map(sorted, strong_components(edges))) == [["a", "b", "c"], ["d", "e"], ["f"]]
    edges["e"].add("a")
    assert sorted(map(sorted, strong_components(edges))) == [["a", "b", "c", "d", "e"], ["f"]]
