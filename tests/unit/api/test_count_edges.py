"""No inputs, one and very many, at every way to begin a run."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.support.engine_harness import asked

from batch_agent import BatchAgent, Flow, SpecError
from batch_agent.core.requests import Reply, Request
from batch_agent.testing import ScriptedBackend, say

COUNTS = [0, 1]
KINDS: dict[str, Callable[[list[str]], Any]] = {"list": list, "generator": iter}


@pytest.fixture
def backend() -> ScriptedBackend:
    return ScriptedBackend(lambda request: say("done"))


@pytest.fixture(params=[(count, kind) for count in COUNTS for kind in KINDS], ids=str)
def case(request: pytest.FixtureRequest) -> tuple[int, Any]:
    count, kind = request.param
    return count, KINDS[kind](["a"] * count)


async def test_run_accepts_any_number_of_inputs(backend: ScriptedBackend, case: tuple[int, Any]) -> None:
    count, inputs = case
    results = await BatchAgent.run(task="Do {it}", inputs=inputs, backend=backend, progress=False)
    assert [result.output for result in results] == ["done"] * count
    assert len(backend.requests) == count


async def test_stream_accepts_any_number_of_inputs(backend: ScriptedBackend, case: tuple[int, Any]) -> None:
    count, inputs = case
    stream = BatchAgent.stream(task="Do {it}", inputs=inputs, backend=backend, progress=False)
    assert [result.output async for result in stream] == ["done"] * count


def test_run_sync_accepts_any_number_of_inputs(backend: ScriptedBackend, case: tuple[int, Any]) -> None:
    count, inputs = case
    assert len(BatchAgent.run_sync(task="Do {it}", inputs=inputs, backend=backend, progress=False)) == count


async def test_run_with_reduce_accepts_any_number_of_inputs(backend: ScriptedBackend, case: tuple[int, Any]) -> None:
    count, inputs = case
    results, summary = await BatchAgent.run_with_reduce(
        task="Do {it}", inputs=inputs, reduce="Sum up {n}", backend=backend, progress=False
    )
    assert (len(results), summary) == (count, "done" if count else None)


@pytest.mark.parametrize("plans", COUNTS)
@pytest.mark.parametrize("items", COUNTS)
async def test_run_with_map_reduce_accepts_any_number_of_items(plans: int, items: int) -> None:
    def script(request: Request) -> Reply:
        is_plan = asked(request).startswith("Plan ")
        return say(orjson.dumps(["x"] * items).decode() if is_plan else "done")

    results, summary = await BatchAgent.run_with_map_reduce(
        plan_prompt="Plan {it}",
        plan_inputs=[{"it": "a"}] * plans,
        plan_output_schema=list[str],
        task="Do {item}",
        reduce="Sum up {n}",
        backend=ScriptedBackend(script),
        progress=False,
    )
    assert (len(results), summary) == (plans * items, "done" if plans * items else None)


async def test_a_flow_accepts_any_number_of_inputs(backend: ScriptedBackend, case: tuple[int, Any]) -> None:
    count, inputs = case
    flow = Flow(inputs, backend=backend).map("first", "Do {it}").map("second", "Check {first}")
    done = await flow.run(progress=False)
    assert [item["second"] for item in done.items] == ["done"] * count


async def test_a_checkpoint_of_any_number_of_inputs_is_resumed_and_replayed(
    backend: ScriptedBackend, tmp_path: Path, case: tuple[int, Any]
) -> None:
    count, inputs = case
    rows = list(inputs)
    for _ in range(2):
        results = await BatchAgent.run(
            task="Do {it}", inputs=rows, backend=backend, progress=False, checkpoint_dir=tmp_path
        )
        assert len(results) == count
    assert len(backend.requests) == count
    assert len(await BatchAgent.replay(tmp_path)) == count


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("count", COUNTS)
async def test_a_results_file_holds_any_number_of_results(
    backend: ScriptedBackend, tmp_path: Path, count: int, suffix: str
) -> None:
    out = tmp_path / f"results.{suffix}"
    await BatchAgent.run(task="Do {it}", inputs=["a"] * count, backend=backend, progress=False, out=out)
    assert out.exists()
    results = await BatchAgent.run(task="Do {it}", inputs=["a"] * count, backend=backend, progress=False)
    assert len(results.to_pandas()) == count


@pytest.mark.parametrize("count", COUNTS)
async def test_lint_and_plan_accept_any_number_of_inputs(backend: ScriptedBackend, count: int) -> None:
    options: dict[str, Any] = {"task": "Do {it}", "inputs": ["a"] * count, "backend": backend}
    assert (await BatchAgent.lint(**options)).agents == count
    assert (await BatchAgent.plan(**options, canary=count)).agents == count


@pytest.mark.parametrize("canary", [-1, 1.5, True, None, "1", 10**30])
async def test_a_canary_that_is_not_a_count_is_rejected(backend: ScriptedBackend, canary: Any) -> None:
    with pytest.raises(SpecError, match=r"^canary must be an integer"):
        await BatchAgent.plan(task="Do {it}", inputs=["a", "b"], backend=backend, canary=canary)
    assert backend.requests == []


@pytest.mark.slow
async def test_nothing_is_kept_of_100_000_lazy_inputs_but_their_keys() -> None:
    most = 100_000
    objects: list[int] = []

    def script(request: Request) -> Reply:
        scripted.requests.clear()
        return say("done")

    scripted = ScriptedBackend(script, inflight=64)
    done = 0
    inputs = (f"input {number}" for number in range(most))
    async for result in BatchAgent.stream(task="{it}", inputs=inputs, backend=scripted, progress=False):
        assert result.ok
        done += 1
        if done in (most // 4, most):
            gc.collect()
            objects.append(len(gc.get_objects()))
    assert done == most
    assert objects[1] - objects[0] < 5_000, "one object for each input would be 75,000 more"
