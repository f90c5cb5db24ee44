"""A plan, an agent for each of its items, and one answer of all of theirs."""

import json
import re
from typing import Any

import pytest
from pydantic import BaseModel, RootModel
from tests.support.engine_harness import now
from tests.support.flow_harness import entries, prompts, saying

from batch_agent import AgentResult, BatchAgent, SpecError
from batch_agent.testing import ScriptedBackend


class Section(BaseModel):
    title: str
    pages: int = 1


class Plan(BaseModel):
    why: str = ""
    items: list[Section]


class Titles(RootModel[list[str]]):
    pass


async def run(backend: ScriptedBackend, **options: Any) -> Any:
    usual: dict[str, Any] = {
        "plan_prompt": "Plan {topic}",
        "plan_inputs": {"topic": "x"},
        "plan_output_schema": list[str],
        "task": "Do {item}",
        "reduce": "Sum up {n}",
        "backend": backend,
    }
    return await BatchAgent.run_with_map_reduce(**{**usual, **options})


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (list[str], {"answer": ["a", "b"]}),
        (dict[str, list[str]], {"items": ["a", "b"]}),
        (Titles, {"answer": ["a", "b"]}),
        (set[str], {"answer": ["b", "a"]}),
    ],
    ids=["list", "dict", "root model", "set"],
)
async def test_a_plan_may_be_a_list_in_any_form(schema: Any, said: Any) -> None:
    backend = ScriptedBackend(saying({"Plan": said, "Sum": "all"}))
    results, summary = await run(backend, plan_output_schema=schema)
    assert sorted(result.input["item"] for result in results) == ["a", "b"]
    assert summary == "all"
    assert list(results.stages) == ["plan", "map", "reduce"]


async def test_items_may_be_models_whose_fields_the_task_names() -> None:
    plan = {"items": [{"title": "a", "pages": 2}, {"title": "b"}]}
    backend = ScriptedBackend(saying({"Plan": plan}))
    results, _ = await run(backend, plan_output_schema=Plan, task="Write {item.title}, {item.pages} pages, as {index}")
    assert prompts(backend, beginning="Write") == ["Write a, 2 pages, as 0", "Write b, 1 pages, as 1"]
    assert [result.index for result in results] == [0, 1]
    [prompt] = prompts(backend, beginning="Sum up 2")
    assert entries(prompt)[1] == {
        "status": "ok",
        "index": 1,
        "input": {"topic": "x", "item": {"title": "b", "pages": 1}, "index": 1},
        "output": "ok",
    }


async def test_the_reduce_prompt_has_the_plan_before_the_results() -> None:
    plan = {"items": [{"title": "a", "pages": 2}], "why": "because"}
    backend = ScriptedBackend(saying({"Plan": plan}))
    await run(backend, plan_output_schema=Plan)
    [prompt] = prompts(backend, beginning="Sum up 1\n\nPlanner output:\n")
    said, _, results = prompt.partition("Planner output:\n")[2].partition("\n\nResults:\n")
    assert json.loads(said) == plan
    assert [entry["index"] for entry in json.loads(results)] == [0]


async def test_the_reduce_task_may_say_where_the_plan_is_inserted() -> None:
    backend = ScriptedBackend(saying({"Plan": {"answer": ["a", "b"]}}))
    await run(backend, reduce="Sum up {results} of {plan} please")
    [prompt] = prompts(backend, beginning="Sum up [")
    assert prompt.endswith('of ["a","b"] please')


async def test_with_several_plans_none_is_shown_and_indices_name_the_plan_of_an_item() -> None:
    backend = ScriptedBackend(saying({"Plan": {"answer": ["a", "b"]}}))
    await run(backend, plan_inputs=[{"topic": "x"}, {"topic": "y"}])
    [prompt] = prompts(backend, beginning="Sum up 4")
    assert "Planner output" not in prompt
    assert [entry["index"] for entry in entries(prompt)] == ["0.0", "0.1", "1.0", "1.1"]
    with pytest.raises(SpecError, match=r"uses the field \{plan\}"):
        await run(backend, plan_inputs=[{"topic": "x"}, {"topic": "y"}], reduce="Sum up {plan}")


async def test_a_plan_too_long_for_the_reduce_prompt_is_cut_with_a_note() -> None:
    items = [f"item {number} " + "x" * 500 for number in range(20)]
    backend = ScriptedBackend(saying({"Plan": {"answer": items}}), context_tokens=4_000)
    results, _ = await run(backend, max_tokens=100)
    assert len(results) == 20
    sums = prompts(backend, beginning="Sum")
    assert len(sums) == 1
    for prompt in sums:
        assert re.search(r"\.\.\. \[cut: [\d,]+ of 1\d,\d{3} bytes left out\]", prompt)


@pytest.mark.parametrize(
    ("inputs", "asked"),
    [
        (None, ["Plan"]),
        ({"topic": "x"}, ["Plan x"]),
        ("x", ["Plan x"]),
        (Section(title="x"), ["Plan x"]),
        ([{"topic": "x"}, {"topic": "y"}], ["Plan x", "Plan y"]),
        (iter(["x", "y"]), ["Plan x", "Plan y"]),
    ],
    ids=["nothing", "fields", "text", "model", "list", "iterator"],
)
async def test_a_plan_is_made_once_or_for_each_of_several_inputs(inputs: Any, asked: list[str]) -> None:
    backend = ScriptedBackend(saying({"Plan": {"answer": ["a", "b"]}}))
    prompt = "Plan" if inputs is None else "Plan {title}" if isinstance(inputs, Section) else "Plan {topic}"
    results, _ = await run(backend, plan_prompt=prompt, plan_inputs=inputs)
    assert prompts(backend, beginning="Plan") == asked
    assert [result.input["item"] for result in results] == ["a", "b"] * len(asked)
    assert len(prompts(backend, beginning=f"Sum up {2 * len(asked)}\n")) == 1


async def test_planner_workers_and_reduce_have_separate_models_and_options() -> None:
    heard: list[AgentResult] = []
    backend = ScriptedBackend(saying({"Plan": {"answer": ["a"]}}))
    await run(
        backend,
        model="any",
        planner_model="wise",
        worker_model="quick",
        reducer_model="wordy",
        plan_options={"temperature": 0.9},
        on_result=heard.append,
    )
    assert [request.model for request in backend.requests] == ["wise", "quick", "wordy"]
    assert [request.sampling.temperature for request in backend.requests] == [0.9, None, None]
    assert [result.input["item"] for result in heard] == ["a"]


async def test_items_of_one_plan_are_processed_while_another_plan_is_made() -> None:
    backend = ScriptedBackend(saying({"Plan": {"answer": ["a"]}}), seconds=1.0)
    await run(backend, plan_inputs=[{"topic": "x"}, {"topic": "y"}], max_inflight=1)
    assert [prompt.split()[0] for prompt in prompts(backend)] == ["Plan", "Plan", "Do", "Do", "Sum"]
    assert now() == 5


async def test_a_plan_is_not_repeated_in_every_entry_of_the_reduce() -> None:
    items = [f"item {number} " + "x" * 50 for number in range(50)]
    backend = ScriptedBackend(saying({"Plan": {"answer": items}}))
    await run(backend)
    [prompt] = prompts(backend, beginning="Sum")
    assert len(prompt) < 50 * 210
