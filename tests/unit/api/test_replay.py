"""A run again, from its checkpoint alone: nobody is asked, no tool is called."""

import asyncio
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from batch_agent import AgentResult, BackendError, BatchAgent, ErrorKind, SpecError, StoreError, Tool
from batch_agent.core.messages import Thought, ToolCall
from batch_agent.core.requests import Reply, Request, Usage
from batch_agent.core.results import Timing
from batch_agent.run.replay import replay
from batch_agent.sim import SimServer
from batch_agent.testing import Answer, ScriptedBackend, by_turn, call, calls, say


class City(BaseModel):
    name: str
    people: int


@Tool.define(effect="read")
async def look(key: str) -> str:
    """Look up."""
    if key == "gone":
        raise LookupError("gone")
    return f"about {key} ✓"


def timeless(results: list[AgentResult]) -> list[AgentResult]:
    return [replace(result, timing=Timing()) for result in results]


async def run(folder: Path, backend: Any, inputs: Any = ("a", "b"), **options: Any) -> list[AgentResult]:
    options.setdefault("task", "Describe {it}")
    results: list[AgentResult] = await BatchAgent.run(inputs=inputs, backend=backend, checkpoint_dir=folder, **options)
    return results


async def test_a_replay_gives_the_results_of_the_run(sim: SimServer, tmp_path: Path) -> None:
    results = await run(tmp_path, sim.url, [f"{n} ü" for n in range(20)], tools=[look], output_schema=City)
    again = await replay(tmp_path, output_schema=City, tools=[look])
    assert timeless(again) == timeless(results)
    [plain, *_] = await replay(tmp_path)
    assert plain.output == results[0].output.model_dump()


@pytest.mark.parametrize("json_schema", [True, False])
async def test_tool_calls_of_action_mode_are_replayed_like_native_calls(tmp_path: Path, json_schema: bool) -> None:
    script = by_turn(say('{"tool": "look", "arguments": {"key": "gone"}}'), say('{"final": {"name": "x"}}'))
    backend = ScriptedBackend(script, native_tools=False, json_schema=json_schema)
    results = await run(tmp_path, backend, tools=[look], output_schema=dict[str, str])
    assert all(result.ok and result.turns == 2 for result in results)
    assert timeless(await replay(tmp_path)) == timeless(results)


async def test_reasoning_and_parallel_calls_of_a_turn_are_replayed(tmp_path: Path) -> None:
    both = replace(
        calls(ToolCall("1", "look", '{"key": "x"}'), ToolCall("2", "look", '{"key": "gone"}')),
        thoughts=(Thought("hm", "signed"),),
    )
    results = await run(tmp_path, ScriptedBackend(by_turn(both, say("done", Usage(5, 2, 1)))), tools=[look])
    assert timeless(await replay(tmp_path)) == timeless(results)


async def test_a_replay_calls_no_tool_and_writes_nothing(tmp_path: Path) -> None:
    @Tool.define(name="look", effect="write")
    async def another(key: str) -> str:
        """Look up."""
        raise AssertionError("a replay calls no tool")

    await run(tmp_path, ScriptedBackend(by_turn(call("look", key="x"), say("done"))), tools=[look])
    before = (tmp_path / "run.sqlite3").read_bytes()
    results = await replay(tmp_path, tools=[another])
    assert [record.ok for result in results for record in result.tool_calls] == [True, True]
    assert (tmp_path / "run.sqlite3").read_bytes() == before


async def test_one_agent_is_replayed_by_its_index_or_its_key(tmp_path: Path) -> None:
    results = await run(tmp_path, ScriptedBackend(lambda request: say("done")))
    assert timeless(await replay(tmp_path, 1)) == timeless(await replay(tmp_path, results[1].key[:10]))
    assert timeless(await replay(tmp_path, 1)) == timeless(results[1:])
    with pytest.raises(SpecError, match="There is no agent '7'"):
        await replay(tmp_path, 7)


async def test_a_changed_prompt_is_replayed_against_recorded_replies(tmp_path: Path) -> None:
    await run(tmp_path, ScriptedBackend(by_turn(call("look", key="x"), say("done"))), tools=[look])
    results = await replay(tmp_path, task="Say it kindly: {it}", system_prompt="Be kind.", model="another")
    assert [result.text for result in results] == ["done", "done"]
    assert "Say it kindly: a" in str(results[0].transcript[0])


async def test_a_replay_with_a_changed_schema_shows_which_answers_fail(tmp_path: Path) -> None:
    class Small(BaseModel):
        people: int

        @field_validator("people")
        @classmethod
        def check(cls, people: int) -> int:
            if people > 1000:
                raise ValueError("too many")
            return people

    def answer(request: Request) -> Answer:
        return say('{"people": 5000}' if "a" in request.messages[0].text else '{"people": 5}')  # type: ignore[union-attr]

    await run(tmp_path, ScriptedBackend(answer), task="{it}", output_schema=dict[str, int])
    refused, fine = await replay(tmp_path, output_schema=Small, max_retries=0)
    assert refused.error is not None
    assert refused.error.kind is ErrorKind.INVALID_OUTPUT
    assert fine.output == Small(people=5)
    asked_again, _ = await replay(tmp_path, output_schema=Small)
    assert "turn 2 was not recorded" in str(asked_again.error)


async def test_the_replay_of_an_interrupted_agent_fails_at_the_missing_turn(tmp_path: Path) -> None:
    broken = by_turn(call("look", key="x"), call("look", key="y"), BackendError(ErrorKind.BAD_REQUEST, "down"))
    await run(tmp_path, ScriptedBackend(broken), [str(n) for n in range(40)], tools=[look])
    results = await replay(tmp_path)
    assert len(results) == 40
    assert {str(result.error) for result in results} == {
        "bad_request: turn 3 was not recorded: this agent's recording has 2 turns."
    }


async def test_calls_whose_results_were_not_recorded_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batch_agent.tools.agent_tools.LAST_WRITES", 0.01)
    paying = asyncio.Event()

    @Tool.define(effect="write")
    async def pay(cents: int) -> str:
        """Pay."""
        if cents == 2:
            paying.set()
            await asyncio.Event().wait()
        return "paid"

    both = calls(ToolCall("", "pay", '{"cents": 1}'), ToolCall("", "pay", '{"cents": 2}'))
    running = asyncio.create_task(run(tmp_path, ScriptedBackend(lambda request: both), ["a"], tools=[pay]))
    await paying.wait()
    running.cancel()
    await asyncio.wait([running])
    [result] = await replay(tmp_path)
    assert 'turn 1: the result of pay {"cents": 2} was not recorded' in str(result.error)


async def test_a_replay_needs_inputs_that_json_cannot_hold(tmp_path: Path) -> None:
    inputs = [{"day": date(2024, 1, 2)}, {"day": date(2024, 3, 4)}]
    backend = ScriptedBackend(lambda request: say("Tuesday"))
    results = await run(tmp_path, backend, inputs, task="Which day is {day:%d %B}?")
    again = await replay(tmp_path, inputs=[*inputs, {"day": date(2025, 1, 1)}])
    assert timeless(again[:2]) == timeless(results)
    assert "turn 1 was not recorded" in str(again[2].error)
    with pytest.raises(SpecError, match="either agent= or inputs="):
        await replay(tmp_path, 0, inputs=inputs)


async def test_a_truncated_answer_is_replayed_with_the_sampling_of_the_run(tmp_path: Path) -> None:
    cut = ScriptedBackend(lambda request: Reply("half", "length", Usage()))
    results = await run(tmp_path, cut, max_tokens=5, stop=["END"])
    assert all(result.ok for result in results)
    assert timeless(await replay(tmp_path)) == timeless(results)


@pytest.mark.parametrize("option", ["backend", "checkpoint_dir", "on_result"])
async def test_options_that_a_replay_does_not_support_are_rejected(tmp_path: Path, option: str) -> None:
    with pytest.raises(SpecError, match=f"{option}= is not supported in a replay"):
        await replay(tmp_path, **{option: None})


@pytest.mark.slow
async def test_two_thousand_agents_are_replayed_in_order(tmp_path: Path) -> None:
    results = await run(tmp_path, ScriptedBackend(lambda request: say("x" * 1000)), map(str, range(2000)))
    assert timeless(await replay(tmp_path)) == timeless(results)


async def test_replaying_a_folder_without_a_checkpoint_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="There is no checkpoint"):
        await replay(tmp_path)
