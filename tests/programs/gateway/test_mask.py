"""What is hidden from the model, and put back in what it says."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_agent.programs.gateway.mask import Mask

# The masks are of letters that are in no other text, and none is the beginning of another one.
MASKS = ("§A", "§B", "§C")
reals = st.lists(st.text('ab/ é\\"\n1', min_size=1, max_size=6), min_size=1, max_size=3, unique=True)
json_values = st.recursive(
    st.text('ab/ é\\"\n1', max_size=20) | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab/é1", max_size=6), inner, max_size=3),
    max_leaves=6,
)


@given(reals, st.text('ab/ é\\"\n1', max_size=60))
def test_masked_strings_are_restored(hidden: list[str], text: str) -> None:
    mask = Mask(dict(zip(hidden, MASKS, strict=False)))
    assert mask.show.text(mask.hide.text(text)) == text


@given(reals, json_values, st.booleans())
def test_masked_strings_in_json_are_restored(hidden: list[str], value: object, is_ascii: bool) -> None:
    mask = Mask(dict(zip(hidden, MASKS, strict=False)))
    text = json.dumps(value, ensure_ascii=is_ascii)
    masked = mask.hide.json(text)
    assert json.loads(masked) == mask.hide.data(value)
    assert json.loads(mask.show.json(masked)) == value


@given(st.text('ab/ é\\"\n1{}[]:,', max_size=30))
def test_masked_strings_in_invalid_json_are_restored(text: str) -> None:
    mask = Mask({"ab": "§A", "/b": "§B"})
    assert mask.show.json(mask.hide.json(text)) == text


def test_the_longest_string_is_masked_first() -> None:
    mask = Mask({"/tmp/run": "/shared", "/tmp/run/agent-7": "/work"})
    assert mask.hide.text("/tmp/run/agent-7/a.py, /tmp/run/b") == "/work/a.py, /shared/b"


def test_a_mask_is_not_masked_again() -> None:
    assert Mask({"one": "two", "two": "three"}).hide.text("one two") == "two three"


def test_the_folder_of_another_agent_is_not_masked() -> None:
    mask = Mask({"/runs/1": "/work"})
    assert mask.hide.text("/runs/1/x /runs/12/x /runs/1.") == "/work/x /runs/12/x /work."
    assert mask.show.text("/work/x /workspaces -I/work/include") == "/runs/1/x /workspaces -I/runs/1/include"


def test_of_two_strings_with_one_mask_the_first_is_restored() -> None:
    mask = Mask({"/tmp/a": "/work", "/private/tmp/a": "/work"})
    assert mask.hide.text("/private/tmp/a/x /tmp/a/y") == "/work/x /work/y"
    assert mask.show.text("/work/x") == "/tmp/a/x"


def test_masking_changes_nothing_else_in_the_json() -> None:
    mask = Mask({"/runs/1": "/work"})
    assert mask.show.json('{ "b":1.0,"a" : "/work/x\\n" }') == '{ "b":1.0,"a" : "/runs/1/x\\n" }'


def test_a_restored_string_with_quotes_is_escaped_in_json() -> None:
    mask = Mask({'C:\\the "dir"': "/work"})
    assert json.loads(mask.show.json('{"path": "/work/x"}')) == {"path": 'C:\\the "dir"/x'}


def test_a_masked_path_is_restored_when_the_model_escapes_its_slashes() -> None:
    mask = Mask({"/runs/1": "/work"})
    assert json.loads(mask.show.json('{"path":"\\/work\\/x"}')) == {"path": "/runs/1/x"}


def test_a_string_is_masked_when_a_program_escapes_its_letters() -> None:
    mask = Mask({"/café/1": "/work"})
    assert json.loads(mask.hide.json('{"path": "/caf\\u00e9/1/x"}')) == {"path": "/work/x"}


@pytest.mark.parametrize("hides", [{}, {"": "/work"}, {"/runs/1": ""}])
def test_an_empty_string_masks_nothing(hides: dict[str, str]) -> None:
    mask = Mask(hides)
    assert mask.hide.text("/runs/1") == mask.show.text("/runs/1") == "/runs/1"
    assert mask.hide.json('["/runs/1"]') == '["/runs/1"]'
    assert mask.hide.data(["/runs/1"]) == ["/runs/1"]
