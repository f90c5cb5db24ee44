import time
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from batch_agent.plan.chunks import TextField, longest_text, merge_task, part_task, split, with_text

PARAGRAPH = "One sentence is here. Another one follows it.\n\n"


def test_a_text_that_fits_is_one_part() -> None:
    assert split("short", 5) == ["short"]
    assert split("", 5) == [""]


def test_chapters_are_cut_apart_before_sections_and_sections_before_paragraphs() -> None:
    chapters = ["# One\n" + PARAGRAPH * 3, "# Two\n" + PARAGRAPH, "# Three\n## First\n" + PARAGRAPH * 2]
    assert split("".join(chapters), len(chapters[0])) == chapters
    sections = ["# Long\n" + PARAGRAPH, "## One\n" + PARAGRAPH * 2, "## Two\n" + PARAGRAPH * 2]
    assert split("".join(sections), 110) == sections


def test_code_is_cut_between_definitions_and_never_behind_a_decorator() -> None:
    functions = [f"@cached\n@named({n})\ndef f{n}() -> None:\n    x = {n}\n\n    return\n\n\n" for n in range(4)]
    classes = [f"class C{n}:\n    def method(self) -> None:\n        pass\n\n\n" for n in range(3)]
    code = "".join(functions + classes)
    for part in split(code, 150):
        assert part.startswith(("@cached\n@named", "class C"))


@pytest.mark.parametrize(
    ("text", "most", "ending"),
    [
        (PARAGRAPH * 20, 100, "\n\n"),
        ("a line of words without an end\n" * 20, 100, "\n"),
        ("A sentence of words. " * 20, 50, ". "),
        ("这是一个句子。" * 20, 20, "。"),
        ("word " * 40, 23, " "),
    ],
)
def test_parts_end_where_the_largest_structure_does(text: str, most: int, ending: str) -> None:
    parts = split(text, most)
    assert all(part.endswith(ending) for part in parts)
    assert len(parts) > 2


def test_only_the_paragraph_that_is_too_long_is_cut_finer() -> None:
    before, after = PARAGRAPH * 4, PARAGRAPH * 5
    parts = split(before + "word " * 90 + "\n\n" + after, 260)
    assert parts[0] == before
    assert parts[-1] == after


def test_a_better_place_to_cut_is_worth_parts_that_are_a_little_less_equal() -> None:
    first, second = "# One\n" + PARAGRAPH * 9, "# Two\n" + PARAGRAPH * 12
    assert split(first + second, 700) == [first, second]


def test_parts_are_about_equal() -> None:
    lengths = [len(part) for part in split(PARAGRAPH * 101, 2000)]
    assert max(lengths) - min(lengths) <= 2 * len(PARAGRAPH)
    assert len(lengths) == 3


def test_what_has_no_structure_is_cut_anywhere_but_not_inside_a_character() -> None:
    assert [len(part) for part in split("x" * 100, 30)] == [25] * 4
    halves = "\ud83d\ude00" * 9
    assert all(part.startswith("\ud83d") and part.endswith("\ude00") for part in split(halves, 5))


def test_a_limit_below_two_characters_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        split("abc", 1)


@pytest.mark.parametrize("text", ["x" * 2_000_000, "@a\n" * 200_000, "\n" * 300_000, ". " * 300_000, "# a\n" * 300_000])
def test_a_text_of_megabytes_is_cut_in_a_moment(text: str) -> None:
    began = time.process_time()
    assert "".join(split(text, 50_000)) == text
    assert time.process_time() - began < 20  # most of it for a busy machine: quadratic ways take minutes


class Doc(BaseModel):
    title: str
    body: str


class Case(BaseModel):
    number: int
    doc: Doc


@dataclass
class Odd:
    text: str


@pytest.mark.parametrize(
    ("value", "fields", "found"),
    [
        ("whole", ("it",), TextField("whole")),
        ({"a": "short", "b": "longer", "c": "not used by the task"}, ("a", "b"), TextField("longer", ("b",))),
        ({"a.b": "literal", "a": {"b": "nested"}}, ("a.b",), TextField("literal", ("a.b",))),
        ({"a": {"b": "nested"}}, ("a.b",), TextField("nested", ("a", "b"))),
        (
            Case(number=1, doc=Doc(title="t", body="the body")),
            ("number", "doc.body"),
            TextField("the body", ("doc", "body")),
        ),
        ({"a": 7, "b": ["x"]}, ("a", "b", "missing"), None),
        ({"a": "x"}, ("a.deeper",), None),
        (Odd("x"), ("text",), None),
    ],
)
def test_the_longest_text_that_the_task_uses_is_the_one_to_cut(
    value: Any, fields: tuple[str, ...], found: TextField | None
) -> None:
    assert longest_text(value, fields) == found


def test_an_input_gets_another_text_in_its_place_and_stays_as_it_was() -> None:
    case = Case(number=1, doc=Doc(title="t", body="long"))
    assert with_text("long", (), "part") == "part"
    assert with_text({"a": {"b": "long", "c": 1}}, ("a", "b"), "part") == {"a": {"b": "part", "c": 1}}
    assert with_text(case, ("doc", "body"), "part") == Case(number=1, doc=Doc(title="t", body="part"))
    assert case.doc.body == "long"


def test_a_part_is_told_which_one_it_is_behind_what_all_parts_share() -> None:
    task = part_task("Sum up: text", 2, 5)
    assert task.startswith("Sum up: text")
    assert "part 2 of 5" in task


def test_answers_are_merged_as_json_in_order() -> None:
    task = merge_task("Sum up: [given in 2 parts]", 2, [Doc(title="a", body="é"), {"x": {1}}])
    assert task.index('"title": "a"') < task.index('"x": [')
    assert "é" in task
    assert "split into 2 parts" in task
    assert "one for each part" in task
    assert "several that follow each other" in merge_task("t", 5, ["a", "b"])
