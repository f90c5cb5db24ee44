"""An answer is found in any wrapping; what was cut off or broken never becomes one."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from batch_agent.agent.action_mode import FinalAction, read_action
from batch_agent.agent.answer_extraction import find_answer, readings, without_thoughts
from batch_agent.agent.output import output_type
from batch_agent.core.agent_config import InvalidOutput, OutputType
from batch_agent.core.messages import ToolCall


def made(schema: Any) -> OutputType:
    output = output_type(schema)
    assert output is not None
    return output


WRAPPED = made({"type": "object", "required": ["v"]})
LIST = made({"type": "array"})
ANYTHING = made({})

TEXT = st.text() | st.text(alphabet="{}[]\"\\`\n:,'#/ab", max_size=12)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=10
)
CONTAINERS = JSON.filter(lambda value: isinstance(value, dict | list))
OBJECTS = JSON.map(lambda value: {"v": value})
LAYOUTS = st.builds(
    lambda ascii, indent: {"ensure_ascii": ascii, "indent": indent}, st.booleans(), st.sampled_from([None, 2])
)
PROSE = st.text(alphabet="abc .,:;!?-()'*#\nÄ😀", max_size=30)
FENCES = st.sampled_from(["\n```json\n{}\n```\n", "\n```\n{}\n```\n", "\n```json\n{}", " {} ", "\n{}\n"])


@given(value=OBJECTS, layout=LAYOUTS, before=PROSE, after=PROSE, fence=FENCES)
@example(value={"v": "```"}, layout={}, before="x", after="", fence="\n```json\n{}\n```\n")
def test_an_object_is_found_in_fences_and_prose(
    value: Any, layout: dict[str, Any], before: str, after: str, fence: str
) -> None:
    body = json.dumps(value, **layout)
    text = before + fence.replace("{}", body) + ("" if fence.endswith("{}") else after)
    assert find_answer(text, WRAPPED) == value


@given(value=JSON.filter(lambda value: isinstance(value, list)), layout=LAYOUTS, before=PROSE, after=PROSE)
def test_a_list_is_found_in_prose(value: Any, layout: dict[str, Any], before: str, after: str) -> None:
    assert find_answer(before + " " + json.dumps(value, **layout) + " " + after, LIST) == value


@example(value=-(2**63) - 1, layout={})
@given(value=JSON, layout=LAYOUTS)
def test_a_text_that_is_one_json_value_is_found(value: Any, layout: dict[str, Any]) -> None:
    text = json.dumps(value, **layout)
    assume(not isinstance(value, dict) or list(value) not in (["answer"], ["final"]))
    for said in (text, f" \n{text}\n", f"<think>hm {{}}</think>{text}", f"hm [] </think>\n{text}"):
        assert find_answer(said, ANYTHING) == value


@given(value=JSON)
def test_a_quoted_object_is_an_object(value: Any) -> None:
    assert find_answer(json.dumps(json.dumps({"v": value})), WRAPPED) == {"v": value}


@pytest.mark.slow
@given(values=st.lists(OBJECTS, min_size=1, max_size=4), between=PROSE)
def test_of_several_objects_the_last_that_fits_is_the_answer(values: list[Any], between: str) -> None:
    text = between.join(f" {json.dumps(value)} " for value in values) + ' {"not": "this"}'
    assert find_answer(text, WRAPPED) == values[-1]


@given(value=CONTAINERS, layout=LAYOUTS, before=PROSE, data=st.data())
def test_a_truncated_value_is_never_an_answer(
    value: Any, layout: dict[str, Any], before: str, data: st.DataObject
) -> None:
    text = json.dumps(value, **layout)
    cut = before + text[: data.draw(st.integers(1, len(text) - 1))]
    for schema in (ANYTHING, WRAPPED, LIST):
        with pytest.raises(InvalidOutput):
            find_answer(cut, schema, is_whole=False)
    with pytest.raises(InvalidOutput):
        read_action(cut, "id", is_whole=False)


@given(value=CONTAINERS, layout=LAYOUTS, before=PROSE, after=PROSE)
def test_a_complete_answer_counts_when_the_prose_after_it_was_cut_off(
    value: Any, layout: dict[str, Any], before: str, after: str
) -> None:
    assume(not isinstance(value, dict) or list(value) not in (["answer"], ["final"]))
    assert find_answer(f"{before} {json.dumps(value, **layout)} {after}", ANYTHING, is_whole=False) == value


NASTY = st.text(alphabet="{}[]\"\\`\n:,'#/*<think>01-eENaIu\ud800 ", max_size=60) | st.text(st.characters())


@pytest.mark.slow
@given(text=NASTY, is_whole=st.booleans())
@example("[" * 5000, True)
@example('{"a":' * 5000, True)
@example('{"n": ' + "1" * 5000 + "}", False)
@example("```" * 5000, True)
def test_any_text_gives_an_answer_or_an_invalid_output_error(text: str, is_whole: bool) -> None:
    for schema in (WRAPPED, ANYTHING, made(int), made(list[str]), made(dict[str, int] | None)):
        with suppress(InvalidOutput):
            find_answer(text, schema, is_whole=is_whole)
    with suppress(InvalidOutput):
        assert isinstance(read_action(text, "id", is_whole=is_whole), ToolCall | FinalAction)
    list(readings(text, is_whole=is_whole))


@given(text=NASTY)
def test_removing_reasoning_leaves_the_rest_of_a_text_unchanged(text: str) -> None:
    left = without_thoughts(text, is_whole=False)
    assert left == left.strip()
    assert without_thoughts(left, is_whole=False) == left


@given(value=OBJECTS, layout=LAYOUTS, before=PROSE, after=PROSE)
@example(value={"v": 'return {"a": x["b"], "c": "it"}'}, layout={}, before="", after="")
def test_a_trailing_comma_is_repaired(value: Any, layout: dict[str, Any], before: str, after: str) -> None:
    broken = json.dumps(value, **layout)[:-1].rstrip() + ",\n}"
    assert find_answer(f"{before} {broken} {after}", WRAPPED) == value
    assert find_answer(f"{before}\n```json\n{broken}\n```\n{after}", WRAPPED) == value


@given(value=OBJECTS, layout=LAYOUTS, before=PROSE)
@example(value={"v": 'return {"a": x["b"], "c": "it"}'}, layout={}, before="")
@example(value={"v": {"```": None}}, layout={}, before="")
def test_missing_closing_brackets_are_repaired(value: Any, layout: dict[str, Any], before: str) -> None:
    broken = json.dumps(value, **layout).rstrip("]} \n")
    assume(not broken.endswith(("[", "{")))
    assert find_answer(f"{before} {broken}", WRAPPED) == value
    assert find_answer(f"{before}\n```json\n{broken}\n```", WRAPPED) == value
