"""An agent's story, as people read it: told from checkpoints that real runs left."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from batch_agent import BackendError, BatchAgent, ErrorKind, Tool, Usage
from batch_agent.core.facts import CarriedOver, Claimed, Compacted, Fact, Replied, Returned, Settled, Shortened, Started
from batch_agent.core.messages import Thought, ToolCall, ToolResult
from batch_agent.core.program_runtime import ProgramTrace
from batch_agent.core.requests import Reply, Request
from batch_agent.core.results import CallRecord, Changes, FileChange
from batch_agent.observe.checkpoint_results import recorded_config
from batch_agent.observe.text.agent_trace import agent_trace_lines
from batch_agent.store.reader import CheckpointReader
from batch_agent.testing import Answer, ScriptedBackend, by_turn, call, calls, say


@Tool.define(effect="read")
async def look(name: str) -> str:
    """Look up."""
    if name == "nobody":
        raise LookupError("there is nobody")
    return f"about {name}\n" + "x" * 5_000


class Long(BaseModel):
    years: int
    name: str


def told(folder: Path, agent: str = "0", full: bool = False, is_running: bool = True, **options: Any) -> str:
    with CheckpointReader(folder) as reader:
        key = reader.find(agent).key
        config, facts = recorded_config(reader.plan(), **options), reader.facts(key)
        return "\n".join(line.plain for line in agent_trace_lines(config, key, facts, full=full, is_running=is_running))


async def run(folder: Path, backend: ScriptedBackend, **options: Any) -> None:
    await BatchAgent.run(task="Who is {it}?", inputs=["Ada"], backend=backend, checkpoint_dir=folder, **options)


async def test_an_agent_trace_has_input_turns_calls_and_answer(tmp_path: Path) -> None:
    both = calls(ToolCall("", "look", '{"name": "Ada"}'), ToolCall("", "look", '{"name": "nobody"}'))
    await run(tmp_path, ScriptedBackend(by_turn(both, say("Ada is 36.", Usage(1200, 900, 20)))), tools=[look])
    said = told(tmp_path)
    assert "input     Ada\n" in said
    assert "task      Who is Ada?\n" in said
    assert '  call    look {"name": "Ada"}\n          -> about Ada xxx' in said
    assert "... (5,010 characters)" in said
    assert "-> error: LookupError: there is nobody" in said
    assert "s, executed" in said
    assert "1,200 tokens in (75% cached), 20 out" in said
    assert said.endswith("answered  Ada is 36.")
    assert max(map(len, said.splitlines())) < 300


async def test_an_agent_trace_says_where_a_shared_result_stands_and_why(tmp_path: Path) -> None:
    twice = by_turn(call("look", name="Ada"), call("look", name="Ada"), call("look", name="nobody"), say("Ada is 36."))
    await run(tmp_path, ScriptedBackend(twice), tools=[look], shared_results="first")
    said = told(tmp_path)
    assert "placed first: only this agent had asked for it so far; " in said
    assert " characters behind it are computed again" in said
    assert "placed first: it is among the references already, so nothing is computed again" in said
    assert said.count("placed first") == 2
    assert "inline" not in said


async def test_an_agent_trace_says_why_results_were_left_behind_their_calls(tmp_path: Path) -> None:
    def backend() -> ScriptedBackend:
        return ScriptedBackend(by_turn(call("look", name="Ada"), say("Ada is 36.")))

    await run(tmp_path / "alone", backend(), tools=[look], shared_results="auto")
    assert "inline: only this agent had asked for it so far" in told(tmp_path / "alone")
    rows = [{"question": f"{number} {'who ' * 2_000}"} for number in range(3)]
    options: dict[str, Any] = {"checkpoint_dir": tmp_path / "all", "progress": False, "shared_results": "auto"}
    await BatchAgent.run(task="{question}", inputs=rows, backend=backend(), tools=[look], **options)
    last = told(tmp_path / "all", "2")
    assert "inline: asked for by 3 agents so far; if it were placed first, 8," in last


async def test_an_agent_trace_shows_a_repeated_answer_with_its_request(tmp_path: Path) -> None:
    answers = iter(["no number", "7"])
    await run(tmp_path, ScriptedBackend(lambda request: say(next(answers))), output_schema=int)
    said = told(tmp_path)
    assert "retry   That answer cannot be used" in said
    assert said.endswith("answered  7")


async def test_an_agent_trace_has_the_kind_of_a_failure(tmp_path: Path) -> None:
    await run(tmp_path, ScriptedBackend(lambda request: say("no number")), output_schema=int, max_retries=1)
    said = told(tmp_path)
    assert said == told(tmp_path, max_retries=1)
    assert said.count("\nfailed    invalid_output: No usable answer after 2 tries") == 1
    assert said.count("\n  retry ") == 1
    assert "running" not in said


async def test_an_agent_that_its_backend_failed_has_failed(tmp_path: Path) -> None:
    down = BackendError(ErrorKind.BAD_REQUEST, "down")
    await run(tmp_path, ScriptedBackend(by_turn(call("look", name="Ada"), down)), tools=[look])
    assert "\nfailed    bad_request: down (after" in told(tmp_path)
    assert "running" not in told(tmp_path)


async def test_each_failed_attempt_is_in_the_story(tmp_path: Path) -> None:
    down = BackendError(ErrorKind.SERVER, "down")
    for _ in range(2):
        await run(tmp_path, ScriptedBackend(by_turn(call("look", name="Ada"), down)), tools=[look], max_retries=0)
    await run(tmp_path, ScriptedBackend(by_turn(call("look", name="Ada"), say("Ada is 36."))), tools=[look])
    said = told(tmp_path)
    assert said.count("\nfailed    server: down") == 2
    assert said.endswith("answered  Ada is 36.")


async def test_an_agent_that_no_process_runs_was_interrupted(tmp_path: Path) -> None:
    started = asyncio.Event()

    async def wait(request: Request) -> Answer:
        started.set()
        await asyncio.Event().wait()
        return say("never")

    running = asyncio.create_task(run(tmp_path, ScriptedBackend(wait)))
    await started.wait()
    running.cancel()
    await asyncio.wait([running])
    assert told(tmp_path, is_running=False).endswith("interrupted turn 1 has no reply yet")


async def test_a_full_story_has_the_prompt_the_tools_the_schema_and_every_character(tmp_path: Path) -> None:
    task = "Who is {it}? " + "t" * 9_000
    long = ToolCall("", "look", '{"name": "' + "n" * 3_000 + '"}')
    backend = ScriptedBackend(by_turn(calls(long), say('{"years": 36, "name": "' + "a" * 9_000 + '"}')))
    await BatchAgent.run(
        task=task,
        inputs=["Ada" * 1_000],
        backend=backend,
        checkpoint_dir=tmp_path,
        tools=[look],
        output_schema=Long,
        system_prompt="s" * 9_000,
    )
    said = told(tmp_path, full=True)
    for text in ("s" * 9_000, "t" * 9_000, "Ada" * 1_000, "n" * 3_000, "x" * 5_000, "a" * 9_000):
        assert text in said
    assert "look: Look up." in said
    assert '"years":{' in said
    assert "characters)" not in said


@pytest.mark.slow
async def test_an_agent_trace_has_claims_without_an_outcome(tmp_path: Path) -> None:
    paying = asyncio.Event()

    @Tool.define(effect="write")
    async def pay(cents: int) -> str:
        """Pay."""
        if cents == 1:
            return "paid 1"
        paying.set()
        await asyncio.Event().wait()
        return "never"

    both = calls(ToolCall("", "pay", '{"cents": 1}'), ToolCall("", "pay", '{"cents": 2}'))
    running = asyncio.create_task(run(tmp_path, ScriptedBackend(lambda request: both), tools=[pay]))
    await paying.wait()
    running.cancel()
    await asyncio.wait([running])
    said = told(tmp_path)
    assert '{"cents": 1}\n          -> paid 1' in said
    assert '{"cents": 2}\n          -> claimed, no outcome' in said
    assert said.endswith("turn 1 has tool calls without a result")


class Person(BaseModel):
    age: int


@pytest.mark.parametrize("traits", [{}, {"json_schema": False}])
async def test_an_agent_trace_shows_actions_like_native_calls(tmp_path: Path, traits: dict[str, Any]) -> None:
    backend = ScriptedBackend(
        by_turn(say('{"tool": "look", "arguments": {"name": "Ada"}}'), say('{"final": {"age": 36}}')),
        **{"native_tools": False, **traits},
    )
    await run(tmp_path, backend, tools=[look], output_schema=Person)
    said = told(tmp_path)
    assert 'call    look {"name":"Ada"}' in said
    assert said.endswith('answered  {"age":36}')


def test_model_output_in_an_agent_trace_has_no_escape_sequences(tmp_path: Path) -> None:
    said = tell(Replied(Reply("red \x1b[31m alert\x9b1m\nsecond line", "stop", Usage())))
    assert "\x1b" not in said
    assert "\x9b" not in said
    assert "reply   red ␛[31m alert�1m\n          second line" in said


def test_an_agent_trace_has_everything_recorded_of_a_turn() -> None:
    wanted = ToolCall("c", "pay", "{}")
    reply = Reply("hm", "calls", Usage(10, 0, 5), (wanted,), (Thought("I should pay"), Thought(redacted="?")))
    made = ToolResult(wanted, "paid", seconds=1.5, source="restored")
    said = tell(
        CarriedOver((made,)),
        Replied(reply, queued=0.5, seconds=2.0, ttft=0.25, attempts=3),
        Claimed(wanted),
        Settled(made),
        Returned((made,)),
        Replied(Reply("half", "length", Usage())),
        Replied(Reply("no", "refusal", Usage())),
    )
    assert "restored  call of an earlier attempt: pay {}" in said
    assert "turn 1    2.00 s, queued 0.50 s, first token after 0.25 s, 3 attempts; 10 tokens in, 5 out" in said
    assert "thought I should pay" in said
    assert "thought (encrypted)" in said
    assert "1.50 s, restored" in said
    assert "ended   truncated at the token limit" in said
    assert "failed    refused: The model declined: no" in said


def test_an_agent_trace_has_the_actions_of_a_program() -> None:
    changes = Changes((FileChange("a.py", "modified", 2, 1),), "--- a/a.py\n+++ b/a.py\n+new\n")
    records = (CallRecord("edit", '{"path": "a.py"}', True, 0.5), CallRecord("bash", "{}", False, 0.5))
    said = tell(
        Replied(Reply("done", "stop", Usage(10, 0, 5)), seconds=9.0, work=ProgramTrace(3, (), records, changes))
    )
    assert "program 3 requests to the model" in said
    assert 'call    edit {"path": "a.py"}\n' in said
    assert "call    bash {} (failed)" in said
    assert "changed 1 file changed, +2 -1\n          --- a/a.py\n          +++ b/a.py\n          +new" in said
    assert said.endswith("answered  done")


def test_an_agent_trace_has_compactions() -> None:
    wanted = ToolCall("c", "look", "{}")
    asked = (Replied(Reply("", "calls", Usage(10, 0, 5), (wanted,))), Returned((ToolResult(wanted, "x" * 5_000),)))
    elided = Compacted((Shortened(0, "elided"), Shortened(1, "cut")), 13_900, 6_100)
    assert "compacted 2 tool results elided or truncated; from about 13,900 to 6,100 tokens" in tell(
        *asked, *asked, elided
    )
    mixed = Compacted((Shortened(0, "said", is_summary=True), Shortened(1, "elided")), 13_900, 6_100, 2.5)
    said = tell(*asked, *asked, mixed)
    assert (
        "compacted 1 tool result elided or truncated, 1 summarized in 2.50 s; from about 13,900 to 6,100 tokens" in said
    )
    assert said.endswith("running   turn 3 has no reply yet")


def tell(*facts: Fact) -> str:
    plan = {
        "system prompt": "", "tools": [], "tool mode": "native", "output schema": [None, None],
        "model": "m", "sampling": {"stop": []}, "max_turns": 10,
        "question": {"task": "t", "tools": [], "output schema": None},
    }  # fmt: skip
    lines = agent_trace_lines(recorded_config(plan), "k", (Started(0, {"ö": 1}, "do it"), *facts))
    return "\n".join(line.plain for line in lines)
