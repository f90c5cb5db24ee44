"""Whatever the texts and the rows are: findings are made without fail, few, short, and the same each time."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_agent.core.messages import ToolSpec
from batch_agent.plan.lint import MAX_FINDINGS, find_prefix_breaks

KINDS = {
    *("timestamp", "uuid", "leading_id", "unordered"),
    *("system_prompt", "session_header", "tool_order", "near_duplicate"),
}
PIECES = st.sampled_from(
    [
        *("Today is ", "2026-10-01", "T", " ", "12:34:56", "Z", "now: ", "ts=", "1790857234", "Oct", "1", ", "),
        *("3f2a9c1d-77b0-4e21-9c0a-1b5d8e6f7a90", "session: ", "x-session-id: ", "x-a-header: ", "9f8c2b7a6d5e4f30"),
        *("```", "\n", "\n\n", "e.g. ", "example", '"', "٣", "²", "\ud800", "\0"),
    ]
)
TEXTS = st.text() | st.lists(PIECES, max_size=12).map("".join)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.binary() | st.datetimes() | st.uuids()
HASHABLE = st.integers() | st.text() | st.booleans()
VALUES = st.recursive(
    SCALARS | st.frozensets(HASHABLE, max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(HASHABLE, inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["id", "system", "a.b", "", "text"])
ROWS = st.lists(st.dictionaries(NAMES, VALUES), max_size=8)
ALIKE = st.tuples(VALUES, VALUES, st.integers(1, 300)).map(
    lambda drawn: [{"id": at, "system": drawn[at % 2], "a": {"b": drawn[0]}} for at in range(drawn[2])]
)
TOOLS = st.lists(st.builds(ToolSpec, TEXTS, TEXTS, st.just({})), max_size=3)


@pytest.mark.slow
@given(TEXTS, TEXTS, TOOLS, ROWS | ALIKE, st.lists(NAMES, unique=True), st.booleans(), st.booleans())
def test_lint_findings_are_few_short_and_deterministic(
    system: str,
    lead: str,
    tools: list[ToolSpec],
    rows: list[dict[str, Any]],
    order: list[str],
    unordered: bool,
    keeps: bool,
) -> None:
    found, again = (
        find_prefix_breaks(system, lead, tools, rows, order, unordered_tools=unordered, keeps_preamble=keeps)
        for _ in "12"
    )
    assert found == again
    assert len(found) <= MAX_FINDINGS
    assert len(set(found)) == len(found)
    assert {finding.kind for finding in found} <= KINDS
    for finding in found:
        assert len(finding.message) < 600
        assert finding.advice
        str(finding).encode()


@given(TEXTS)
def test_findings_about_the_task_do_not_depend_on_the_rows(text: str) -> None:
    rows = [{"a": text, "b": at} for at in range(3)]
    alone = find_prefix_breaks(text, text, (), (), ())
    assert find_prefix_breaks(text, text, (), rows, ("b", "a"))[: len(alone)] == alone
