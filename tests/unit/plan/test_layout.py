"""How tasks are laid out: what is the same for all comes first, what begins alike is asked together."""

from collections.abc import Sequence
from typing import Any

import pytest

from batch_agent.core.task_fields import Fields
from batch_agent.plan.layout import Layout, compute_layout, default_layout
from batch_agent.plan.template import BadInput, parse_template, template_of

MANUAL = "Read the manual first. " * 20
LONG = MANUAL * 4


def laid_out(task: str | Fields, rows: Sequence[Any], **options: Any) -> Layout:
    return compute_layout(template_of(task, rows[:1]), rows, **options)


def texts(layout: Layout, rows: Sequence[Any]) -> list[str]:
    return [layout.task(at, row)[0] for at, row in enumerate(rows)]


def test_a_long_constant_behind_what_varies_is_said_once_and_first() -> None:
    rows = [{"q": q, "manual": MANUAL} for q in ("one", "two")]
    layout = laid_out("Answer {q} with {manual}.", rows)
    assert layout.lead == f"manual: {MANUAL}\n\nAnswer "
    assert texts(layout, rows) == [f"{layout.lead}{q} with (see manual above)." for q in ("one", "two")]
    assert layout.varying == ("q",)


def test_a_constant_of_several_lines_has_lines_of_its_own() -> None:
    rows = [{"q": q, "manual": f"{MANUAL}\n{MANUAL}"} for q in ("one", "two")]
    assert laid_out("{q} {manual}", rows).lead == f"<manual>\n{MANUAL}\n{MANUAL}\n</manual>\n\n"


@pytest.mark.parametrize("task", ["{manual} {q}", "Say {manual}{manual}: {q}"])
def test_a_constant_in_front_stays_where_it_is(task: str) -> None:
    rows = [{"q": q, "manual": MANUAL} for q in ("one", "two")]
    layout = laid_out(task, rows)
    assert texts(layout, rows) == [parse_template(task).render(row) for row in rows]
    assert layout.lead == task.replace("{manual}", MANUAL).replace("{q}", "")


def test_a_short_constant_stays_where_it_is() -> None:
    rows = [{"q": q, "tone": "kind"} for q in ("one", "two")]
    assert texts(laid_out("{q}, be {tone}", rows), rows) == ["one, be kind", "two, be kind"]


def test_a_constant_that_stands_in_two_places_is_said_once() -> None:
    rows = [{"q": q, "manual": MANUAL} for q in ("one", "two")]
    layout = laid_out("See {manual}. {q}? {manual}", rows)
    assert layout.lead == f"manual: {MANUAL}\n\nSee (see manual above). "
    assert all(text.count(MANUAL) == 1 for text in texts(layout, rows))


def test_two_ways_to_show_a_constant_are_both_shown() -> None:
    rows = [{"q": q, "manual": f"{MANUAL}\t"} for q in ("one", "two")]
    for task in ("{q} {manual} {manual!r}", "{q} {manual!r} {manual}", "{manual} {q} {manual!r}"):
        for text in texts(laid_out(task, rows), rows):
            assert text.count(f"{MANUAL}\t") == 1
            assert text.count(repr(f"{MANUAL}\t")) == 1


def test_braces_that_are_text_are_not_taken_for_a_constant() -> None:
    note = "what a reader who knows nothing of the matter would have to be told before it makes any sense " * 3
    rows = [{"x": "1"}, {"x": "2"}]
    task = f"Solve {{x}}.\\footnote{{{note}}}"
    assert texts(laid_out(task, rows), rows) == [parse_template(task).render(row) for row in rows]


def test_fields_that_many_inputs_share_come_first() -> None:
    rows = [{"review": f"review {at}", "product": f"{LONG}{at // 2}", "shop": "ours"} for at in range(6)]
    layout = laid_out(Fields("Does it fit?", "review", "product", "shop"), rows)
    assert layout.lead == "Does it fit?\n\nshop: ours\n"
    text, shared = layout.task(3, rows[3])
    assert text == f"{layout.lead}product: {LONG}1\nreview: review 3\n"
    assert text[shared:] == "review: review 3\n"
    assert layout.varying == ("product", "review")
    assert layout.sharing is not None
    assert layout.sharing.groups == 3


def test_inputs_that_begin_alike_are_asked_together() -> None:
    rows = [{"a": a, "b": str(at)} for at, a in enumerate("xyxyx")]
    layout = laid_out("{a} {b}", rows)
    assert layout.run_order == (0, 2, 4, 1, 3)
    assert laid_out("{a} {b}", rows, reorder=False).run_order is None
    assert laid_out("{b} {a}", rows).run_order is None


def test_text_behind_what_a_group_shares_is_shared_too() -> None:
    rows = [{"product": f"product {at // 2}", "review": f"review {at}"} for at in range(4)]
    layout = laid_out(f"{{product}}\n{MANUAL}\n{{review}}", rows)
    assert layout.sharing is not None
    assert layout.sharing.shared == 2 * len(f"product 0\n{MANUAL}\n") + len(layout.lead)


def test_equal_inputs_stay_in_their_order() -> None:
    rows = [{"a": a, "b": "same"} for a in "xyxyxx"]
    order = laid_out(Fields("Do it.", "b", "a"), rows).run_order
    assert order == (0, 2, 4, 5, 1, 3)


def test_all_inputs_are_equal() -> None:
    rows = [{"a": "x"}] * 4
    for task in ("Say {a}", "Say {a} twice", Fields("Say.", "a")):
        layout = laid_out(task, rows)
        assert len(set(texts(layout, rows))) == 1
        assert texts(layout, rows)[0] == layout.lead
        assert layout.varying == ()


@pytest.mark.parametrize("rows", [[], [{"a": "x"}], [{"a": "x"}, 17, {}]])
def test_where_there_is_nothing_to_compare_tasks_are_made_as_inputs_come(rows: list[Any]) -> None:
    template = parse_template("Say {a}")
    assert compute_layout(template, rows) == default_layout(template)


def test_an_input_whose_constant_changed_since_is_rendered_as_it_is_now() -> None:
    rows = [{"q": q, "manual": MANUAL} for q in ("one", "two")]
    layout = laid_out("{q} {manual}", rows)
    rows[1]["manual"] = "new"
    assert layout.task(1, rows[1]) == ("two new", 0)


def test_a_number_that_cannot_be_shown_is_a_bad_input() -> None:
    rows: list[Any] = [{"a": "x"}, {"a": 10**5000}, {"a": "y"}]
    layout = laid_out("Say {a}", rows)
    with pytest.raises(BadInput, match="cannot format"):
        layout.task(1, rows[1])
    layout = laid_out(Fields("Say it.", "a"), rows)
    with pytest.raises(BadInput):
        layout.task(1, rows[1])


def test_an_input_that_holds_itself_is_a_bad_input() -> None:
    endless: list[Any] = []
    endless.append(endless)
    rows: list[Any] = [{"a": "x"}, {"a": endless}, {"a": "y"}]
    laid_out("Say {a}", rows)
    laid_out(Fields("Say it.", "a"), rows)


def test_an_input_beyond_those_that_were_laid_out_has_a_task_too() -> None:
    rows = [{"a": a, "b": "same"} for a in "xxy"]
    for task in ("{b} {a}", Fields("Do it.", "a", "b")):
        layout = laid_out(task, rows)
        text, shared = layout.task(5, {"a": "new", "b": "same"})
        assert "new" in text
        assert "same" in text
        assert shared <= len(text)
