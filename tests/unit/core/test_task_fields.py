"""A task whose fields are named and may be ordered."""

import pickle
from typing import Any

import pytest
from pydantic import BaseModel

from batch_agent import Fields
from batch_agent.core.errors import SpecError
from batch_agent.core.spec import BatchSpec
from batch_agent.plan.template import parse_template, template_of


@pytest.mark.parametrize("instruction", ["", "  \n", None, 17, ["a"]])
def test_fields_begin_with_the_instruction(instruction: Any) -> None:
    with pytest.raises(SpecError, match="needs an instruction first"):
        Fields(instruction, "a")


@pytest.mark.parametrize("name", ["", None, 1, ["a", "b"]])
def test_a_field_name_must_be_a_string(name: Any) -> None:
    with pytest.raises(SpecError, match="must be a non-empty string"):
        Fields("Do it.", name)


def test_a_repeated_field_name_is_rejected() -> None:
    with pytest.raises(SpecError, match="twice: a, b, a"):
        Fields("Do it.", "a", "b", "a")


def test_fields_are_comparable_and_hashable() -> None:
    fields = Fields("Do it.", "a", "b")
    assert fields == Fields("Do it.", "a", "b") != Fields("Do it.", "b", "a")
    assert hash(fields) == hash(Fields("Do it.", "a", "b"))
    assert pickle.loads(pickle.dumps(fields)) == fields
    assert BatchSpec.of(task=fields, inputs=[]).task is fields
    with pytest.raises(AttributeError):
        fields.instruction = "Do more."  # type: ignore[misc]


def test_the_text_of_fields_is_the_task_with_the_fields_in_order() -> None:
    fields = Fields('Like {"this": {x}}', "a", "b")
    assert parse_template(str(fields)).render({"a": 1, "b": 2}) == 'Like {"this": {x}}\n\na: 1\nb: 2'


@pytest.mark.parametrize("instruction", ["Do it.", "Use {braces}.", '{"a": "{b}"}', "{{a}}", "{", "\\frac{a}{b}"])
def test_the_instruction_of_fields_is_not_a_template(instruction: str) -> None:
    for name in ("a", "First Name"):
        text = template_of(Fields(instruction, name)).render({name: "x"})
        assert text == f"{instruction}\n\n{name}: x\n"


def test_given_field_names_are_kept() -> None:
    assert Fields("Do it.", "a").named(["b"]) == Fields("Do it.", "a")
    assert Fields("Do it.").named(["b", "c"]) == Fields("Do it.", "b", "c")


def test_without_names_all_fields_of_the_first_input_are_shown() -> None:
    class Pair(BaseModel):
        x: int
        y: str

    task = Fields("Do it.")
    assert template_of(task, [{"b": 1, "a": 2}]).render({"a": 3, "b": 4, "c": 5}) == "Do it.\n\nb: 4\na: 3\n"
    assert template_of(task, [Pair(x=1, y="z")]).render(Pair(x=1, y="z")) == "Do it.\n\nx: 1\ny: z\n"
    assert template_of(task, ["text"]).render("text") == "Do it.\n\ninput: text\n"
    assert template_of(task).render({"a": 1}) == "Do it.\n\n"


def test_a_multi_line_value_is_enclosed_in_tags() -> None:
    text = template_of(Fields("Do it.", "a")).render({"a": "one\ntwo"})
    assert text == "Do it.\n\n<a>\none\ntwo\n</a>\n"
