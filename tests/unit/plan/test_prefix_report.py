"""What prompts share, in numbers and in words; and that a server sees what was expected of it."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from tests.support.plans import plan

from batch_agent import BatchAgent, Fields, Tool
from batch_agent.core.run_reports import Finding, PrefixReport
from batch_agent.core.spec import BatchSpec
from batch_agent.observe.text.prefix import prefix_lines, prefix_outcome_line
from batch_agent.plan.layout import compute_layout, default_layout
from batch_agent.plan.prefix_report import prefix_report
from batch_agent.plan.template import template_of
from batch_agent.sim import Script, SimConfig, SimServer

LONG = "Here is all that you have to know about it. " * 40
STAMP = "Now: 2026-11-15T12:00:00Z."


def report(task: str | Fields, rows: list[Any], total: int | None = -1, **options: Any) -> PrefixReport:
    """`total`: None: as if they were read lazily."""
    template = template_of(task, rows[:1])
    layout = default_layout(template) if total is None else compute_layout(template, rows)
    rules = plan(task="{it}", **options).config
    spec = BatchSpec.of(task=task, inputs=rows, **options)
    known = rows[:1] if total is None else rows
    return prefix_report(spec, rules, layout, known, None if total is None else len(rows), None)


def test_the_shared_prefix_and_prompt_length_are_reported_in_tokens() -> None:
    found = report("x" * 396 + "{it}", ["aaaa", "bbbb", "cccc", "dddd"], system_prompt="y" * 400)
    assert (found.agents, found.shared_tokens, found.prompt_tokens) == (4, 199, 200)
    assert found.predicted == pytest.approx(3 * 796 / 3200)
    assert found.sharing == pytest.approx(3200 / (3200 - 3 * 796))
    assert (found.measured, found.is_calibrated, found.groups) == (None, False, 0)
    assert found.diverges_at == f"the field {{it}}, after {'x' * 40!r}"


def test_groups_are_counted_and_expected_to_be_found() -> None:
    rows = [{"doc": LONG + str(at // 3), "q": str(at)} for at in range(9)]
    found = report(Fields("Answer.", "q", "doc"), rows)
    assert found.groups == 3
    assert found.predicted == pytest.approx(6 / 9, abs=0.02)
    assert found.diverges_at == "the field {doc}, after 'Answer.'"


@pytest.mark.parametrize("task", ["Say {it}", Fields("Say.", "it"), Fields("Say.")])
def test_a_prefix_report_accepts_none_one_and_equal_inputs(task: str | Fields) -> None:
    assert report(task, []).agents == 0
    one = report(task, [{"it": "x"}])
    assert (one.agents, one.predicted, one.sharing) == (1, 0, 1)
    same = report(task, [{"it": "x"}] * 4)
    assert same.predicted == 0.75
    assert same.diverges_at is None
    lazy = report(task, [{"it": "x"}], None)
    assert (lazy.agents, lazy.predicted, lazy.sharing) == (None, None, None)


def test_a_prefix_report_without_any_text_is_empty() -> None:
    found = report("{it}", ["", ""])
    assert (found.predicted, found.shared_tokens, found.prompt_tokens) == (0, 0, 0)


def test_inputs_that_do_not_fit_are_left_out_of_account() -> None:
    rows: list[Any] = [{"it": "x"}, 17, {"that": "y"}, {"it": "y"}]
    found = report("Say {it}", rows)
    assert found.agents == 4
    assert found.predicted == pytest.approx(4 / 10)
    assert report("Say {it}", [{"it": "x"}, 17, 18]).agents == 3


def test_findings_are_those_of_the_prompt_and_of_the_fields() -> None:
    rows = [{"id": f"req-{at:05}", "doc": LONG + str(at % 2)} for at in range(8)]
    assert [finding.kind for finding in report("{id} {doc}", rows, system_prompt=STAMP).findings] == [
        "timestamp",
        "leading_id",
    ]
    assert report("{doc} {id}", rows).findings == ()
    assert report(Fields("Do it.", "id", "doc"), rows).findings == ()


def test_models_are_looked_at_as_dicts_are() -> None:
    class Row(BaseModel):
        id: str
        doc: str

    rows = [Row(id=f"req-{at:05}", doc=LONG + str(at % 2)) for at in range(8)]
    assert [finding.kind for finding in report("{id} {doc}", rows).findings] == ["leading_id"]


def test_strings_are_looked_at_too() -> None:
    rows = [f"You are helper number {at}. {LONG}" for at in range(8)]
    as_dicts = report("{it}", [{"it": row} for row in rows]).findings
    assert [finding.kind for finding in as_dicts] == ["system_prompt"]
    assert report("{it}", rows).findings == as_dicts


def test_tools_in_a_set_have_no_order() -> None:
    @Tool.define
    def look() -> str:
        return ""

    @Tool.define
    def find() -> str:
        return ""

    for tools, kinds in (([look, find], []), ({look, find}, ["tool_order"]), ({look}, [])):
        spec: dict[str, Any] = {"task": "{it}", "inputs": ["a", "b"], "tools": tools}
        found = asyncio.run(BatchAgent.lint(backend="vllm://127.0.0.1:1", **spec))
        assert [finding.kind for finding in found.findings] == kinds


def test_a_prefix_report_is_printed_as_text() -> None:
    found = PrefixReport(
        9, 900, 1000, "the field {a}", 3, 0.75, findings=(Finding("uuid", "There is an id.", "Leave it out."),)
    )
    assert prefix_lines(found) == [
        "Prompts: about 900 of 1,000 tokens are shared by all (90%); they diverge at the field {a}. 3 groups "
        "share more. Predicted prefix cache hits: 75% (sharing allows 4.0x).",
        "! There is an id. Leave it out.",
    ]
    assert prefix_outcome_line(found) is None


def test_after_a_run_expected_stands_against_seen() -> None:
    found = PrefixReport(9, 900, 1000, "the field {a}", 3, 0.75, 0.7, is_calibrated=True)
    line = prefix_outcome_line(found)
    assert line is not None
    assert "75% predicted" in line
    assert "70% measured" in line


def test_prompts_that_differ_in_little_are_not_said_to_be_the_same() -> None:
    found = report("x" * 400 + "{it}", ["a", "b", "c"])
    assert prefix_lines(found) != ["Prompts: identical for all agents."]
    assert prefix_lines(report("{it}", ["a", "a"])) == ["Prompts: identical for all agents."]


@pytest.fixture(scope="module")
def sim() -> Iterator[SimServer]:
    config = SimConfig(zero_latency=True, num_blocks=50_000)
    with SimServer(config, Script(answer_tokens=4, tool_turns=0)) as server:
        yield server


DOCS = [{"doc": f"{at % 7} {LONG}", "q": f"question {at}", "shop": "The shop. " * 30} for at in range(42)]
SHAPES: list[Any] = [
    (Fields("Answer with the document. One.", "q", "doc", "shop"), {}),
    ("Two. {doc} {q} {shop}", {}),
    ("Three. {q} {doc}", {}),
    ("Four. {q} {doc} {shop}", {"system_prompt": LONG * 2}),
    (Fields("Five.", "q", "doc"), {"hoist": False}),
    (Fields("Six.", "q", "doc"), {"reorder": False}),
    (f"{{doc}} Seven. {'It is to be answered in one word. ' * 40} {{q}}", {}),
]


@pytest.mark.parametrize(("task", "options"), SHAPES)
async def test_the_expected_hit_rate_equals_that_of_a_server(
    sim: SimServer, task: str | Fields, options: dict[str, Any]
) -> None:
    """But for blocks that are not full, of 16 tokens: one for each prompt."""
    options = {"task": task, "inputs": DOCS, "backend": sim.url, "max_inflight": 1, **options}
    exact = await BatchAgent.lint(exact=True, **options)
    results = await BatchAgent.run(**options)
    prefix = results.prefix
    assert prefix is not None
    assert prefix.predicted is not None
    assert exact.is_calibrated
    assert (exact.predicted, exact.prompt_tokens) == (prefix.predicted, prefix.prompt_tokens)
    used = sum(result.usage.input for result in results) / len(results)
    assert prefix.prompt_tokens == pytest.approx(used, rel=0.1)
    assert (prefix.measured or 0) == pytest.approx(prefix.predicted, abs=0.03 + 16 / used)


async def test_lint_with_a_server_asks_no_model(sim: SimServer) -> None:
    before = sim.metrics()["vllm:request_success_total"]
    found = await BatchAgent.lint(task="{it}", inputs=["a", "b"], backend=sim.url, exact=True)
    assert found.is_calibrated
    assert sim.metrics()["vllm:request_success_total"] == before
