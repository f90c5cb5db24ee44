"""From a function's hints and docstring to what the model reads, and from what the model writes to arguments."""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Union

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from batch_agent import SpecError, Tool
from batch_agent.tools.parameters import BadArguments
from batch_agent.tools.parameters.function_signature import Arguments, describe, read_parameters


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Place(BaseModel):
    town: str
    zip: int = 0


@dataclass
class Point:
    x: float
    y: float = 0.0


class Options(TypedDict):
    deep: bool


def arguments_of(function: Callable[..., Any]) -> Arguments:
    return Arguments("f", read_parameters(function, "f"))


def properties(function: Callable[..., Any]) -> Any:
    return arguments_of(function).schema["properties"]


def test_plain_parameter_types_are_described() -> None:
    def f(a: str, b: int, c: float, d: bool, e: list[str], g: dict[str, int], h: Any, i) -> None:  # type: ignore[no-untyped-def]
        pass

    assert arguments_of(f).schema == {
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "b": {"type": "integer"},
            "c": {"type": "number"},
            "d": {"type": "boolean"},
            "e": {"type": "array", "items": {"type": "string"}},
            "g": {"type": "object", "additionalProperties": {"type": "integer"}},
            "h": {},
            "i": {},
        },
        "required": ["a", "b", "c", "d", "e", "g", "h", "i"],
        "additionalProperties": False,
    }


def test_optional_union_and_literal_types_and_defaults_are_described() -> None:
    def f(
        a: Optional[int],  # noqa: UP045
        b: Union[int, str],  # noqa: UP007
        c: int | None = None,
        d: Literal["x", "y"] = "x",
        e: Sequence[int] = (),
    ) -> None:
        pass

    schema = arguments_of(f).schema
    assert schema["properties"]["a"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert schema["properties"]["b"] == {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert schema["properties"]["c"] == {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}
    assert schema["properties"]["d"] == {"enum": ["x", "y"], "type": "string", "default": "x"}
    assert schema["properties"]["e"]["default"] == []
    assert schema["required"] == ["a", "b"]


def test_enums_dataclasses_models_and_typed_dicts_arrive_as_what_they_are() -> None:
    def f(colour: Colour, point: Point, place: Place, options: Options, day: date) -> None:
        pass

    read = arguments_of(f).read(
        '{"colour": "red", "point": {"x": 1}, "place": {"town": "Ulm"}, "options": {"deep": true}, "day": "2024-02-29"}'
    )
    assert read == {
        "colour": Colour.RED,
        "point": Point(1.0),
        "place": Place(town="Ulm"),
        "options": {"deep": True},
        "day": date(2024, 2, 29),
    }


def test_annotated_hints_describe_and_constrain() -> None:
    def f(a: Annotated[int, Field(description="how many", ge=1)], b: Annotated[str, "a note"] = "x") -> None:
        pass

    assert properties(f)["a"] == {"description": "how many", "minimum": 1, "type": "integer"}
    with pytest.raises(BadArguments, match="a: Input should be greater than or equal to 1"):
        arguments_of(f).read('{"a": 0}')


@pytest.mark.parametrize(
    "doc",
    [
        "Find it.\n\nArgs:\n    q: what to find\n    n: how many\n\nReturns:\n    it\n",
        "Find it.\n\n:param q: what to find\n:param n: how many\n:returns: it\n",
        "Find it.\n\nParameters\n----------\nq : str\n    what to find\nn : int\n    how many\n",
    ],
    ids=["google", "sphinx", "numpy"],
)
def test_a_docstring_says_what_the_tool_and_its_arguments_are_for(doc: str) -> None:
    def f(q: str, n: int = 3) -> None:
        pass

    f.__doc__ = doc
    assert describe(f) == "Find it."
    assert properties(f) == {
        "q": {"description": "what to find", "type": "string"},
        "n": {"default": 3, "description": "how many", "type": "integer"},
    }


def test_a_docstring_may_say_more_than_one_line() -> None:
    def f() -> None:
        """Find it.

        Looks everywhere, also
        under the sofa.
        """

    assert describe(f) == "Find it.\nLooks everywhere, also\nunder the sofa."


@given(st.text())
def test_no_docstring_is_too_odd(doc: str) -> None:
    def f(q: str) -> None:
        pass

    f.__doc__ = doc
    assert isinstance(describe(f), str)
    assert arguments_of(f).read('{"q": "x"}') == {"q": "x"}


def test_parameters_may_have_names_that_pydantic_keeps_for_itself() -> None:
    def f(schema: str, self_: int, _x: int, model_config: str, copy: str, field_0: str, class_: str = "c") -> None:
        pass

    arguments = arguments_of(f)
    names = ["schema", "self_", "_x", "model_config", "copy", "field_0", "class_"]
    assert list(arguments.schema["properties"]) == names
    sent = {"schema": "s", "self_": 1, "_x": 2, "model_config": "m", "copy": "c", "field_0": "f"}
    assert arguments.read(json.dumps(sent)) == {**sent, "class_": "c"}


def test_a_property_called_title_is_kept_and_generated_titles_are_not() -> None:
    class Book(BaseModel):
        title: str

    def f(title: str, book: Book) -> None:
        pass

    schema = arguments_of(f).schema
    assert schema["properties"]["title"] == {"type": "string"}
    assert "title" not in schema
    assert schema["$defs"]["Book"]["properties"] == {"title": {"type": "string"}}


def test_a_function_without_parameters_takes_an_empty_object() -> None:
    arguments = arguments_of(lambda: None)
    assert arguments.schema == {"type": "object", "properties": {}, "additionalProperties": False}
    assert arguments.read("{}") == {}


def star_args(*args: int) -> None: ...
def star_kwargs(**kwargs: int) -> None: ...
def positional_only(a: int, /) -> None: ...


@pytest.mark.parametrize("function", [star_args, star_kwargs, positional_only])
def test_parameters_that_a_model_cannot_name_are_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(SpecError, match="use ordinary parameters"):
        Tool.define(function)


def _with_default(hint: Any, default: Any) -> Callable[..., Any]:
    def f(a: Any = default) -> None:
        pass

    f.__annotations__["a"] = hint
    return f


def test_a_definition_that_is_repeated_shares_its_schema() -> None:
    assert arguments_of(_with_default(int, 1)).schema is arguments_of(_with_default(int, 1)).schema


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((int | str, 0), (str | int, 0)),
        ((Literal["a", "b"], "a"), (Literal["b", "a"], "a")),
        ((float, 1), (float, True)),
        ((int, 1), (int, 2)),
        ((str, "a"), (Annotated[str, Field(max_length=3)], "a")),
    ],
)
def test_definitions_that_differ_in_types_or_defaults_have_schemas_of_their_own(
    one: tuple[Any, Any], other: tuple[Any, Any]
) -> None:
    schemas = [arguments_of(_with_default(*each)).schema for each in (one, other)]
    assert json.dumps(schemas[0]) != json.dumps(schemas[1])


def test_a_default_that_cannot_be_hashed_is_used() -> None:
    arguments = arguments_of(_with_default(list[int], [1]))
    assert arguments.read("{}") == {"a": [1]}


def test_a_type_that_json_cannot_carry_is_refused() -> None:
    class Odd:
        pass

    def f(odd: Odd) -> None:
        pass

    with pytest.raises(SpecError, match="Tool 'f'"):
        Tool.define(f)


def test_a_type_without_a_json_schema_is_refused() -> None:
    def f(callback: Callable[[int], int]) -> None:
        pass

    with pytest.raises(SpecError, match="Tool 'f'"):
        Tool.define(f)


def test_a_hint_that_means_nothing_is_refused_by_name() -> None:
    def f(a: "Missing") -> None:  # type: ignore[name-defined]  # noqa: F821
        pass

    with pytest.raises(SpecError, match="'Missing' is not defined"):
        Tool.define(f)


def test_a_hint_that_is_no_python_is_refused() -> None:
    def f(a: "list[") -> None:  # type: ignore[valid-type]  # noqa: F722
        pass

    with pytest.raises(SpecError, match="Tool 'f'"):
        Tool.define(f)


def test_a_default_that_json_cannot_carry_still_works_as_a_default() -> None:
    marker = Path("/somewhere")

    def f(folder: Path = marker, odd: Any = object) -> None:
        pass

    arguments = arguments_of(f)
    assert arguments.read("{}") == {"folder": marker, "odd": object}
    json.dumps(arguments.schema)


def test_a_mutable_default_is_not_shared_between_calls() -> None:
    def f(found: list[int] = []) -> None:  # noqa: B006
        pass

    arguments = arguments_of(f)
    arguments.read("{}")["found"].append(1)
    assert arguments.read("{}") == {"found": []}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("{'q': 1}", "not valid JSON"),
        ("[1]", "must be one JSON object, not list"),
        ('"q"', "must be one JSON object, not str"),
        ("null", "must be one JSON object, not NoneType"),
        ("{}", "q: Field required"),
        ('{"q": "x", "n": "many"}', "n: Input should be a valid integer"),
        ('{"q": "x", "N": 3}', "N: Extra inputs are not permitted"),
        ('{"q": null}', "q: Input should be a valid string"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_in_words_for_the_model(text: str, words: str) -> None:
    def f(q: str, n: int = 3) -> None:
        pass

    with pytest.raises(BadArguments, match=words):
        arguments_of(f).read(text)


def test_numbers_in_quotes_are_understood() -> None:
    def f(n: int, x: float, yes: bool) -> None:
        pass

    assert arguments_of(f).read('{"n": "3", "x": "1.5", "yes": "true"}') == {"n": 3, "x": 1.5, "yes": True}


def test_methods_partials_and_callable_objects_can_be_tools() -> None:
    class Library:
        def find(self, q: str) -> str:
            """Find a book."""
            return q

        def __call__(self, q: str, n: int = 2) -> str:
            """Ask the library."""
            return q * n

    def repeat(q: str, n: int) -> str:
        """Say it again."""
        return q * n

    library = Library()
    assert list(properties(library.find)) == ["q"]
    assert list(properties(library)) == ["q", "n"]
    assert properties(library)["n"]["type"] == "integer"
    tool = Tool.define(functools.partial(repeat, n=3))
    assert (tool.name, tool.description) == ("repeat", "Say it again.")
    assert Tool.define(library).description == "Ask the library."
    assert tool.spec.parameters["properties"] == {"q": {"type": "string"}}  # what is bound is nobody else's business


def test_a_method_without_an_instance_is_refused() -> None:
    class Library:
        def find(self, q: str) -> str:
            """Find a book."""
            return q

    with pytest.raises(SpecError, match="Tool 'find': it has no instance"):
        Tool.define(Library.find)


@pytest.mark.parametrize("value", [3, "text", int, Place, None, object()])
def test_an_object_that_is_not_callable_is_not_a_tool(value: Any) -> None:
    from batch_agent.tools import as_tool

    with pytest.raises(SpecError, match="tools must be functions"):
        as_tool(value)


def test_a_builtin_without_a_signature_is_refused() -> None:
    with pytest.raises(SpecError):
        Tool.define(dict.fromkeys)
    with pytest.raises(SpecError):
        Tool.define(getattr)


def test_nested_types_keep_their_definitions() -> None:
    def f(places: Mapping[str, list[Place]]) -> None:
        pass

    schema = arguments_of(f).schema
    assert schema["properties"]["places"]["additionalProperties"] == {
        "type": "array",
        "items": {"$ref": "#/$defs/Place"},
    }
    assert schema["$defs"]["Place"]["required"] == ["town"]
