"""Whole runs whose agents are programs with OpenAI's SDK and its responses API, on the simulated engine."""

import sys
import textwrap
from pathlib import Path

import pytest

from batch_agent import BatchAgent, ProcessRuntime
from batch_agent.sim import Script, SimConfig, SimServer

_PROGRAM = """
    import os, sys
    from openai import APIStatusError, OpenAI

    PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    TOOLS = [
        {"type": "function", "name": name, "description": name, "parameters": PATH, "strict": False}
        for name in ("alpha", "beta")
    ] + [{"type": "web_search"}]
    client = OpenAI()  # the address and the key are in its environment
    items = [{"role": "user", "content": sys.stdin.read()}]
    choice, called = {"type": "function", "name": "beta"}, []
    try:
        for _ in range(9):
            with client.responses.stream(
                model=os.environ["OPENAI_MODEL"], instructions="You are in " + os.getcwd(), input=items, tools=TOOLS,
                tool_choice=choice, store=False,
            ) as stream:
                response = stream.get_final_response()
            choice = "auto"
            items += [item.model_dump(mode="json", exclude_none=True) for item in response.output]
            calls = [item for item in response.output if item.type == "function_call"]
            called += [call.name for call in calls]
            if not calls:
                print(len(called), called[0], bool(response.output_text), response.usage.total_tokens > 0)
                break
            items += [{"type": "function_call_output", "call_id": call.call_id, "output": "done"} for call in calls]
    except APIStatusError as error:
        print(error.status_code, error.type, error.message)
"""


@pytest.fixture
def runtime(tmp_path: Path) -> ProcessRuntime:
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(_PROGRAM))
    return ProcessRuntime([sys.executable, str(file)])


@pytest.mark.slow
async def test_programs_call_a_named_tool_and_then_any_by_the_responses_api(runtime: ProcessRuntime) -> None:
    with SimServer(SimConfig(zero_latency=True), Script(tool_turns=2)) as sim:
        results = await BatchAgent.run(task="Note {it}", inputs=["a", "b"], backend=sim.url, runtime=runtime)
    assert [result.output for result in results.raise_for_failures()] == ["2 beta True True"] * 2
    for result in results:
        assert result.tool_calls[0].name == "beta"
        assert (result.turns, result.usage.output > 0) == (3, True)


@pytest.mark.slow
async def test_a_program_gets_a_5xx_of_a_failed_server_without_its_address(runtime: ProcessRuntime) -> None:
    with SimServer(SimConfig(zero_latency=True), Script()) as sim:
        [result] = await BatchAgent.run(
            task='Note {it} [[sim: {{"fault": "500"}}]]', inputs=["a"], backend=sim.url, runtime=runtime, max_retries=0
        )
    assert str(result.output).startswith("502 server_error Error code: 502")
    assert "500 from the model's server" in str(result.output)
    assert sim.url.removeprefix("http://") not in str(result.output)
