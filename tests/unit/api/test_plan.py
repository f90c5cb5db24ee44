"""Plans of whole runs, through the public API, on a simulated server."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.support.event_list import EventList
from tests.support.redis_server import RedisServer, redis_server

from batch_agent import BatchAgent, Fields, SpecError, Tool
from batch_agent.cluster.redis.run_copy import copy_run
from batch_agent.core.events import Notice
from batch_agent.forecasting.forecast_text import forecast_lines
from batch_agent.sim import Script, SimConfig, SimServer
from batch_agent.store.reader import CheckpointReader
from batch_agent.testing import ScriptedBackend, say

__all__ = ["redis_server"]

DOCUMENTS = [f"document {number} " + "lorem ipsum dolor " * 80 for number in range(5)]
ROWS = [{"q": f"What of {at}?", "doc": DOCUMENTS[at % 5]} for at in range(40)]
TASK = Fields("Answer from the document.")


@pytest.fixture(scope="module")
def sim() -> Iterator[SimServer]:
    with SimServer(SimConfig(step_base_ms=3.0), Script(tool_turns=0, answer_tokens=12)) as server:
        yield server


def options(sim: SimServer, **more: Any) -> dict[str, Any]:
    return {"task": TASK, "inputs": ROWS, "backend": sim.url, "model": "sim", **more}


async def test_a_plan_predicts_the_tokens_that_the_run_uses(sim: SimServer) -> None:
    forecast = await BatchAgent.plan(canary=6, **options(sim))
    began = time.perf_counter()
    results = await BatchAgent.run(progress=False, **options(sim))
    compared = forecast.compare(results, time.perf_counter() - began)
    assert forecast.agents == 40
    assert compared.row("prompt tokens").ratio == pytest.approx(1, abs=0.05)
    assert compared.row("output tokens").ratio == pytest.approx(1, abs=0.05)
    assert forecast.seconds is not None
    assert forecast.shared is not None
    assert forecast.shared > 0.8
    assert forecast.cost is None


async def test_a_canary_with_a_checkpoint_is_requested_once_with_its_own_index(sim: SimServer, tmp_path: Path) -> None:
    await BatchAgent.plan(canary=4, **options(sim, checkpoint_dir=tmp_path))
    with CheckpointReader(tmp_path) as reader:
        assert [agent.index for agent in reader.agents()] == [5, 15, 25, 35]
    results = await BatchAgent.run(progress=False, **options(sim, checkpoint_dir=tmp_path))
    assert [result.index for result in results] == list(range(40))
    with CheckpointReader(tmp_path) as reader:
        assert reader.usage().input == sum(result.usage.input for result in results), "nobody was asked twice"


async def test_a_plan_without_a_canary_sends_no_model_request() -> None:
    backend = ScriptedBackend(lambda request: say("x"), kv_tokens=10_000)
    forecast = await BatchAgent.plan(task=TASK, inputs=ROWS, backend=backend)
    assert backend.requests == []
    assert forecast.seconds is None
    assert any("canary" in word for word in forecast.basis)


async def test_a_plan_with_prices_has_a_cost(sim: SimServer) -> None:
    forecast = await BatchAgent.plan(**options(sim, prices={"sim": (1.0, 0.5, 2.0)}))
    used = forecast.usage
    assert forecast.cost == pytest.approx((used.input - used.cached + 0.5 * used.cached + 2 * used.output) / 1e6)


async def test_a_plan_shows_the_cost_of_each_lane(sim: SimServer) -> None:
    standard = await BatchAgent.plan(canary=2, **options(sim, prices={"sim": {"input": 10, "output": 40}}))
    assert standard.cost is not None
    prices = {"sim": {"input": 10, "output": 40, "batch": {"input": 2.5, "cached": 2.5, "output": 10}}}
    costs = {"standard": standard.cost, "flex": standard.cost / 2, "batch": standard.cost / 4}
    for lane, cost in {**costs, "auto": costs["batch"]}.items():
        forecast = await BatchAgent.plan(canary=2, **options(sim, prices=prices, lane=lane))
        assert dict(forecast.costs) == {name: pytest.approx(each, rel=0.05) for name, each in costs.items()}
        assert forecast.cost == pytest.approx(cost, rel=0.05)
        [line] = [line for line in forecast_lines(forecast) if line.startswith("cost")]
        assert re.fullmatch(r"cost     \$[\d.]+ \(standard \$[\d.]+, flex \$[\d.]+, batch \$[\d.]+\)", line)
        assert (forecast.seconds is None) == (lane in ("batch", "auto"))


async def test_a_plan_for_a_lane_that_the_backend_does_not_have_is_refused() -> None:
    backend = ScriptedBackend(lambda request: say("x"))
    with pytest.raises(SpecError, match="lane='batch': scripted has no such lane"):
        await BatchAgent.plan(task=TASK, inputs=ROWS, backend=backend, lane="batch")


async def test_a_canary_of_more_agents_than_there_are_is_all_of_them(sim: SimServer) -> None:
    forecast = await BatchAgent.plan(canary=100, **options(sim, inputs=ROWS[:3]))
    assert forecast.behaviour.source == "canary of 3"


async def test_lazy_inputs_cannot_be_planned(sim: SimServer) -> None:
    with pytest.raises(SpecError, match="The number of inputs is unknown"):
        await BatchAgent.plan(**options(sim, inputs=iter(ROWS)))
    with pytest.raises(SpecError, match="pass them as a list"):
        await BatchAgent.plan(canary=2, **options(sim, inputs=iter(ROWS)))


async def test_a_failed_canary_is_reported_in_the_plan(sim: SimServer) -> None:
    forecast = await BatchAgent.plan(canary=3, **options(sim, context_tokens=20))
    assert forecast.behaviour.is_assumed
    assert forecast.seconds is None


async def test_a_plan_emits_notices_and_no_other_events(sim: SimServer) -> None:
    sink = EventList()
    await BatchAgent.plan(canary=2, events=sink, **options(sim))
    assert Notice("Running a canary of 2 agents ...") in sink.events
    assert all(isinstance(event, Notice) for event in sink.events)


async def test_the_canary_of_a_distributed_run_is_requested_once(
    sim: SimServer, redis_server: RedisServer, tmp_path: Path
) -> None:
    url, name = redis_server.url, uuid4().hex
    await BatchAgent.plan(canary=4, cluster="ray", store=url, run_id=name, **options(sim))
    await copy_run(url, name, tmp_path / "planned")
    with CheckpointReader(tmp_path / "planned") as reader:
        assert [agent.index for agent in reader.agents()] == [5, 15, 25, 35]
    results = await BatchAgent.run(progress=False, store=url, run_id=name, **options(sim))
    assert [result.index for result in results] == list(range(40))
    await copy_run(url, name, tmp_path / "ended")
    with CheckpointReader(tmp_path / "ended") as reader:
        assert reader.usage().input == sum(result.usage.input for result in results), "nobody was asked twice"


PAGES = {name: f"{name} " + "lorem ipsum dolor sit amet " * 150 for name in ("cats", "dogs")}


@Tool.define(effect="read")
async def read_page(name: str) -> str:
    """Read a page."""
    return PAGES.get(name) or f"{name}: " + "words of its own " * 200


def reading(*names: str, count: int = 24) -> list[str]:
    """Inputs whose agents read these pages, one per turn; a name with {} is that of another page for each."""
    return [
        f"{at}th question. [[sim: "
        + json.dumps(
            [{"calls": [{"name": "read_page", "arguments": {"name": each.format(at)}}]} for each in names]
            + [{"text": "They are animals, all of them."}]
        )
        + "]]"
        for at in range(count)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("shared_results", ["inline", "first", "auto"])
async def test_a_plan_predicts_what_is_computed_of_results_that_agents_share(
    sim: SimServer, shared_results: str
) -> None:
    task = "Read the pages, then answer.\n\n{question}"
    rows = reading("cats", "dogs")
    planned = options(sim, task=task, inputs=rows, tools=[read_page], shared_results=shared_results)
    with SimServer(SimConfig(step_base_ms=3.0), Script(tool_turns=0)) as fresh:
        forecast = await BatchAgent.plan(canary=4, **{**planned, "backend": fresh.url})
    with SimServer(SimConfig(step_base_ms=3.0), Script(tool_turns=0)) as fresh:
        results = await BatchAgent.run(progress=False, **{**planned, "backend": fresh.url})
    compared = forecast.compare(results, 1.0)
    assert compared.row("prompt tokens").ratio == pytest.approx(1, abs=0.1)
    computed = sum(result.usage.input - result.usage.cached for result in results)
    assert forecast.computed == pytest.approx(computed, abs=0.05 * forecast.usage.input)
    predicted, measured = forecast.shared_results, results.scheduling.shared_results
    assert predicted is not None
    assert measured is not None
    assert (predicted.references, bool(predicted.placed)) == (2, shared_results != "inline")
    assert predicted.agents == 24
    assert predicted.saved_share == pytest.approx(measured.saved_share, abs=0.1)


@pytest.mark.slow
async def test_a_plan_takes_pages_of_one_agent_to_be_read_by_no_other(sim: SimServer) -> None:
    rows = reading("page {}", "another page {}")
    planned = options(sim, task="Read, then answer.\n\n{question}", inputs=rows, tools=[read_page])
    inline = await BatchAgent.plan(canary=4, **planned)
    assert inline.shared_results is None
    auto = await BatchAgent.plan(canary=4, **planned, shared_results="auto")
    assert auto.shared_results is not None
    assert auto.shared_results.placed == 0
    assert "No two agents of the canary read the same result: a larger canary may find some." in auto.basis
    first = await BatchAgent.plan(canary=4, **planned, shared_results="first")
    assert first.shared_results is not None
    assert first.shared_results.saved_tokens < 0
    assert first.computed > inline.computed
