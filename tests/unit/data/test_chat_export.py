"""Conversations of a run: `result.prompt`, `result.messages`, `results.to_chat_jsonl` and `export --format chat`."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import BaseModel

from batch_agent import BatchAgent, Results, SpecError, Tool, read_request_log
from batch_agent.cli.commands.export import export
from batch_agent.core.results import AgentResult
from batch_agent.sim import Script, SimConfig, SimServer
from batch_agent.testing import ScriptedBackend, by_turn, call, say


class Verdict(BaseModel):
    verdict: str


@Tool.define(effect="read")
async def look_up(name: str) -> str:
    """Look a name up."""
    return f"found {name}"


@pytest.fixture(scope="module")
def sim() -> Iterator[SimServer]:
    with SimServer(SimConfig(zero_latency=True), Script(answer_tokens=8)) as server:
        yield server


def lines(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


async def run(backend: Any, **options: Any) -> Results[Any]:
    given = {"task": "Review {it}", "inputs": ["a", "b"], "system_prompt": "Be brief.", "progress": False, **options}
    results: Results[Any] = await BatchAgent.run(backend=backend, **given)
    return results


@pytest.mark.parametrize("tool_mode", ["native", "action"])
@pytest.mark.parametrize("schema", [None, Verdict], ids=["text", "model"])
@pytest.mark.parametrize("tools", [[], [look_up]], ids=["alone", "tools"])
async def test_a_conversation_is_what_was_sent_and_the_answer(
    sim: SimServer, tmp_path: Path, tools: list[Tool], schema: type | None, tool_mode: Any
) -> None:
    folder, log, file = tmp_path / "checkpoint", tmp_path / "requests.jsonl", tmp_path / "chat.jsonl"
    results = await run(
        sim.url.replace("http", "vllm"),
        tools=tools,
        output_schema=schema,
        tool_mode=tool_mode,
        checkpoint_dir=folder,
        log_requests=log,
    )
    results.raise_for_failures()
    results.to_chat_jsonl(file)
    last = {line["index"]: line for line in read_request_log(log) if line["agent"]}
    for result, chat in zip(results, lines(file), strict=True):
        sent, answer = last[result.index]["body"], last[result.index]["response"]["choices"][0]["message"]
        assert chat["messages"] == [*sent["messages"], {"role": "assistant", "content": answer["content"]}]
        assert chat.get("tools") == sent.get("tools")
        assert result.messages == chat["messages"]
        assert chat["messages"][0]["content"].startswith("Be brief.")
    assert export(folder, out=tmp_path / "exported.jsonl", format="chat") == 0
    assert lines(tmp_path / "exported.jsonl") == lines(file)


async def test_a_result_has_the_system_prompt_the_tools_and_the_schema(sim: SimServer) -> None:
    first, second = await run(sim.url, tools=[look_up], output_schema=Verdict)
    assert first.prompt is second.prompt
    assert first.prompt is not None
    assert first.prompt.system.startswith("Be brief.")
    assert [tool.name for tool in first.prompt.tools] == ["look_up"]
    assert first.prompt.schema is not None
    assert first.prompt.schema["properties"].keys() == {"verdict"}
    again = pickle.loads(pickle.dumps(first))
    assert again == first
    assert again.messages == first.messages


async def test_tool_calls_and_their_results_are_in_the_file(tmp_path: Path) -> None:
    script = by_turn(call("look_up", name="x"), say("done"))
    [result] = await run(ScriptedBackend(script), inputs=["a"], tools=[look_up])
    Results([result]).to_chat_jsonl(tmp_path / "chat.jsonl")
    [chat] = lines(tmp_path / "chat.jsonl")
    _, _, asked, found, answer = chat["messages"]
    assert [call["function"]["name"] for call in asked["tool_calls"]] == ["look_up"]
    assert asked["content"] is None
    assert (found["role"], found["content"]) == ("tool", "found x")
    assert found["tool_call_id"] == asked["tool_calls"][0]["id"]
    assert answer == {"role": "assistant", "content": "done"}


async def test_failed_agents_are_left_out_unless_they_are_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = tmp_path / "checkpoint", tmp_path / "chat.jsonl"
    answers = ScriptedBackend(lambda request: say('{"verdict": "ok"}' if "Review a" in str(request) else "no JSON"))
    results = await run(answers, output_schema=Verdict, max_retries=0, checkpoint_dir=folder)
    assert [result.ok for result in results] == [True, False]
    results.to_chat_jsonl(file)
    assert len(lines(file)) == 1
    results.to_chat_jsonl(file, include_failed=True)
    assert [chat["messages"][-1]["content"] for chat in lines(file)] == ['{"verdict": "ok"}', "no JSON"]
    for include_failed, expected in ((False, 1), (True, 2)):
        assert export(folder, out=file, format="chat", max_retries=0, include_failed=include_failed) == 0
        assert len(lines(file)) == expected
    assert "--include-failed adds those that failed." in capsys.readouterr().err
    with pytest.raises(SpecError, match="--include-failed is for --format chat"):
        export(folder, out=tmp_path / "out.csv", include_failed=True)


async def test_an_input_that_was_not_sent_has_no_conversation(tmp_path: Path) -> None:
    results = Results([AgentResult(0, "k", {"a": 1})])
    assert results[0].messages == []
    results.to_chat_jsonl(tmp_path / "chat.jsonl", include_failed=True)
    assert lines(tmp_path / "chat.jsonl") == []
