"""A task template replaces its fields and leaves every other brace alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel, ConfigDict

from batch_agent.core.errors import SpecError
from batch_agent.core.task_fields import Fields
from batch_agent.plan.field_checks import check_first_input, escaped_fields, resolve_uncertain_fields
from batch_agent.plan.template import BadInput, parse_template, template_of


class Color(Enum):
    RED = "red"


class Place(BaseModel):
    name: str
    tags: list[str] = []

    @property
    def size(self) -> int:
        return len(self.name)

    @property
    def broken(self) -> int:
        raise RuntimeError("no such place")


class Person(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str
    home: Place


@dataclass
class Point:
    x: int


class Pair(NamedTuple):
    left: str
    right: str


ROMA = Place(name="Roma", tags=["old"])


def render(task: str, value: Any) -> str:
    return parse_template(task).render(value)


@pytest.mark.parametrize(
    ("task", "value", "expected"),
    [
        ("Sum up: {text}", {"text": "abc"}, "Sum up: abc"),
        ("{a}{b}{a}", {"a": 1, "b": 2}, "121"),
        ("no field", {"a": 1}, "no field"),
        ("{größe} {名前}", {"größe": 1, "名前": 2}, "1 2"),
        ("{_a1}", {"_a1": "x"}, "x"),
        ("{a.b.c}", {"a": {"b": {"c": 5}}}, "5"),
        ("{a.b}", {"a.b": "the key itself", "a": {"b": "nested"}}, "the key itself"),
        ("{a.0}", {"a": {"0": "x"}}, "x"),
        ("{p:.2f} {n:>4} {n:*>4} {n:04d} {n:+d}", {"p": 1.005, "n": 7}, "1.00    7 ***7 0007 +7"),
        ("{big:,} {big:_} {big:x}", {"big": 1234567}, "1,234,567 1_234_567 12d687"),
        ("{s!r} {s!s:>3} {s!a}", {"s": "é"}, "'é'   é '\\xe9'"),
        ("{d:%d.%m.%Y}", {"d": date(2024, 2, 1)}, "01.02.2024"),
        ("{share:.0%}", {"share": 0.5}, "50%"),
        ("{tags[0]} {tags[1]!r:>5}", {"tags": ["a", "b"]}, "a   'b'"),
        ("{user[name]} {user['name']} {user[\"name\"]}", {"user": {"name": "Ann"}}, "Ann Ann Ann"),
        ("{user[home address].lines[1][zip]}", {"user": {"home address": {"lines": [0, {"zip": 5}]}}}, "5"),
        ("{by[7]} {by[a.b]}", {"by": {7: "seven", "a.b": "dotted"}}, "seven dotted"),
        ("{word[0]}", {"word": "été"}, "é"),
        ("{p.x} {pair.left} {d.year}", {"p": Point(3), "pair": Pair("a", "b"), "d": date(2024, 2, 1)}, "3 a 2024"),
        ("{place.tags[0]} {place[name]} {place.size}", {"place": ROMA}, "old Roma 4"),
        ("{größe[länge]}", {"größe": {"länge": 2}}, "2"),
        ("{x:>10000}", {"x": ""}, " " * 10_000),
    ],
)
def test_fields_are_replaced(task: str, value: Any, expected: str) -> None:
    assert render(task, value) == expected


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("{{x}} {x}", "{x} V"),
        ('{{"a": {x}}}', '{"a": V}'),
        ('Reply as {"a": 1, "b": [{}]}: {x}', 'Reply as {"a": 1, "b": [{}]}: V'),
        ('{"name": "{x}", "deep": {"k": {x}}}', '{"name": "V", "deep": {"k": V}}'),
        ('{"name": "{{x}}"}', '{"name": "{x}"}'),
        (r"\frac{1}{2} x^{2} {x}", r"\frac{1}{2} x^{2} V"),
        (r"\frac{{x}}{2}", r"\frac{x}{2}"),
        ("\\begin{{cases}} {x} \\end{{cases}} {2}", "\\begin{cases} V \\end{cases} {2}"),
        ("if (a) { return x; } // {x}", "if (a) { return x; } // V"),
        ("f = {k: v for k, v in y} {x}", "f = {k: v for k, v in y} V"),
        ("a{color:red} {x}", "a{color:red} V"),
        ("{x!z} {x}", "{x!z} V"),
        ("a } b {x}", "a } b V"),
        ("a { b {x}", "a { b V"),
        ("{} {0} {x}", "{} {0} V"),
        ("{x", "{x"),
        ("x}", "x}"),
        ("{{", "{"),
        ("{{a[0]}} {x}", "{a[0]} V"),
        ('{{a["b c"]}} {1} {x}', '{a["b c"]} {1} V'),
        ("{{x.upper()}} {{x:red}} {{x!z}} {1}", "{x.upper()} {x:red} {x!z} {1}"),
        ("{{ jinja }} {1} {x}", "{{ jinja }} {1} V"),
        ("{{ x }} {1} {x}", "{{ x }} {1} V"),
        ('{y: "a", z: \'b\'} {{y: "a"}} {x}', '{y: "a", z: \'b\'} {{y: "a"}} V'),
        ("{{{x}}}", "{V}"),
        ('{"open": {{{x}}}', '{"open": {{V}}'),
        ("{1} {{x:>4}} {{x!r}}", "{1} {x:>4} {x!r}"),
        ("100% {x} 5%", "100% V 5%"),
    ],
)
def test_json_latex_and_code_are_left_alone(task: str, expected: str) -> None:
    assert render(task, {"x": "V"}) == expected


def test_braces_inside_the_values_are_left_alone() -> None:
    assert render("{a} {b}", {"a": "{b} {{b}} {nope}", "b": "}{"}) == "{b} {{b}} {nope} }{"


def test_a_column_with_a_space_in_its_name_is_a_field_where_the_input_has_it() -> None:
    assert render("Dear {First Name}, {user-id}", {"First Name": "Ann", "user-id": 7}) == "Dear Ann, 7"
    assert render("Dear {First Name}: {x}", {"x": 1}) == "Dear {First Name}: 1"
    assert render("Dear {First Name}: {x}", "text") == "Dear {First Name}: text"


@pytest.mark.parametrize(
    "name", ["Unnamed: 0", "Col:A", "Time (h:m)", "What's up?", "Wow!", "a!r", 'Size (5")', "a:>3"]
)
def test_a_column_with_any_signs_in_its_name_is_a_field_where_the_input_has_it(name: str) -> None:
    template = resolve_uncertain_fields(parse_template("{id}: {" + name + "}"), [{"id": 1, name: "v"}])
    assert check_first_input(template, {"id": 1, name: "v"}) == []
    assert template.render({"id": 1, name: "v"}) == "1: v"


@pytest.mark.parametrize("text", ["{x: string; n: number}", "{x, y}", '{x: "a"}', "{x;}", "{x: 'a', y: 1}"])
def test_code_that_begins_with_the_name_of_a_field_is_no_field(text: str) -> None:
    template = parse_template(f"Answer with {text}. {{x}}")
    assert check_first_input(template, {"x": "V"}) == []
    assert template.render({"x": "V"}) == f"Answer with {text}. V"


@pytest.mark.parametrize(
    ("task", "found"),
    [
        ("{id} {{text}}", ["text"]),
        ("{id} {{ text }}", ["text"]),
        ("{id} {{ text }} {1}", ["text"]),
        ("{id} {text} as {{text}}", []),
        ("{id} {{other}}", []),
        ('{id} {"a": {{text}}}', ["text"]),
    ],
)
def test_a_field_that_the_task_has_only_as_text_in_braces_is_found(task: str, found: list[str]) -> None:
    assert escaped_fields(parse_template(task), ["id", "text"]) == found


def test_an_unknown_field_is_named_with_what_there_is_and_the_fix() -> None:
    with pytest.raises(BadInput) as caught:
        render("{text} {user.name}", {"text": "a", "user": {"id": 1}})
    assert str(caught.value) == (
        "The task names the field {user.name} but the input has no 'user.name' (its fields: text, user). "
        "Add the field to the input, or write {{user.name}} if the braces are meant as text."
    )


@pytest.mark.parametrize("task", ["{a}", "{a:5}", "{a!r:>3}", r"\sqrt{a} {2}", '{"x": {a:.2f}}'])
def test_the_fix_for_an_unknown_field_works(task: str) -> None:
    with pytest.raises(BadInput, match="or write ") as caught:
        render(task, {"b": 1})
    written = str(caught.value).partition("or write ")[2].partition(" if the braces")[0]
    assert render(task.replace(written[1:-1], written), {"b": 1}) == task


@pytest.mark.parametrize("value", [{"a": 1}, {"a": None}, {"a": [1]}, {"a": "text"}])
def test_a_path_that_leads_nowhere_is_an_unknown_field(value: Any) -> None:
    with pytest.raises(BadInput, match=r"names the field \{a\.b\}"):
        render("{a.b}", value)


def test_an_input_without_fields_is_a_clear_error() -> None:
    with pytest.raises(BadInput, match=r"\(its fields: none\)"):
        render("{a}", {})


def test_a_string_takes_the_place_of_the_only_field() -> None:
    assert render("{text} / {text}", "abc {text}") == "abc {text} / abc {text}"
    assert render("{a.b}", "abc") == "abc"
    assert render("the same for all", "abc") == "the same for all"
    with pytest.raises(BadInput, match=r"several fields \(\{a\}, \{b\}\): use dicts"):
        render("{a} {b} {a}", "abc")


def test_a_pydantic_input_is_read_by_its_fields() -> None:
    ann = Person.model_validate({"name": "Ann", "home": ROMA, "age": 5})
    assert render("{name} {home.name} {age}", ann) == "Ann Roma 5"
    assert render("{p.home.name}", {"p": ann}) == "Roma"
    with pytest.raises(BadInput, match=r"no 'nickname' \(its fields: name, home, age\)"):
        render("{nickname}", ann)


@pytest.mark.parametrize("value", [5, None, ["a"], b"a", date(2024, 1, 1), {"a"}, Point(1)])
def test_an_input_of_another_kind_is_refused(value: Any) -> None:
    with pytest.raises(BadInput, match=f"must be a dict, a string or a Pydantic model, not {type(value).__name__}"):
        render("{a}", value)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1.0, "1.0"),
        (True, "True"),
        (None, "None"),
        ({"k": [1, None, "é"]}, '{"k":[1,null,"é"]}'),
        ([ROMA], '[{"name":"Roma","tags":["old"]}]'),
        (ROMA, '{"name":"Roma","tags":["old"]}'),
        (Point(1), '{"x":1}'),
        ((1, 2), "[1,2]"),
        ({"b", "a", "c"}, '["a","b","c"]'),
        (MappingProxyType({"a": MappingProxyType({"b": 1})}), '{"a":{"b":1}}'),
        ({"when": datetime(2024, 1, 2, 3, tzinfo=UTC)}, '{"when":"2024-01-02T03:00:00+00:00"}'),
        ({1: {Color.RED}}, '{"1":["red"]}'),
        ({"cost": Decimal("1.10")}, '{"cost":"1.10"}'),
        (Decimal("1.10"), "1.10"),
        (Color.RED, "red"),
        (date(2024, 1, 2), "2024-01-02"),
        ([2**70], "[1180591620717411303424]"),
        ([], "[]"),
    ],
)
def test_a_value_is_shown_as_people_would_write_it(value: Any, shown: str) -> None:
    assert render("{v}", {"v": value}) == shown


def test_half_a_character_is_shown_as_a_replacement_because_it_cannot_be_sent() -> None:
    assert render("{v} é", {"v": "cut \ud83d"}) == "cut \ufffd é"
    assert render("{v}", {"v": ["cut \ud83d"]}) == '["cut \ufffd"]'
    assert render("{v}", {"v": "\ud83d\ude00"}) == "😀"


@pytest.mark.parametrize(
    ("task", "value"),
    [("{n:.2f}", "text"), ("{n:d}", 1.5), ("{n:>5}", [1]), ("{n:c}", 10**10), ("{n:d}", None)],
)
def test_a_value_that_cannot_be_shown_so_names_the_field(task: str, value: Any) -> None:
    with pytest.raises(BadInput, match=rf"^The field \{task[:-1]}\}} cannot format its {type(value).__name__}: "):
        render(task, {"n": value})


def test_a_value_that_holds_itself_is_refused() -> None:
    endless: dict[str, Any] = {}
    endless["me"] = endless
    with pytest.raises(BadInput, match=r"^The field \{me\} cannot format its dict"):
        render("{me}", endless)


def test_the_fields_of_a_task_are_listed_once_and_in_order() -> None:
    assert parse_template("{b} {a.c} {b!r:>3} {{x}}").fields == ("b", "a.c")
    assert parse_template("none {{x}}").fields == ()


def test_a_first_input_that_does_not_fit_stops_the_run() -> None:
    check_first_input(parse_template("{a}"), {"a": 1})
    with pytest.raises(SpecError, match=r"^Input 0: The task names the field \{a\}"):
        check_first_input(parse_template("{a}"), {"b": 1})


@pytest.mark.parametrize(
    ("task", "value", "meant"),
    [
        ("{tekst}", {"text": 1, "id": 2}, "text"),
        ("{user.nmae}", {"user": {"name": 1}}, "user.name"),
        ("{user[nmae]}", {"user": {"name": 1}}, "user[name]"),
        ("{Review Tekst}", {"Review Text": 1}, "Review Text"),
        ("{review text}", {"Review Text": 1}, "Review Text"),
        ("{p.xx}", {"p": Point(1), "xx": 2}, None),
        ("{tags[9]}", {"tags": [1]}, None),
        ("{tags[-1]}", {"tags": [1]}, None),
        ("{tags[x]}", {"tags": [1]}, None),
        ("{größe[länge]}", {"größe": {"breite": 2}}, None),
        ("{text.upper()} {1}", {"text": "a"}, "text"),
        ("{text|upper}", {"text": "a"}, "text"),
        ("{text:shout} {1}", {"text": "a"}, "text"),
        ("{text!z}", {"text": "a"}, "text"),
        ("{ text }", {"text": "a"}, "text"),
        ("{ text } {1}", {"text": "a"}, "text"),
    ],
)
def test_an_unknown_field_is_rejected_with_the_nearest_name_before_any_request(
    task: str, value: Any, meant: str | None
) -> None:
    with pytest.raises(SpecError, match="Input 0: The task ") as refused:
        check_first_input(parse_template(task), value)
    said = str(refused.value)
    assert (f"Did you mean {{{meant}}}?" in said) is (meant is not None)
    written = said.rpartition("rite ")[2].partition(" if the braces")[0]
    check_first_input(parse_template(task.replace(written[1:-1], written)), value)


@pytest.mark.parametrize(
    "path", ["x.__class__", "x._hidden", "x.upper", "x.__init__.__globals__", "f.__globals__", "f.__code__"]
)
def test_private_and_non_data_attributes_cannot_be_rendered(path: str) -> None:
    with pytest.raises(BadInput, match="names the field"):
        render("{" + path + "}", {"x": ROMA, "f": render})


def iter_nothing() -> Iterator[int]:
    yield from ()


def test_no_attribute_of_a_generator_a_module_or_a_class_can_be_reached() -> None:
    for value in (iter_nothing(), pytest, Place):
        for name in ("gi_frame", "gi_code", "mark", "model_fields", "fail"):
            with pytest.raises(BadInput, match="names the field"):
                render("{x." + name + "}", {"x": value})


def test_a_property_that_raises_is_that_inputs_failure() -> None:
    with pytest.raises(BadInput, match=r"\{x\.broken\} cannot be read: RuntimeError: no such place"):
        render("{x.broken}", {"x": ROMA})


def test_a_name_with_spaces_is_a_field_of_all_inputs_if_any_has_it() -> None:
    rows = [{"id": 1}, {"id": 2, "First Name": "Ann"}]
    template = resolve_uncertain_fields(parse_template("{id} {First Name} {Last Thing}"), rows)
    assert template.render(rows[1]) == "2 Ann {Last Thing}"
    with pytest.raises(BadInput, match=r"no 'First Name'"):
        template.render(rows[0])
    assert check_first_input(template, rows[1]) == ["Last Thing"]


def test_a_plain_text_takes_the_only_name_there_is() -> None:
    template = resolve_uncertain_fields(parse_template("Dear {First Name}!"), ["Ann", "Bob"])
    assert template.render("Ann") == "Dear Ann!"
    assert (
        resolve_uncertain_fields(parse_template("{First Name} {Last Name}"), ["Ann"]).render("Ann")
        == "{First Name} {Last Name}"
    )


@pytest.mark.parametrize("spec", [">9999999999", ".9999999999f", "010001", ">" + "9" * 5000, "%99999d%A"])
def test_a_width_that_would_fill_the_memory_is_refused(spec: str) -> None:
    with pytest.raises(SpecError, match="its width must be at most 10,000"):
        parse_template("{x:" + spec + "}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece", ["{a:%A", "%A", "{", "{{", "{{a", "{a[", "{a[0]", "{a.", "{a!r:", "[0]", ".a", "{a b", '{a["', "{{a b} "]
)
def test_reading_a_task_takes_time_in_proportion_to_its_length(piece: str) -> None:
    """A reading that takes the square of it would take minutes."""
    task = "{a:" + piece * (400_000 // len(piece))
    assert parse_template(task).render({"a": 1}) is not None


class Photo(BaseModel):
    data: bytes


@pytest.mark.parametrize(
    "value",
    [b"plain", b"\xff\xd8", bytearray(b"x"), memoryview(b"x"), [b"x"], {"inner": [{"data": b"x"}]}, (b"x",),
     Photo(data=b"x"), [Photo(data=b"\xff")]],
)  # fmt: skip
def test_bytes_are_refused_wherever_they_are_in_a_value(value: Any) -> None:
    for task in (parse_template("Look at {it}"), template_of(Fields("Look", "it"))):
        with pytest.raises(BadInput, match=r"\{it\}.*bytes of data\. Decode bytes before the run.*only images"):
            task.render({"it": value})


def test_an_input_that_is_bytes_is_refused_with_what_to_do() -> None:
    with pytest.raises(BadInput, match=r"not bytes\. Decode bytes before the run, as in data\.decode\('utf-8'\)"):
        parse_template("Look at {it}").render(b"text")


def test_bytes_that_the_task_does_not_show_are_accepted() -> None:
    assert parse_template("Look at {name}").render({"name": "a", "thumbnail": b"\xff"}) == "Look at a"
    assert parse_template("{it!r}").render({"it": b"\xff"}) == r"b'\xff'"
