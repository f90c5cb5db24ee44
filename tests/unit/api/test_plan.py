"""Plans of whole runs, through the public API, on a simulated server."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batch_agent import BatchAgent, Fields, SpecError
from batch_agent.core.events import Event, Notice
from batch_agent.sim import Script, SimConfig, SimServer
from batch_agent.store.reader import CheckpointReader
from batch_agent.testing import ScriptedBackend, say

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


class Sink:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)


async def test_a_plan_emits_notices_and_no_other_events(sim: SimServer) -> None:
    sink = Sink()
    await BatchAgent.plan(canary=2, events=sink, **options(sim))
    assert Notice("Running a canary of 2 agents ...") in sink.events
    assert all(isinstance(event, Notice) for event in sink.events)


@pytest.mark.parametrize("distributed", [{"store": "redis://127.0.0.1:9/0"}, {"cluster": "ray"}], ids=str)
async def test_a_distributed_run_is_refused_before_anything_is_sent(distributed: dict[str, Any]) -> None:
    backend = ScriptedBackend(lambda request: say("x"))
    [name] = distributed
    with pytest.raises(SpecError, match=f"Remove {name}=; with checkpoint_dir="):
        await BatchAgent.plan(task=TASK, inputs=ROWS, backend=backend, canary=2, **distributed)
    assert backend.requests == []
