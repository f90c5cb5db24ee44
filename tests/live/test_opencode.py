"""The real OpenCode as the program of agents, on models that say what they are told to."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from tests.live.opencode import make_project, opencode_program, processes

from batch_agent import BatchAgent, ErrorKind, OpenCodeRuntime, SpecError
from batch_agent.core.messages import ToolResults, User
from batch_agent.core.requests import Reply, Request, Usage
from batch_agent.testing import ScriptedBackend, by_turn, call, say

Mode = Literal["serve", "process"]
_PATIENCE = 120.0


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path / "project")


def opencode(project: Path | None = None, **options: Any) -> OpenCodeRuntime:
    return OpenCodeRuntime(workdir=project, command=opencode_program(), **options)


def notes(request: Request) -> Reply:
    """Reads, runs a command, writes, answers: each with the usage of a turn."""
    name = asked(request).split()[-1]
    steps: list[Reply] = [
        call("read", filePath="/batch-agent/project/read.me"),
        call("bash", command=f"echo {name} >> read.me", description="note it"),
        call("write", filePath="/batch-agent/project/new.txt", content=f"of {name}\n"),
        say(f"noted {name} in /batch-agent/project/new.txt", Usage(100, 50, 10)),
    ]
    return by_turn(*steps)(request)  # type: ignore[return-value]


def asked(request: Request) -> str:
    return next(message.text for message in request.messages if isinstance(message, User))


@pytest.mark.parametrize(("mode", "count"), [("serve", 8), pytest.param("process", 2, marks=pytest.mark.nightly)])
async def test_concurrent_agents_have_separate_workspaces_and_equal_prompts(
    project: Path, mode: Mode, count: int
) -> None:
    backend = ScriptedBackend(notes, context_tokens=32_000)
    names = [f"ship{number}" for number in range(count)]
    results = await BatchAgent.run(
        task="Note {it}", inputs=names, backend=backend, runtime=opencode(project, mode=mode), max_agents=8
    )
    assert [result.output for result in results.raise_for_failures()] == [f"noted {name} in new.txt" for name in names]
    assert {(result.turns, result.usage) for result in results} == {(4, Usage(100, 50, 10))}
    for name, result in zip(names, results, strict=True):
        assert [(each.name, each.ok) for each in result.tool_calls] == [("read", True), ("bash", True), ("write", True)]
        assert result.changes is not None
        assert [(file.path, file.kind) for file in result.changes.files] == [
            ("new.txt", "added"),
            ("read.me", "modified"),
        ]
        assert f"+of {name}" in result.changes.patch
        assert "harbour keeps a register" in told(result.transcript)
    assert sorted(file.name for file in project.iterdir()) == ["AGENTS.md", "read.me"]
    [prompt] = {request.prompt for request in backend.requests}
    assert "/batch-agent/project" in prompt.system
    assert "Answer in one sentence" in prompt.system
    assert len(backend.requests) == 4 * count  # no title is asked for, no summary


def told(transcript: Any) -> str:
    return "".join(result.content for each in transcript if isinstance(each, ToolResults) for result in each.results)


@pytest.mark.nightly
async def test_an_invalid_answer_is_requested_again_in_the_same_session(project: Path) -> None:
    class Note(BaseModel):
        ships: int

    def script(request: Request) -> Reply:
        users = sum(isinstance(message, User) for message in request.messages)
        return say("one ship" if users == 1 else '{"ships": 1}')

    backend = ScriptedBackend(script, context_tokens=32_000)
    [result] = await BatchAgent.run(
        task="Count {it}", inputs=["ships"], backend=backend, runtime=opencode(project), output_schema=Note
    )
    assert result.output == Note(ships=1)
    assert len(backend.requests) == result.turns == 2
    assert "one ship" in str(backend.requests[1].messages)


@pytest.mark.nightly
async def test_only_the_named_tools_are_shown_and_the_system_prompt_is_ours() -> None:
    backend = ScriptedBackend(by_turn(say("done")), context_tokens=4_000)
    runtime = opencode(tools=("read", "bash"), prompt="You keep {env:HOME} short.")
    await BatchAgent.run(task="Do {it}", inputs=["it"], backend=backend, runtime=runtime)
    [request] = backend.requests
    assert [tool.name for tool in request.prompt.tools] == ["bash", "read"]
    assert request.prompt.system.startswith("You keep {env:HOME} short.\n")
    assert len(request.prompt.system) < 700


async def test_access_outside_the_project_is_denied_and_the_agent_is_informed(project: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    steps = [call("write", filePath=str(outside), content="x"), call("read", filePath=str(outside)), say("sorry")]
    backend = ScriptedBackend(by_turn(*steps), context_tokens=32_000)
    [result] = await BatchAgent.run(task="Do {it}", inputs=["it"], backend=backend, runtime=opencode(project))
    assert result.output == "sorry"
    assert [each.ok for each in result.tool_calls] == [False, False]
    assert "rule which prevents you" in told(result.transcript)
    assert not outside.exists()


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["serve", "process"])
async def test_processes_started_by_an_agent_are_killed_at_its_timeout(project: Path, mode: Mode) -> None:
    mark = f"60{os.getpid()}"
    command = f"setsid sleep {mark}1 & trap '' TERM; sleep {mark}2; sleep {mark}3"
    backend = ScriptedBackend(by_turn(call("bash", command=command, description="wait")), context_tokens=32_000)

    async with running(
        BatchAgent.run(task="Do {it}", inputs=["it"], backend=backend, runtime=opencode(project, mode=mode))
    ) as run:
        await until(lambda: len(list(processes(lambda words: words.startswith(f"sleep {mark}")))) == 2, run)
        run.cancel()
    assert list(processes(lambda words: words.startswith(f"sleep {mark}"))) == []
    assert list(processes(lambda words: opencode_program() in words)) == []


@pytest.mark.nightly
async def test_a_server_that_is_killed_is_replaced_and_all_agents_answer(project: Path) -> None:
    backend = ScriptedBackend(notes, seconds=1.0, context_tokens=32_000)
    names = [f"ship{number}" for number in range(4)]
    async with running(
        BatchAgent.run(task="Note {it}", inputs=names, backend=backend, runtime=opencode(project))
    ) as run:
        await until(lambda: backend.in_flight > 0, run)
        [server] = processes(lambda words: words.startswith(f"{opencode_program()} serve"))
        os.kill(server, signal.SIGKILL)
    assert [result.output for result in run.result()] == [f"noted {name} in new.txt" for name in names]


@pytest.mark.nightly
async def test_an_error_of_the_model_is_reported_unchanged(project: Path) -> None:
    backend = ScriptedBackend(lambda _: say("never"), context_tokens=32_000)
    results = await BatchAgent.run(
        task="Do {it}", inputs=["it"], backend=backend, runtime=opencode(project), max_total_tokens=2_000
    )
    assert results[0].error is not None
    assert results[0].error.kind is ErrorKind.BUDGET


async def test_a_configuration_rejected_by_opencode_is_an_error_before_any_request(project: Path) -> None:
    backend = ScriptedBackend(lambda _: say("never"), context_tokens=32_000)
    for mode in ("serve", "process"):
        runtime = opencode(project, mode=mode, config={"permission": {"bash": 5}})
        with pytest.raises(SpecError, match="Expected PermissionRuleConfig"):
            await BatchAgent.run(task="Do {it}", inputs=["it"], backend=backend, runtime=runtime)
    assert backend.requests == []


@asynccontextmanager
async def running(run: Any) -> AsyncIterator["asyncio.Task[Any]"]:
    async with asyncio.TaskGroup() as group:
        yield group.create_task(run)


async def until(holds: Callable[[], bool], run: "asyncio.Task[Any]") -> None:
    async with asyncio.timeout(_PATIENCE):
        while not holds():
            assert not run.done(), "the run is over before it came to that"
            await asyncio.sleep(0.05)
