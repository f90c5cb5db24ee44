"""Flows whose results are all in their checkpoints: they need no server. Real (simulated) servers, which are gone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from tests.support.event_list import EventList
from tests.support.flow_harness import joining, prompts, saying

from batch_agent import BackendError, BatchAgent, Flow, Tool
from batch_agent.core.events import AgentFinished, FlowStarted, StageEvent
from batch_agent.core.results import AgentResult
from batch_agent.flows.result import FlowResult, Item
from batch_agent.sim import Script, SimConfig, SimServer
from batch_agent.testing import ScriptedBackend, say

NOBODY = "http://127.0.0.1:1"
ITS = [{"it": str(number)} for number in range(6)]


@pytest.fixture
def sim() -> Iterator[SimServer]:
    with SimServer(SimConfig(step_base_ms=1), Script(answer_tokens=12)) as server:
        yield server


def flow(backend: Any, folder: Path, inputs: Any = ITS, **options: Any) -> Flow:
    begun = Flow(inputs, backend=backend, checkpoint_dir=folder, **options).map("a", "Review {it}")
    return (
        begun.expand("part", lambda item: [item["it"], "x"]).map("b", "Check {part} of {a}").reduce("all", "Join {n}")
    )


def told(outcome: FlowResult) -> Any:
    results = {name: [(each.key, each.output) for each in stage.results] for name, stage in outcome.stages.items()}
    return [item.fields for item in outcome.items], results


@pytest.mark.parametrize("kind", ["list", "iterator"])
async def test_a_finished_flow_needs_no_server(sim: SimServer, tmp_path: Path, kind: str) -> None:
    inputs: Any = iter(ITS) if kind == "iterator" else ITS
    first = await flow(sim.url, tmp_path, inputs).run()
    inputs = iter(ITS) if kind == "iterator" else ITS
    again = await flow(NOBODY, tmp_path, inputs).run()
    assert told(again) == told(first)
    assert again.stages["b"].model == first.stages["b"].model
    assert told(await flow(NOBODY, tmp_path).run()) == told(first)  # reading it takes nothing away


@pytest.mark.slow
async def test_a_partial_reduce_of_a_finished_flow_uses_the_recorded_token_counts(tmp_path: Path) -> None:
    inputs = [{"it": f"{number} {'word ' * 40}"} for number in range(40)]
    with SimServer(SimConfig(step_base_ms=1, max_model_len=1300), Script(answer_tokens=12)) as sim:
        first = await flow(sim.url, tmp_path, inputs, max_tokens=64).run()
    assert len(first.stages["all"].results) > 1
    again = await flow(NOBODY, tmp_path, inputs, max_tokens=64).run()
    assert told(again) == told(first)


async def test_an_unfinished_flow_needs_its_server(sim: SimServer, tmp_path: Path) -> None:
    await flow(sim.url, tmp_path).run()
    more = [*ITS, {"it": "new"}]
    with pytest.raises(BackendError):
        await flow(NOBODY, tmp_path, more).run()
    before = sim.metrics()["vllm:request_success_total"]
    outcome = await flow(sim.url, tmp_path, more).run()
    assert len(outcome.stages["a"].results) == 7
    assert sim.metrics()["vllm:request_success_total"] == before + 4
    assert told(await flow(NOBODY, tmp_path, more).run()) == told(outcome)


async def test_functions_of_a_flow_are_called_once_per_item_finished_or_not(tmp_path: Path) -> None:
    backend = ScriptedBackend(saying({"A": "same", "Join": "joined"}))
    calls: list[str] = []

    def first_only(item: Item) -> bool:
        """As people drop what they have seen."""
        calls.append(item["it"])
        return calls.count(item["it"]) == 1

    def made(inputs: Any) -> Flow:
        begun = Flow(inputs, backend=backend, checkpoint_dir=tmp_path).map("a", "A {it}").filter(first_only)
        return begun.reduce("all", "Join {n}", group_by=lambda item: item["it"])

    for inputs in (ITS, ITS, [*ITS, {"it": "new"}]):
        calls.clear()
        outcome = await made(inputs).run()
        assert len(outcome.items) == len(inputs)
        assert sorted(calls) == sorted(each["it"] for each in inputs)
    assert len(prompts(backend)) == 14


async def test_items_that_a_changed_function_selects_are_requested(tmp_path: Path) -> None:
    backend, wanted = ScriptedBackend(joining), {"0", "1"}

    def made() -> Flow:
        begun = Flow(ITS, backend=backend, checkpoint_dir=tmp_path).map("a", "A {it}")
        return begun.filter(lambda item: item["it"] in wanted).map("b", "B {it}")

    await made().run()
    wanted.add("2")
    outcome = await made().run()
    assert [item["it"] for item in outcome.items] == ["0", "1", "2"]
    assert sorted(prompts(backend, beginning="B")) == ["B 0", "B 1", "B 2"]


async def test_a_finished_flow_delivers_events_results_and_files_once(tmp_path: Path) -> None:
    backend, heard = ScriptedBackend(joining), list[AgentResult]()
    log, folder = EventList(), tmp_path / "checkpoint"
    out = tmp_path / "out.jsonl"

    def made(backend: Any) -> Flow:
        begun = Flow(ITS, backend=backend, checkpoint_dir=folder, max_total_tokens=100_000)
        return begun.map("a", "A {it}", on_result=heard.append, out=out).reduce("all", "Join {n}")

    await made(backend).run()
    heard.clear()
    await made(NOBODY).run(events=log)
    assert len(heard) == out.read_text().count("\n") == 6
    started = [event for event in log.events if isinstance(event, FlowStarted)]
    done = [e.event for e in log.events if isinstance(e, StageEvent) and isinstance(e.event, AgentFinished)]
    assert (len(started), len(done), all(event.resumed for event in done)) == (1, 7, True)


async def test_a_failed_agent_of_a_flow_is_run_again(tmp_path: Path) -> None:
    bad = ScriptedBackend(lambda request: say(""))
    options: dict[str, Any] = {"checkpoint_dir": tmp_path, "max_retries": 0}
    await Flow(ITS[:1], backend=bad, **options).map("a", "A {it}", output_schema=int).run()
    with pytest.raises(BackendError):
        await Flow(ITS[:1], backend=NOBODY, **options).map("a", "A {it}", output_schema=int).run()
    assert (
        await Flow(ITS[:1], backend=ScriptedBackend(lambda _: say("3")), **options)
        .map("a", "A {it}", output_schema=int)
        .run()
    ).items[0]["a"] == 3


async def test_a_stage_without_items_needs_no_server(tmp_path: Path) -> None:
    def made(backend: Any) -> Flow:
        begun = Flow(ITS, backend=backend, checkpoint_dir=tmp_path).map("a", "A {it}").filter(lambda item: False)
        return begun.map("b", "B {it}")

    await made(ScriptedBackend(joining)).run()
    assert (await made(NOBODY).run()).items == ()


class Topics(BaseModel):
    items: list[str]


async def test_a_finished_map_reduce_needs_no_server(tmp_path: Path) -> None:
    backend = ScriptedBackend(saying({"Plan": {"items": ["a", "b"]}, "Write": "text", "Sum": "sum"}))
    options: dict[str, Any] = {
        "plan_prompt": "Plan it",
        "plan_output_schema": Topics,
        "task": "Write on {item}",
        "reduce": "Sum up",
        "checkpoint_dir": tmp_path,
    }
    results, answer = await BatchAgent.run_with_map_reduce(backend=backend, **options)
    again, same = await BatchAgent.run_with_map_reduce(backend=NOBODY, **options)
    assert (same, [each.output for each in again]) == (answer, [each.output for each in results])


async def test_a_finished_flow_calls_no_tools(tmp_path: Path) -> None:
    called: list[str] = []

    @Tool.define
    def look(word: str) -> str:
        """Looks."""
        called.append(word)
        return word

    options: dict[str, Any] = {"inputs": ["x"], "task": "A {it}", "tools": [look], "checkpoint_dir": tmp_path}
    backend = ScriptedBackend(saying({"A": "text", "Sum": "sum"}))
    first = await BatchAgent.run_with_reduce(backend=backend, reduce="Sum up", **options)
    again = await BatchAgent.run_with_reduce(backend=NOBODY, reduce="Sum up", **options)
    assert again[1] == first[1] == "sum"
    with pytest.raises(BackendError):  # other words: the results stay, and the reduce is asked
        await BatchAgent.run_with_reduce(
            backend=NOBODY, reduce="Sum it", reduce_options={"plan_changed": "rerun"}, **options
        )
