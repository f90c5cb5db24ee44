"""The answer is found in whatever a model puts around it, and nothing else is taken for it."""

import json
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from batch_agent.agent.answer_extraction import find_answer, fit, without_thoughts
from batch_agent.agent.output import output_type
from batch_agent.core.agent_config import InvalidOutput, OutputType


class City(BaseModel):
    name: str
    size: int = 0


class Node(BaseModel):
    value: int
    children: list["Node"] = []


class AllOptional(BaseModel):
    note: str = "made up"


class Answered(BaseModel):
    answer: str


def out(schema: Any) -> OutputType:
    output = output_type(schema)
    assert output is not None
    return output


CITY = out(City)
ROMA = City(name="Roma", size=3)
JSON = '{"name": "Roma", "size": 3}'


@pytest.mark.parametrize(
    "text",
    [
        JSON,
        f"  \n{JSON}\n\n",
        f"```json\n{JSON}\n```",
        f"```\n{JSON}\n```",
        f"```json\n{JSON}",
        f"  ```JSON\n{JSON}\n  ```",
        f"```json {JSON}```",
        f"Here you are:\n\n```json\n{JSON}\n```\nIs there anything else?",
        f"Here you are: {JSON}",
        f"{JSON} I hope this helps!",
        f"The answer is {JSON}, as [1] and {{others}} say.",
        f"Use {{braces}} and [brackets]: {JSON}",
        f"{{{JSON}}}",
        f"<think>Is it {{'name': 'Bari'}}?</think>{JSON}",
        f"<thinking>a</thinking> <reasoning>b</reasoning>\n{JSON}",
        f'so it is {{"name": "Bari"}}. </think>\n{JSON}',
        f"<think>I forgot to end this. {JSON}",
        f"{JSON}<think>done</think>",
        f'{{"name": "Bari", "size": 9}} No, rather: {JSON}',
        f'```json\n{{"name": "Bari"}}\n```\nbetter:\n```json\n{JSON}\n```',
        f'{{"name": "Bari", "size": }} Sorry: {JSON}',
        f'{JSON} and not {{"name": 5}}',
        '{"name": "Roma", "size": 3,}',
        '5" wide: {"name": "Roma", "size": 3, "list": ["a,]", 1,],}',
        "{'name': 'Roma', 'size': 3}",
        '{"name": "Roma", // the capital\n "size": 3 /* big */}',
        '```json\n{name: "Roma", size: 3,}\n```\nDone.',
        '{"name": "Roma", "size": 3',
        "```json\n{'name': 'Roma', 'size': 3\n```\nDone.",
        "Start with { as in\n```json\n{'name': 'Roma', 'size': 3}\n```\n",
        json.dumps(JSON),
        '{"answer": {"name": "Roma", "size": 3}}',
        '{"final": {"name": "Roma", "size": 3}}',
        '{"final": "{\\"name\\": \\"Roma\\", \\"size\\": 3}"}',
        f"\ufeff{JSON}",
        '{"name": "Roma", "size": 3, "more": {"name": "Bari"}}',
    ],
)
def test_a_json_object_is_found_in_a_text(text: str) -> None:
    assert find_answer(text, CITY) == ROMA


@pytest.mark.parametrize(
    ("schema", "text", "answer"),
    [
        (list[int], "[1, 2]", [1, 2]),
        (list[int], "They are [1, 2].", [1, 2]),
        (list[int], '{"answer": [1, 2]}', [1, 2]),
        (list[City], f"```json\n[{JSON}]\n```", [ROMA]),
        (int, "42", 42),
        (int, "```json\n42\n```", 42),
        (int, '{"answer": 42}', 42),
        (int, "<think>7</think> 42", 42),
        (int, "12345678901234567890123", 12345678901234567890123),
        (bool, "true", True),
        (Literal["yes", "no"], "yes", "yes"),
        (Literal["yes", "no"], '"yes"', "yes"),
        (Literal["yes", "no"], "<think>hm</think>\nyes\n", "yes"),
        (Literal["42", "43"], "42", "42"),
        (int | None, "null", None),
        (City | None, "null", None),
        (City | None, '{"answer": null}', None),
        (dict[str, Any], '{"answer": {"a": 1}}', {"answer": {"a": 1}}),
        (dict[str, Any], '{"a": NaN}', None),
        (Answered, '{"answer": "x"}', Answered(answer="x")),
        (Answered, '{"answer": {"answer": "x"}}', Answered(answer="x")),
        (City, '{"name": "<think>a</think>```{}```"}', City(name="<think>a</think>```{}```")),
        (City, 'So: {"name": "```py\\nx = {}\\n```"}', City(name="```py\nx = {}\n```")),
        (City, '{"name": "Ωμέγα 😀 \\u00e9"}', City(name="Ωμέγα 😀 é")),
        (City, '{"name": "two\nlines"}', City(name="two\nlines")),
        (AllOptional, 'See {"note": "it \\alpha {} x"}', AllOptional(note="it \\alpha {} x")),
        (AllOptional, 'So: {"note": "```py\\nx = {}\\n```"}', AllOptional(note="```py\nx = {}\n```")),
        ({"type": "object", "required": ["a"]}, 'x {"a": 1} y', {"a": 1}),
        ({"type": "array"}, "[1]", [1]),
    ],
)
def test_an_answer_of_any_type_is_found(schema: Any, text: str, answer: Any) -> None:
    found = find_answer(text, out(schema))
    if answer is None and schema == dict[str, Any]:
        assert found["a"] != found["a"]
    else:
        assert found == answer


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (City, ""),
        (City, "I do not know."),
        (City, "[]"),
        (City, "{}"),
        (AllOptional, "I cannot {do} this [really]."),
        (AllOptional, "Use { and } for braces"),
        (AllOptional, "Start with {"),
        (list[str], "[Note] I cannot do this."),
        (int, "The answer is 42."),
        (int | str | None, ""),
        (int | str | None, "<think></think>"),
        (City, '{"name": "\\ud800"}'),
        (dict[str, int], '{"a": ' + "1" * 5000 + "}"),
    ],
)
def test_a_text_without_an_answer_gives_none(schema: Any, text: str) -> None:
    with pytest.raises(InvalidOutput):
        find_answer(text, out(schema))


@pytest.mark.parametrize(
    "text",
    [
        '{"value": 1, "children": [{"value": 2, "children": []}],}',
        "{'value': 1, 'children': [{\"value\": 2, \"children\": []}]}",
        '{"value": 1, "children": [{"value": 2, "children": []}]',
    ],
)
def test_a_repaired_answer_is_preferred_to_a_part_that_fits(text: str) -> None:
    assert find_answer(text, out(Node)) == Node(value=1, children=[Node(value=2)])


@pytest.mark.parametrize(
    "text",
    [
        '{"value": oops, "child": {"value": 2}}',
        '{"child": {"value": 2}, "value": oops}',
        '{"value": "{", oops: oops, "child": {"value": 2}}',
    ],
)
def test_a_part_of_an_irreparable_answer_is_not_the_answer(text: str) -> None:
    with pytest.raises(InvalidOutput):
        find_answer(text, out(Node))
    assert find_answer(text + ' Again: {"value": 3}', out(Node)) == Node(value=3)


CUT_OFF = [
    '{"name": "Roma", "size": 3',
    '{"name": "Ro',
    '```json\n{"name": "Roma"',
    f'For example {JSON}. The answer: {{"name": "Bar',
    f'For example {JSON}. The answer: {{"name": "Bari"',
    f'For example {JSON}. The answer: {{"name": "Bari", "size": 1',
    f"For example {JSON}. The answer: {{",
    f'```json\n{JSON}\n```\nor:\n```json\n{{"name": "Bari", ',
    f"<think>Maybe {JSON}",
    f"<think>Maybe {JSON} or not",
    '[{"name": "Roma"}',
    '{"note": "{\\"name\\": \\"Roma\\"}',
    '{"list": "[1] {} ',
    "{'name': 'Roma'}",
    '{"name": "Roma",}',
    "<think>",
    "",
]


@pytest.mark.parametrize("schema", [City, dict[str, Any], AllOptional, list[Any], {}, str | None])
def test_an_answer_that_was_cut_off_is_never_taken(schema: Any) -> None:
    taken = {}
    for text in CUT_OFF:
        with suppress(InvalidOutput):
            taken[text] = find_answer(text, out(schema), is_whole=False)
    assert taken == {}


def test_a_part_of_a_cut_off_answer_is_not_the_answer() -> None:
    for text in ('{"value": 1, "children": [{"value": 2, "children": []}, {"va', '[{"value": 2}, {"value": 3}'):
        with pytest.raises(InvalidOutput):
            find_answer(text, out(Node), is_whole=False)


@pytest.mark.parametrize(("schema", "text"), [(int, "12"), (float, "1.5"), (Literal["a", "ab"], "a"), (int | str, "x")])
def test_a_truncated_word_or_number_is_not_completed(schema: Any, text: str) -> None:
    find_answer(text, out(schema))
    with pytest.raises(InvalidOutput):
        find_answer(text, out(schema), is_whole=False)


@pytest.mark.parametrize(
    "text",
    [JSON, f"Here: {JSON}", f"```json\n{JSON}\n```\nAs you can see, it is the capi", f"<think>x</think>{JSON} bec"],
)
def test_a_complete_answer_counts_even_if_the_chatter_after_it_was_cut_off(text: str) -> None:
    assert find_answer(text, CITY, is_whole=False) == ROMA


@pytest.mark.parametrize(
    ("schema", "text", "problem"),
    [
        (City, "I do not know.", "there is no complete JSON in it"),
        (City, '{"size": 1}', "name: Field required"),
        (City, '{"name": 1} or {"size": 2}', "name: Field required"),
        (Answered, '{"answer": 5}', "answer: Input should be a valid string"),
        (list[int], '{"answer": ["x"]}', "0: Input should be a valid integer"),
        (Literal["yes", "no"], "maybe", "Input should be 'yes' or 'no'"),
    ],
)
def test_the_reported_problem_is_that_of_the_most_literal_reading(schema: Any, text: str, problem: str) -> None:
    with pytest.raises(InvalidOutput) as caught:
        find_answer(text, out(schema))
    assert problem in str(caught.value)


def test_a_value_that_was_already_read_fits_as_it_is_wrapped_or_quoted() -> None:
    for value in ({"name": "Roma", "size": 3}, JSON, {"answer": {"name": "Roma", "size": 3}}):
        assert fit(value, CITY) == ROMA
    assert fit("yes", out(Literal["yes"])) == "yes"
    with pytest.raises(InvalidOutput, match="name: Field required"):
        fit({"size": 1}, CITY)


@pytest.mark.parametrize(
    ("text", "whole", "cut"),
    [
        ("plain", "plain", "plain"),
        ("<think>a</think> b", "b", "b"),
        ("<thinking>a</thinking>b<reasoning>c</reasoning>", "b", "b"),
        ("a</think>b", "b", "b"),
        ("a</reasoning>b", "b", "b"),
        ("<think>a</think>b</think>c", "c", "c"),
        ("<think>a", "a", ""),
        (" <think>\na", "a", ""),
        ("<think>a</think><think>b", "b", ""),
        ("the <think> tag", "the <think> tag", "the <think> tag"),
        ("<think>a</think>the <think> tag", "the <think> tag", "the <think> tag"),
        ("<think></think>", "", ""),
        ("", "", ""),
    ],
)
def test_reasoning_is_left_out_of_the_answer(text: str, whole: str, cut: str) -> None:
    assert without_thoughts(text) == whole
    assert without_thoughts(text, is_whole=False) == cut


@pytest.mark.parametrize("depth", [300, 10_000])
@pytest.mark.parametrize("opening", ["[", '{"a":', "{'a':", "{"])
@pytest.mark.parametrize("is_whole", [True, False])
def test_thousands_of_brackets_are_no_answer_and_raise_nothing(depth: int, opening: str, is_whole: bool) -> None:
    for text in (opening * depth, opening * depth + ("]" if opening == "[" else "}") * depth):
        with pytest.raises(InvalidOutput):
            find_answer(text, CITY, is_whole=is_whole)


UGLY = {
    "braces": "{",
    "brackets": "[",
    "lists": "[1],",
    "open lists": "[1,",
    "open objects": '{"a":',
    "broken keys": '{"a" \n',
    "strings without an end": '{"x ',
    "thoughts": "<think>",
    "ends of thoughts": "</think>",
    "other ends": "<thinking></think>",
    "fences": "```\n",
    "open fences": "```json {",
    "prose": "the {x} is [y], ",
    "code": 'if (a) { b["x"] = "y"; }\n',
}


@pytest.mark.slow
@pytest.mark.timeout(30)
@pytest.mark.parametrize("unit", UGLY.values(), ids=UGLY.keys())
@pytest.mark.parametrize("is_whole", [True, False])
def test_extraction_from_a_pathological_text_is_fast(unit: str, is_whole: bool) -> None:
    text = unit * (100_000 // len(unit))
    with pytest.raises(InvalidOutput):
        find_answer(text, CITY, is_whole=is_whole)


@pytest.mark.timeout(30)
def test_extraction_gives_up_on_a_text_of_many_broken_objects() -> None:
    with pytest.raises(InvalidOutput):
        find_answer('{"a" }\n' * 150_000, CITY)


class Refusing:
    """An output type that nothing fits, and that counts."""

    json_schema: Mapping[str, Any] = {"type": "object"}

    def __init__(self) -> None:
        self.asked = 0

    def validate(self, value: Any, agent_input: Any = None) -> Any:
        self.asked += 1
        raise InvalidOutput("no")

    def validate_json(self, text: str, agent_input: Any = None) -> Any:
        raise InvalidOutput("no")


def test_of_thousands_of_values_only_the_last_are_tried() -> None:
    output = Refusing()
    with pytest.raises(InvalidOutput):
        find_answer('{"a": 1} ' * 10_000, output)
    assert output.asked <= 200


@pytest.mark.timeout(30)
def test_a_long_answer_is_found() -> None:
    names = [f"name {number}" for number in range(100_000)]
    text = f"Here they are:\n```json\n{json.dumps(names)}\n```\n" + "And so on. " * 10_000
    assert find_answer(text, out(list[str])) == names


LONG = "12345678901234567890.1234"


class Priced(BaseModel):
    price: Decimal
    weight: float = 0
    share: Annotated[float, Field(strict=True)] = 0
    note: float | str = ""


@pytest.mark.parametrize(
    "text",
    [
        f'{{"price": {LONG}}}',
        f'```json\n{{"price": {LONG}, "weight": {LONG}}}\n```',
        f'{{"answer": {{"price": {LONG}, "note": 1.5}}}}',
        f'The price is {{"price": {LONG}, "share": 0.25,}}',
    ],
)
def test_a_decimal_has_all_digits_that_the_model_wrote(text: str) -> None:
    answer = find_answer(text, out(Priced))
    assert answer.price == Decimal(LONG)
    assert answer.weight in (0, float(LONG))
    assert answer.note in ("", 1.5)


@pytest.mark.parametrize(
    ("schema", "value"),
    [(Priced, Priced(price=Decimal(repr(float(LONG))), share=float(LONG))), ({"type": "object"}, None), (Any, None)],
)
def test_a_number_with_more_digits_than_a_float_has_is_a_plain_float_elsewhere(schema: Any, value: Any) -> None:
    found = find_answer(f'{{"price": {LONG}, "share": {LONG}}}', out(schema))
    assert found == (value or {"price": float(LONG), "share": float(LONG)})
    if isinstance(found, dict):
        assert {type(each) for each in found.values()} == {float}


def test_decimals_of_a_recursive_type_and_of_a_union_have_all_digits() -> None:
    class Tree(BaseModel):
        price: int | Decimal | None = None
        parts: list["Tree"] = []

    found = find_answer(f'{{"parts": [{{"price": {LONG}}}]}}', out(Tree))
    assert found.parts[0].price == Decimal(LONG)
