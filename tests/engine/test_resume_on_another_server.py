"""What a checkpoint holds is kept wherever the server is and however much room there is; what lacked room goes on."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from tests.support.engine_harness import asked, run, stream, waiting_tool

from batch_agent import BatchAgent, ErrorKind, PlanMismatch, RunStopped, Usage
from batch_agent.core.messages import Assistant
from batch_agent.core.requests import Reply, Request
from batch_agent.testing import ScriptedBackend, by_turn, call, say


class Name(BaseModel):
    name: str


def echo(request: Request) -> Any:
    return say(asked(request))


def cut(text: str, tokens: int = 16) -> Reply:
    return Reply(text, "length", Usage(5, 0, tokens))


class Refusing(ScriptedBackend):
    """Nobody may ask it anything."""

    def __init__(self, **traits: Any) -> None:
        super().__init__(lambda _: pytest.fail("somebody asked"), **traits)


async def test_agents_that_ran_out_of_turns_resume_with_a_higher_max_turns(tmp_path: Path) -> None:
    tools = [waiting_tool(1)]
    eager = ScriptedBackend(by_turn(call("wait"), call("wait"), call("wait")))
    [failed] = await run(eager, ["a"], tools=tools, max_turns=3, checkpoint_dir=tmp_path)
    assert failed.error is not None
    assert failed.error.kind is ErrorKind.MAX_TURNS
    done = ScriptedBackend(lambda request: say("done"))
    [result] = await run(done, ["a"], tools=tools, max_turns=8, checkpoint_dir=tmp_path)
    assert result.output == "done"
    assert len(done.requests) == 1
    assert sum(isinstance(message, Assistant) for message in done.requests[0].messages) == 3
    assert len(result.tool_calls) == 3


async def test_a_lower_max_turns_keeps_recorded_answers(tmp_path: Path) -> None:
    tools = [waiting_tool(1)]
    first = ScriptedBackend(by_turn(call("wait"), call("wait"), say("done")))
    [before] = await run(first, ["a"], tools=tools, max_turns=5, checkpoint_dir=tmp_path)
    [again] = await run(Refusing(), ["a"], tools=tools, max_turns=2, checkpoint_dir=tmp_path)
    assert again.output == before.output == "done"
    assert again.transcript == before.transcript


async def test_truncated_answers_are_requested_again_with_a_higher_max_tokens(tmp_path: Path) -> None:
    short = ScriptedBackend(lambda request: cut("half") if asked(request) == "a" else say("whole"))
    first = await run(short, ["a", "b"], max_tokens=16, checkpoint_dir=tmp_path)
    assert [result.output for result in first] == ["half", "whole"]
    same = await run(Refusing(), ["a", "b"], max_tokens=16, checkpoint_dir=tmp_path)
    assert [result.output for result in same] == ["half", "whole"]
    less = await run(Refusing(), ["a", "b"], max_tokens=8, checkpoint_dir=tmp_path)
    assert [result.output for result in less] == ["half", "whole"]
    wide = ScriptedBackend(lambda request: say("all of it"))
    more = await run(wide, ["a", "b"], max_tokens=400, checkpoint_dir=tmp_path)
    assert [result.output for result in more] == ["all of it", "whole"]
    assert [len(request.messages) for request in wide.requests] == [1]
    back = await run(Refusing(), ["a", "b"], max_tokens=16, checkpoint_dir=tmp_path)
    assert [result.output for result in back] == ["all of it", "whole"]


async def test_truncated_structured_answers_are_requested_again_with_a_higher_max_tokens(tmp_path: Path) -> None:
    options: dict[str, Any] = {"output_schema": Name, "checkpoint_dir": tmp_path}
    [failed] = await run(ScriptedBackend(lambda _: cut('{"name": "A')), ["a"], max_tokens=16, **options)
    assert failed.error is not None
    assert failed.error.kind is ErrorKind.TRUNCATED
    wide = ScriptedBackend(lambda _: say('{"name": "Ann"}'))
    [result] = await run(wide, ["a"], max_tokens=400, **options)
    assert result.output == Name(name="Ann")
    assert [len(request.messages) for request in wide.requests] == [1]


async def test_a_higher_max_retries_resumes_with_the_next_attempt(tmp_path: Path) -> None:
    options: dict[str, Any] = {"output_schema": Name, "checkpoint_dir": tmp_path}
    [failed] = await run(ScriptedBackend(lambda _: say("no")), ["a"], max_retries=1, **options)
    assert not failed.ok
    better = ScriptedBackend(lambda _: say('{"name": "Ann"}'))
    [result] = await run(better, ["a"], max_retries=3, **options)
    assert result.output == Name(name="Ann")
    assert len(better.requests[0].messages) == 3  # the task, the last answer, and why it cannot be used


@pytest.mark.parametrize("output", [None, Name, list[str]])
@pytest.mark.parametrize("tools", [True, False])
async def test_a_run_resumes_on_another_server(tmp_path: Path, output: Any, tools: bool) -> None:
    answers = {None: "text", Name: '{"name": "Ann"}', list[str]: '["x"]'}
    text = answers[output]
    options: dict[str, Any] = {"output_schema": output, "checkpoint_dir": tmp_path}
    options |= {"tools": [waiting_tool(0)]} if tools else {}
    strict = ScriptedBackend(lambda request: say(text) if asked(request) != "c" else call("none") if tools else say(""))
    first = await run(strict, ["a", "b", "c"], max_turns=2, max_retries=0, **options)
    assert [result.ok for result in first] == [True, True, False]
    loose = ScriptedBackend(lambda _: say(text), json_schema=False, json_schema_with_tools=False, name="other")
    again = await run(loose, ["a", "b", "c"], max_turns=5, **options)
    assert [result.ok for result in again] == [True, True, True]
    assert {asked(request) for request in loose.requests} == {"c"}


async def test_resumed_agents_keep_their_tool_mode(tmp_path: Path) -> None:
    options: dict[str, Any] = {"tools": [waiting_tool(0)], "checkpoint_dir": tmp_path}
    weak = ScriptedBackend(lambda _: say('{"final": "done"}'), native_tools=False)
    [first] = await run(weak, ["a"], **options)
    assert first.output == "done"
    strong = ScriptedBackend(lambda _: say('{"final": "more"}'))
    results = await run(strong, ["a", "b"], **options)
    assert [result.output for result in results] == ["done", "more"]


async def test_resuming_tool_calls_on_a_server_without_them_is_an_error(tmp_path: Path) -> None:
    options: dict[str, Any] = {"tools": [waiting_tool(0)], "checkpoint_dir": tmp_path}
    await run(ScriptedBackend(echo), ["a"], **options)
    with pytest.raises(PlanMismatch, match="native tool calls, which weakling does not support") as mismatch:
        await run(ScriptedBackend(echo, native_tools=False, name="weakling"), ["a", "b"], **options)
    assert "tool mode" in mismatch.value.changes


async def test_a_checkpoint_mismatch_names_only_what_changed(tmp_path: Path) -> None:
    long = "Be kind. " * 30
    await run(ScriptedBackend(echo), ["a"], system_prompt=long + "Now.", checkpoint_dir=tmp_path)
    other = ScriptedBackend(echo, model="other", json_schema=False)
    with pytest.raises(PlanMismatch) as mismatch:
        await run(other, ["a", "b"], system_prompt=long + "Later.", checkpoint_dir=tmp_path)
    assert mismatch.value.changes.count("(was ") == 2
    assert "model (was 'scripted', is 'other')" in mismatch.value.changes
    assert "Now." in mismatch.value.changes
    assert "Later." in mismatch.value.changes


@pytest.mark.parametrize("lazily", [True, False])
async def test_a_finished_run_needs_no_server_and_no_tools(tmp_path: Path, lazily: bool) -> None:
    inputs = [{"it": "a"}, {"it": "b"}, {"it": "a"}, {"other": 1}]
    first = await run(ScriptedBackend(echo), inputs, checkpoint_dir=tmp_path, out=tmp_path / "one.jsonl")
    again = await BatchAgent.run(
        task="{it}",
        inputs=iter(inputs) if lazily else inputs,
        backend="http://127.0.0.1:1",  # nobody is there
        checkpoint_dir=tmp_path,
        out=tmp_path / "two.jsonl",
        model="scripted",
    )
    assert [(each.key, each.output, each.error) for each in again] == [(x.key, x.output, x.error) for x in first]
    assert (tmp_path / "one.jsonl").read_text().count("\n") == (tmp_path / "two.jsonl").read_text().count("\n") == 4


class Provider:
    """Tools that would have to be started."""

    def __init__(self) -> None:
        self.started = 0

    def __repr__(self) -> str:
        return "Provider"

    def open(self) -> Any:
        from contextlib import asynccontextmanager

        @asynccontextmanager
        async def opened() -> Any:
            self.started += 1
            yield [waiting_tool(0)]

        return opened()


async def test_a_finished_run_starts_no_tool_server(tmp_path: Path) -> None:
    provider = Provider()
    await run(ScriptedBackend(echo), ["a"], tools=[provider], checkpoint_dir=tmp_path)
    options: dict[str, Any] = {"task": "{it}", "tools": [provider], "checkpoint_dir": tmp_path}
    [again] = await BatchAgent.run(inputs=["a"], backend="http://127.0.0.1:1", **options)
    assert (again.output, provider.started) == ("a", 1)


async def test_a_finished_stream_whose_inputs_raise_yields_recorded_results(tmp_path: Path) -> None:
    def broken() -> Iterator[str]:
        yield from "ab"
        raise OSError("gone")

    await run(ScriptedBackend(echo), ["a", "b"], checkpoint_dir=tmp_path)
    got = []
    with pytest.raises(RunStopped, match="after 2: OSError: gone"):  # noqa: PT012
        async for result in stream(Refusing(), broken(), checkpoint_dir=tmp_path):
            got.append(result.output)
    assert got == ["a", "b"]


def test_run_sync_of_a_finished_run_needs_no_server(tmp_path: Path) -> None:
    asyncio.run(run(ScriptedBackend(echo), ["a"], checkpoint_dir=tmp_path))
    [again] = BatchAgent.run_sync(task="{it}", inputs=["a"], backend="local://", checkpoint_dir=tmp_path)
    assert again.output == "a"
