"""Templates leave alone what is not theirs."""

from contextlib import suppress
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.plans import plan

from batch_agent.core.errors import ErrorKind
from batch_agent.core.images.image_format import media_type_of
from batch_agent.plan.template import BadInput, parse_template

TEXT = st.text()
BRACES = st.text(alphabet='{}:!ab ."\\\n', max_size=30)
BYTES = st.binary().filter(lambda data: media_type_of(data) is None)
"""Those of an image are one."""
NAMES = st.sampled_from(["a", "b_2", "größe", "_x"])


@given(st.text().filter(lambda task: not set(task) & set("{}")))
def test_a_template_without_braces_renders_to_itself(task: str) -> None:
    template = parse_template(task)
    assert template.fields == ()
    assert template.render({}) == task
    assert template.render("an input") == task


@given(BRACES | TEXT, BRACES | TEXT, NAMES)
def test_values_come_out_verbatim(first: str, second: str, name: str) -> None:
    task = f"<{{{name}}}|{{other}}|{{{name}}}>"
    assert parse_template(task).render({name: first, "other": second}) == f"<{first}|{second}|{first}>"


@given(BRACES, BRACES)
def test_a_value_comes_out_verbatim_from_a_template_full_of_braces(task: str, value: str) -> None:
    """Whatever the rest of the task is: put into quotes, the field is replaced by nothing but its value."""
    rendered = {text: _rendered(f'{{"{task}": "{{field}}"', text) for text in (value, "v")}
    if rendered["v"] is not None:
        assert rendered[value] == rendered["v"][:-2] + value + '"'


def _rendered(task: str, value: str) -> str | None:
    try:
        return parse_template(task).render({"field": value})
    except BadInput:
        return None


@given(BRACES | TEXT)
def test_escaped_braces_come_out_as_the_text_that_was_escaped(text: str) -> None:
    escaped = text.replace("{", "{{").replace("}", "}}")
    assert parse_template(escaped).render({}) == text


@given(TEXT, TEXT, NAMES)
def test_a_template_renders_like_str_format_where_that_is_defined(before: str, value: str, name: str) -> None:
    task = before.replace("{", "{{").replace("}", "}}") + f"{{{name}}} {{{name}!r}} {{{name}:>9}}"
    assert parse_template(task).render({name: value}) == task.format(**{name: value})


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | BYTES | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text() | st.integers() | st.none(), inner, max_size=3)
        | st.frozensets(st.integers(), max_size=3)
    ),
    max_leaves=8,
)


@given(st.text(alphabet='{}:!ab .0"\\\n%>', max_size=40), ANYTHING)
@example("{a:%}", {"a": "x"})
@example("{a!z}", {"a": "x"})
@example("{a}", {"a": "\ud800"})
def test_any_task_and_input_render_or_are_a_bad_input(task: str, value: Any) -> None:
    for given_value in (value, {"a": value}, {"a": {"b": value}}):
        with suppress(BadInput):
            parse_template(task).render(given_value).encode()


@given(ANYTHING)
def test_every_input_becomes_a_job(value: Any) -> None:
    job = plan().job(5, {"it": value})
    if _has_bytes(value):  # the task shows them
        assert job.problem is not None
        assert job.problem.kind is ErrorKind.BAD_INPUT
        assert "bytes" in job.problem.message
    else:
        assert job.problem is None
        job.task.encode()
    assert plan().job(6, {"it": value}).key == job.key
    bad = plan().job(5, {"that": value})
    assert bad.problem is not None
    assert bad.problem.kind is ErrorKind.BAD_INPUT


def _has_bytes(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_bytes, value.values()))
    return any(map(_has_bytes, value)) if isinstance(value, list) else isinstance(value, bytes)
