"""Whatever the task and the inputs are: nothing of them is lost, and what is said to be shared is shared."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import date, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, create_model

from batch_agent.core.task_fields import Fields
from batch_agent.plan.layout import Layout, compute_layout
from batch_agent.plan.template import BadInput, Template, block, parse_template, template_of

LONG = "The same for all, and long enough to be worth its way to the front. " * 4
NAMES = ("a", "b", "c", "größe")
ODD = ("First Name", "a.b", "x-y", "1", "{", "</a>", "instruction", " ", "a\nb", "ü😀")
values = st.sampled_from(
    ["", "x", "y", "xx", "{a}", "a: x\n", "x\n</a>\n<b>", LONG, f"{LONG}.", "1\n2", "(see a above)"]
)
any_values = (
    values
    | st.text(max_size=5)
    | st.integers()
    | st.dates()
    | st.lists(st.integers(), max_size=2)
    | st.none()
    | st.just(date(2026, 1, 1))
)
flags = st.booleans()


def rows_of(names: Sequence[str], values: st.SearchStrategy[Any] = any_values) -> st.SearchStrategy[list[Any]]:
    """Some with a column that is the same in all of them."""
    row = st.fixed_dictionaries(dict.fromkeys(names, values))
    rows = st.lists(row, max_size=7)
    constant = st.dictionaries(st.sampled_from(list(names)), values, max_size=len(names))
    return st.builds(lambda rows, same: [{**row, **same} for row in rows], rows, constant)


tasks = st.lists(
    st.sampled_from([*(f"{{{name}}}" for name in NAMES), "{a!r}", "{b:>5}", "{b!s:.3}", "{{a}}", "Say ", "\n", LONG]),
    max_size=7,
).map("".join)


def asked_order(layout: Layout, rows: Sequence[Any]) -> Sequence[int]:
    return range(len(rows)) if layout.run_order is None else layout.run_order


def check(layout: Layout, rows: Sequence[Any]) -> list[str]:
    """What is true of every layout; returns the tasks by row."""
    assert sorted(asked_order(layout, rows)) == list(range(len(rows)))
    tasks = [layout.task(at, row) for at, row in enumerate(rows)]
    begins = Counter[str]()
    for text, shared in tasks:
        assert text.startswith(layout.lead)
        assert len(layout.lead) <= shared <= len(text)
        begins[text[:shared]] += 1
    for text, shared in tasks:
        assert shared == len(layout.lead) or begins[text[:shared]] > 1
    texts = [text for text, _ in tasks]
    if layout.sharing is not None:
        assert layout.sharing.rows == len(rows)
        assert layout.sharing.total == sum(map(len, texts))
        assert layout.sharing.shared <= best_shared(texts)
    return texts


def in_common(one: str, other: str) -> int:
    return next((at for at, (x, y) in enumerate(zip(one, other, strict=False)) if x != y), min(len(one), len(other)))


def best_shared(texts: list[str]) -> int:
    """What tasks share with the one before them in the order of the alphabet, which no other order exceeds."""
    return sum(in_common(one, other) for one, other in pairwise(sorted(texts)))


@given(tasks, rows_of(NAMES), flags, flags)
def test_a_task_template_keeps_all_of_its_fields_in_order(
    task: str, rows: list[dict[str, Any]], hoist: bool, reorder: bool
) -> None:
    template = parse_template(task)
    rows = [row for row in rows if fits(template, row)]
    layout = compute_layout(template, rows, hoist=hoist, reorder=reorder)
    texts = check(layout, rows)
    for row, text in zip(rows, texts, strict=True):
        assert unhoisted(template, row, text) == template.render(row)


def fits(template: Template, row: Any) -> bool:
    try:
        template.cells(row)
    except BadInput:
        return False
    return True


def unhoisted(template: Template, row: Any, text: str) -> str:
    """The task as it would be with nothing moved: every block at the front goes back to where it is mentioned. Each
    must be there once, and every mention must have its block."""
    cells = list(zip(template.cell_names, template.cells(row), strict=True))
    moved: dict[str, str] = {}
    is_found = True
    while is_found:
        is_found = False
        for name, cell in cells:
            front = f"{block(name, cell)}\n"
            if name not in moved and len(cell) >= 200 and text.startswith(front) and f"(see {name} above)" in text:
                text, moved[name], is_found = text[len(front) :], cell, True
    pieces = iter(cells)
    end = 0
    for part in template.parts:
        name, cell = ("", part) if isinstance(part, str) else next(pieces)
        mention = f"(see {name} above)"
        if cell == moved.get(name) and text.startswith(mention, end):
            text = text[:end] + cell + text[end + len(mention) :]
        end += len(cell)
    return text


@given(tasks, rows_of(NAMES))
def test_a_task_without_movable_fields_is_rendered_unchanged(task: str, rows: list[dict[str, Any]]) -> None:
    template = parse_template(task)
    rows = [row for row in rows if fits(template, row)]
    layout = compute_layout(template, rows, hoist=False, reorder=False)
    assert [layout.task(at, row)[0] for at, row in enumerate(rows)] == [template.render(row) for row in rows]
    assert layout.run_order is None


@given(rows_of(NAMES), flags, flags)
@example([dict.fromkeys(NAMES, "x")] * 3, True, True)
@example([dict.fromkeys(NAMES, "")] * 3, True, True)
@example([{name: f"{at % 2}{name}" for name in NAMES} for at in range(5)], False, True)
def test_every_free_field_is_rendered_once(rows: list[dict[str, Any]], hoist: bool, reorder: bool) -> None:
    check_fields(NAMES, rows, hoist, reorder)


@given(rows_of(ODD, values), flags, flags)
def test_field_names_may_be_any_text(rows: list[dict[str, Any]], hoist: bool, reorder: bool) -> None:
    check_fields(ODD, rows, hoist, reorder)


def check_fields(names: Sequence[str], rows: list[dict[str, Any]], hoist: bool, reorder: bool) -> None:
    instruction = "Which {one} is it?"
    template = template_of(Fields(instruction, *names))
    layout = compute_layout(template, rows, hoist=hoist, reorder=reorder)
    for row, text in zip(rows, check(layout, rows), strict=True):
        start = f"{instruction}\n\n"
        assert text.startswith(start)
        blocks = template.cells(row)
        assert is_made_of(text[len(start) :], Counter(blocks))


def is_made_of(text: str, blocks: Counter[str]) -> bool:
    """Whether the text is these blocks in some order. One block may begin like another, so all ways are tried."""
    if not blocks.total():
        return text == ""
    return any(
        text.startswith(each) and is_made_of(text[len(each) :], blocks - Counter([each])) for each in list(blocks)
    )


@given(rows_of(("a", "b"), values), st.lists(st.integers(0, 6), max_size=3), flags)
def test_invalid_inputs_do_not_change_the_layout_of_other_inputs(
    rows: list[dict[str, Any]], places: list[int], is_free: bool
) -> None:
    template = template_of(Fields("Do it.", "a", "b") if is_free else "{a} and {b}")
    mixed: list[Any] = list(rows)
    for place in places:
        mixed.insert(place, {"a": "only"} if place % 2 else 17)
    layout, alone = compute_layout(template, mixed), compute_layout(template, rows)
    assert sorted(asked_order(layout, mixed)) == list(range(len(mixed)))
    good = [at for at, row in enumerate(mixed) if fits(template, row)]
    assert [layout.task(at, mixed[at]) for at in good] == [alone.task(at, row) for at, row in enumerate(rows)]
    order = [mixed[at] for at in asked_order(layout, mixed) if at in good]
    assert order == [rows[at] for at in asked_order(alone, rows)]
    for at in set(range(len(mixed))) - set(good):
        with suppress(BadInput):
            raise AssertionError(layout.task(at, mixed[at]))


class Model(BaseModel):
    a: str
    b: Any


@given(rows_of(("a", "b"), values), flags)
def test_a_pydantic_input_is_laid_out_like_its_dict(rows: list[dict[str, Any]], is_free: bool) -> None:
    template = template_of(Fields("Do it.", "a", "b") if is_free else "{a} and {b} of {b}")
    layout = compute_layout(template, rows)
    models = compute_layout(template, [Model(**row) for row in rows])
    assert models == layout


@given(
    st.lists(values, max_size=6),
    st.sampled_from(["{it}", f"{{it}}{LONG}{{it}}", Fields("Do it."), Fields("Do.", "it")]),
)
def test_string_inputs_are_laid_out_as_the_only_field(texts: list[str], task: str | Fields) -> None:
    template = template_of(task, texts[:1])
    layout = compute_layout(template, texts)
    tasks = check(layout, texts) if texts else []
    assert all(text in task for text, task in zip(texts, tasks, strict=True))


@given(rows_of(("a", "b"), values), st.data(), flags)
def test_an_input_changed_after_the_layout_is_still_rendered_whole(
    rows: list[dict[str, Any]], data: st.DataObject, is_free: bool
) -> None:
    template = template_of(Fields("Do it.", "a", "b") if is_free else "{a}|{b}")
    layout = compute_layout(template, rows)
    for at in range(len(rows)):
        changed = {"a": data.draw(values), "b": data.draw(values)}
        text, _ = layout.task(at, changed)
        cells = template.cells(changed)
        if is_free:
            assert is_made_of(text.removeprefix("Do it.\n\n"), Counter(cells))
        else:
            assert unhoisted(template, changed, text) == template.render(changed)


half_characters = st.text(st.sampled_from("ab\ud83d\ude00\n"), max_size=4)


@given(
    rows_of(("a", "b"), half_characters), st.sampled_from(["{a}{b}", "\ud83d{a}", Fields("Do it.", "a", "b")]), flags
)
def test_lone_surrogates_do_not_break_the_layout(rows: list[dict[str, Any]], task: str | Fields, reorder: bool) -> None:
    template = template_of(task)
    layout = compute_layout(template, rows, reorder=reorder)
    for at, row in enumerate(rows):
        text, shared = layout.task(at, row)
        text.encode()
        assert sorted(text) == sorted(template.render(row)) or not isinstance(task, str)
        assert shared <= len(text)


@given(st.lists(st.dates(date(2026, 1, 1), date(2026, 1, 3)), max_size=5), st.sampled_from(["{d:%Y}|{d}|{n.m.d:%d}"]))
def test_dates_and_nested_paths_are_laid_out(days: list[date], task: str) -> None:
    inner = create_model("inner", d=(date, ...))
    rows = [{"d": day, "n": {"m": inner(d=day + timedelta(1))}} for day in days]
    template = parse_template(task)
    texts = check(compute_layout(template, rows), rows)
    assert texts == [f"{day:%Y}|{day}|{day + timedelta(1):%d}" for day in days]


@given(rows_of(("a", "b"), values), flags, flags)
def test_a_layout_is_deterministic(rows: list[dict[str, Any]], hoist: bool, reorder: bool) -> None:
    template = template_of(Fields("Do it.", "a", "b"))
    make: Callable[[], Layout] = lambda: compute_layout(template, rows, hoist=hoist, reorder=reorder)  # noqa: E731
    assert make() == make()


@pytest.mark.slow
@given(rows_of(NAMES, values))
def test_free_fields_share_no_less_than_they_would_as_named(rows: list[dict[str, Any]]) -> None:
    template = template_of(Fields("Do it.", *NAMES))
    best = compute_layout(template, rows).sharing
    as_named = compute_layout(template, rows, hoist=False, reorder=False).sharing
    if best is not None and as_named is not None:
        assert best.shared >= as_named.shared
        assert best.total == as_named.total
