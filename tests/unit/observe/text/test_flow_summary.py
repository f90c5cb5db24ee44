"""What is said of a flow at its end."""

import re
from dataclasses import replace
from typing import Any

from batch_agent.core.errors import ErrorKind
from batch_agent.core.events import (
    AgentFinished,
    AgentStarted,
    BudgetReported,
    FlowStarted,
    ItemQueued,
    RunStarted,
    StageEvent,
    ToolsUsed,
)
from batch_agent.core.requests import Usage
from batch_agent.core.results import AgentError, AgentResult, CallRecord, ToolUse
from batch_agent.data.results import Results, StageReport
from batch_agent.flows import Flow
from batch_agent.flows.result import FlowResult
from batch_agent.flows.summary import flow_summary_lines
from batch_agent.observe.live.state import LiveState
from batch_agent.observe.text.flow_summary import partial_flow_summary_lines
from batch_agent.testing import ScriptedBackend, say

TIMEOUT = AgentError(ErrorKind.AGENT_TIMEOUT, "too slow " * 100)


def answered(index: int, usage: Usage = Usage(1000, 500, 100)) -> AgentResult:  # noqa: B008 - it is frozen
    return AgentResult(index, f"k{index}", usage=usage)


def failed(index: int, error: AgentError = TIMEOUT) -> AgentResult:
    return AgentResult(index, f"k{index}", error=error)


def report(name: str, *results: AgentResult, **more: Any) -> StageReport:
    return StageReport(name, "vllm", "m", Results(results), **more)


def test_each_stage_has_a_line_and_all_have_one() -> None:
    called = replace(answered(1), tool_calls=(CallRecord("look", "{}", True, 0.1),) * 2)
    stages = {
        "map": report("map", answered(0), called, failed(2), cost=0.5, seconds=61.0, skipped=1),
        "judge": StageReport("judge", "openai", "large", Results([answered(0, Usage(10, 0, 2))]), cost=0.25, seconds=2),
    }
    assert flow_summary_lines(FlowResult((), stages), 75.0)[:3] == [
        "map: 2 of 3 agents answered, 1 failed in 1 min 01 s (m on vllm); 1 item skipped; 2 tool calls; "
        "2,000 tokens in (50% cached), 200 out; $0.5000.",
        "judge: 1 of 1 agent answered in 2 s (large on openai); 10 tokens in, 2 out; $0.2500.",
        "Total: 1 min 15 s; 2,010 tokens in (50% cached), 202 out; $0.7500.",
    ]


def test_unknown_figures_are_left_out_of_a_flow_summary() -> None:
    priced = report("map", answered(0, Usage()), cost=0.5)
    lines = flow_summary_lines(FlowResult((), {"map": priced, "all": report("all", answered(0, Usage()))}), 3.0)
    assert lines == [
        "map: 1 of 1 agent answered in 0 s (m on vllm); $0.5000.",
        "all: 1 of 1 agent answered in 0 s (m on vllm).",
        "Total: 3 s.",
    ]


def test_a_stage_to_which_nothing_came_and_one_that_is_alone_are_said_as_they_are() -> None:
    assert flow_summary_lines(FlowResult((), {"map": report("map")}), 1.0) == ["map: no inputs."]


def test_failures_are_counted_by_stage_and_kind_the_most_frequent_first() -> None:
    refused = [AgentError(ErrorKind.REFUSED, why) for why in ("no", "never")]
    stages = {
        "map": report("map", failed(0), failed(1, refused[0]), failed(2, refused[1])),
        "all": report("all", failed(0)),
    }
    lines = flow_summary_lines(FlowResult((), stages), 1.0)[3:]
    assert lines[0] == "map failed, refused: 2. Example: no"
    assert lines[1].startswith("map failed, agent_timeout: 1. Example: too slow ")
    assert lines[2].startswith("all failed, agent_timeout: 1. ")
    assert max(map(len, lines)) < 400


def test_a_flow_that_was_stopped_is_told_as_far_as_it_came() -> None:
    state = LiveState()
    state.emit(FlowStarted(("map", "all")))
    for stage, total in (("map", 1200), ("all", None)):
        state.emit(StageEvent(stage, RunStarted("vllm", "m", 8, total)))
    state.emit(StageEvent("map", AgentStarted("k0", 0)))
    state.emit(StageEvent("map", AgentFinished(answered(0), resumed=False)))
    for index in (1, 2):
        state.emit(StageEvent("map", AgentFinished(failed(index), resumed=False)))
    assert partial_flow_summary_lines(state, 5.0)[:3] == [
        "map: 1 of 1,200 agents answered, 2 failed (m on vllm); 1,000 tokens in (50% cached), 100 out.",
        "all: 0 answered (m on vllm).",
        "Total: 5 s; 1,000 tokens in (50% cached), 100 out.",
    ]
    assert partial_flow_summary_lines(state, 5.0)[3].startswith("map failed, agent_timeout: 2. Example: too slow ")
    state.emit(StageEvent("all", ItemQueued()))
    assert "all: 0 of 1 agent answered (m on vllm)." in partial_flow_summary_lines(state, 5.0)


def test_a_flow_summary_has_shared_and_spent_totals() -> None:
    state = LiveState()
    state.emit(FlowStarted(("map", "all")))
    state.emit(StageEvent("map", RunStarted("vllm", "m", 8, 1)))
    calls = tuple(CallRecord("look", "{}", True, 2.0, "shared" if n > 1 else "executed") for n in range(9))
    state.emit(StageEvent("map", AgentFinished(replace(answered(0), tool_calls=calls), resumed=False)))
    state.emit(ToolsUsed((ToolUse("look", 9, executed=2, shared=7, seconds_saved=14.0),), Usage(50, 0, 5)))
    state.emit(BudgetReported(1200, 0.75))
    assert partial_flow_summary_lines(state, 5.0)[2:] == [
        "Total: 5 s; 1,050 tokens in (48% cached), 105 out; $0.7500.",
        "Tool calls: 9, 2 of them executed, 7 shared (14 s of tool time saved).",
    ]


def test_what_the_budget_of_a_flow_counts_beyond_its_answers_is_shown_apart_from_their_cost() -> None:
    state = LiveState()
    state.emit(FlowStarted(("map", "all")))
    for stage in ("map", "all"):
        state.emit(StageEvent(stage, RunStarted("vllm", "m", 8, 1, prices=(1.0, 1.0, 2.0))))
    state.emit(StageEvent("map", AgentFinished(answered(0), resumed=True)))
    state.emit(BudgetReported(1200, 0.25))
    assert partial_flow_summary_lines(state, 5.0)[0].endswith("1,000 tokens in (50% cached), 100 out; $0.0012.")
    assert partial_flow_summary_lines(state, 5.0)[2] == (
        "Total: 5 s; 1,000 tokens in (50% cached), 100 out; $0.0012; "
        "the budget counts $0.2488 more for requests without an answer, which may have cost less."
    )
    state.emit(BudgetReported(1200, 0.0012))
    assert partial_flow_summary_lines(state, 5.0)[2].endswith("100 out; $0.0012.")


def test_the_summary_of_a_flow_stopped_before_its_start_is_short() -> None:
    assert partial_flow_summary_lines(LiveState(), 5.0) == ["Total: 5 s."]


async def test_the_lines_of_a_real_flow_name_its_stages_their_model_and_their_tokens() -> None:
    backend = ScriptedBackend(lambda request: say("fine", Usage(100, 0, 10)))
    flow = Flow(["a", "b"], backend=backend, prices={"scripted": (1.0, 1.0, 1.0)}).map("review", "Review {it}")
    outcome = await flow.reduce("report", "Sum up {n}.").run()
    assert [re.sub(r"answered in \d+ s", "answered in _ s", line) for line in flow_summary_lines(outcome, 1.0)] == [
        "review: 2 of 2 agents answered in _ s (scripted on scripted); 200 tokens in, 20 out; $0.0002.",
        "report: 1 of 1 agent answered in _ s (scripted on scripted); 100 tokens in, 10 out; $0.0001.",
        "Total: 1 s; 300 tokens in, 30 out; $0.0003.",
    ]
