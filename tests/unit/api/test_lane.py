"""The option `lane`: which backends have which, and what is refused before a request is sent."""

from dataclasses import asdict, replace
from json import dumps, loads
from typing import Any

import pytest

from batch_agent import BatchAgent, SpecError
from batch_agent.backends import flavors
from batch_agent.backends.endpoints.pool_member import combined_traits
from batch_agent.core.requests import Lane
from batch_agent.core.spec import BatchSpec
from batch_agent.run.setup import RunSetup
from batch_agent.testing import ScriptedBackend, say


async def run(backend: Any, **options: Any) -> Any:
    return await BatchAgent.run(task="{it}", inputs=["a", "b"], backend=backend, **options)


@pytest.mark.parametrize("lane", ["flex", "batch"])
async def test_a_lane_that_the_backend_does_not_have_is_refused_before_anything_is_sent(lane: str) -> None:
    backend = ScriptedBackend(lambda request: say("ok"))
    with pytest.raises(SpecError, match=rf"lane='{lane}': scripted has no such lane, only 'standard'\."):
        await run(backend, lane=lane)
    assert backend.requests == []


async def test_the_message_lists_all_lanes_of_the_backend() -> None:
    backend = ScriptedBackend(lambda request: say("ok"), lanes=("standard", "batch"))
    with pytest.raises(SpecError, match="only 'standard' and 'batch'"):
        await run(backend, lane="flex")


async def test_auto_runs_on_a_backend_that_has_one_lane() -> None:
    backend = ScriptedBackend(lambda request: say("ok"))
    assert [result.output for result in await run(backend, lane="auto")] == ["ok", "ok"]


def test_an_unknown_lane_names_those_that_exist() -> None:
    with pytest.raises(SpecError, match="lane must be 'standard', 'flex', 'batch' or 'auto'; got 'cheap'"):
        BatchAgent.run_sync(task="{it}", inputs=["a"], lane="cheap")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("flavor", "lanes"),
    [
        (flavors.OPENAI, ("standard", "flex", "batch")),
        (flavors.ANTHROPIC, ("standard", "batch")),
        (flavors.BEDROCK, ("standard", "flex")),
        (flavors.COMPATIBLE, ("standard", "flex", "batch")),
        (flavors.VLLM, ("standard",)),
        (flavors.SGLANG, ("standard",)),
        (flavors.DYNAMO, ("standard",)),
        (flavors.LLAMACPP, ("standard",)),
    ],
)
def test_the_lanes_of_each_kind_of_server(flavor: flavors.Flavor, lanes: tuple[Lane, ...]) -> None:
    assert flavor.lanes == lanes


def test_several_endpoints_have_the_lanes_that_all_of_them_have_without_batches_which_are_at_one_server() -> None:
    def combined(*lanes: Any) -> tuple[Lane, ...]:
        traits = [ScriptedBackend(lambda request: say(""), lanes=each).traits for each in lanes]
        return combined_traits(["http://a", "http://b"], traits).lanes

    assert combined(("standard", "flex", "batch"), ("standard", "batch")) == ("standard",)
    assert combined(("standard", "flex", "batch"), ("standard", "flex")) == ("standard", "flex")


def test_the_traits_of_a_checkpoint_of_an_earlier_version_have_one_lane() -> None:
    traits = ScriptedBackend(lambda request: say(""), unsupported_sampling=("seed",), lanes=("standard", "flex")).traits
    kept = loads(dumps(asdict(traits)))
    setup = RunSetup.validate(BatchSpec.of(task="{it}", inputs=["a"]), None)
    assert setup.recorded_traits({"finished": {"traits": kept}}) == traits
    assert setup.recorded_traits({"finished": {"traits": {**kept, "of_another_version": 1}}}) == traits
    del kept["lanes"]
    assert setup.recorded_traits({"finished": {"traits": kept}}) == replace(traits, lanes=("standard",))
