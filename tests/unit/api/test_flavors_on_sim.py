"""Every flavor of server that speaks as OpenAI does, played by the simulator: with tools, a schema, both or neither."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from batch_agent import BatchAgent, Tool
from batch_agent.sim import SimConfig, SimServer


class Verdict(BaseModel):
    verdict: str
    score: int


@Tool.define(effect="read")
async def look_up(name: str) -> str:
    """Look a name up."""
    return f"found {name}"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with SimServer(SimConfig(zero_latency=True)) as sim:
        yield sim.url.removeprefix("http://")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "native", "action"])
@pytest.mark.parametrize("schema", [None, Verdict, list[str]], ids=["text", "model", "list"])
@pytest.mark.parametrize("tools", [[], [look_up]], ids=["alone", "tools"])
@pytest.mark.parametrize("scheme", ["http", "vllm", "sglang", "dynamo", "openai"])
async def test_agents_of_every_flavor_follow_the_schema_and_use_their_tools(
    address: str, monkeypatch: pytest.MonkeyPatch, scheme: str, tools: list[Tool], schema: type | None, mode: Any
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    results = await BatchAgent.run(
        task="Review {it}",
        inputs=["a", "b", "c"],
        backend=f"{scheme}://{address}",
        model="sim",
        tools=tools,
        output_schema=schema,
        tool_mode=mode,
        max_retries=0,
        progress=False,
    )
    results.raise_for_failures()
    assert [len(result.tool_calls) for result in results] == [len(tools)] * 3
    assert {type(output) for output in results.outputs} == {
        str if schema is None else Verdict if schema is Verdict else list
    }


async def test_a_lone_surrogate_in_an_input_fails_no_other_agent(address: str) -> None:
    results = await BatchAgent.run(
        task="Review {it}", inputs=["\ud800", "b"], backend=f"http://{address}", model="sim", progress=False
    )
    assert [result.ok for result in results] == [True, True]
