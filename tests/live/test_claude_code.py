"""The real Claude Code as the program of agents, on a model that says what it is told to."""

import asyncio
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from tests.live.claude_code import claude_runtime
from tests.live.opencode import make_project

from batch_agent import BatchAgent, ProcessRuntime
from batch_agent.core.messages import User
from batch_agent.core.requests import Reply, Request, Usage
from batch_agent.testing import ScriptedBackend, by_turn, call, say


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path / "project")


def notes(request: Request) -> Reply:
    """Reads, writes, answers."""
    [name] = {name for name in ("Ariel", "Dido", "Calypso") if f"Note {name}" in str(users(request))}
    return by_turn(
        call("Bash", command="cat read.me", description="reads it"),
        call("Write", file_path="/batch-agent/project/new.txt", content=f"of {name}\n"),
        say(f"noted {name} in /batch-agent/project/new.txt", Usage(100, 50, 10)),
    )(request)  # type: ignore[return-value]


def users(request: Request) -> list[str]:
    return [message.text for message in request.messages if isinstance(message, User)]


def with_environment(runtime: ProcessRuntime, **more: str) -> ProcessRuntime:
    return replace(runtime, env={**(runtime.env or {}), **more})


async def test_agents_have_separate_workspaces_and_equal_prompts(project: Path, tmp_path: Path) -> None:
    backend, home = ScriptedBackend(notes, context_tokens=200_000), tmp_path / "home"
    home.mkdir()
    names = ["Ariel", "Dido", "Calypso"]
    results = await BatchAgent.run(
        task="Note {it}",
        inputs=names,
        backend=backend,
        runtime=with_environment(claude_runtime(project, "Bash,Read,Write"), HOME=str(home)),
        max_agents=3,
    )
    assert [result.output for result in results.raise_for_failures()] == [f"noted {name} in new.txt" for name in names]
    for name, result in zip(names, results, strict=True):
        assert [(each.name, each.ok) for each in result.tool_calls] == [("Bash", True), ("Write", True)]
        assert "harbour keeps a register" in str(result.transcript)
        assert result.changes is not None
        assert [(file.path, file.kind) for file in result.changes.files] == [("new.txt", "added")]
        assert f"+of {name}" in result.changes.patch
    assert sorted(file.name for file in project.iterdir()) == ["AGENTS.md", "read.me"]
    assert len(backend.requests) == 3 * 3  # nothing else is asked for
    [prompt] = {request.prompt for request in backend.requests}
    assert {tool.name for tool in prompt.tools} == {"Bash", "Read", "Write"}
    for name in names:
        turns = [request.messages for request in backend.requests if f"Note {name}" in str(users(request))]
        assert all(later[: len(turn)] == turn for turn, later in pairwise(turns))
    assert list(home.iterdir()) == []  # its own files are beside the working copy


async def test_claude_code_sends_requests_to_the_gateway_and_nowhere_else(project: Path) -> None:
    """The proxy stands for every other host."""
    asked = list[bytes]()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.close()

    backend = ScriptedBackend(by_turn(call("Bash", command="ls", description="lists"), say("It has read.me.")))
    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as proxy:
        url = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        runtime = with_environment(claude_runtime(project, "Bash"), HTTP_PROXY=url, HTTPS_PROXY=url)
        [result] = await BatchAgent.run(task="What is {it}", inputs=["here"], backend=backend, runtime=runtime)
    assert (result.output, len(backend.requests)) == ("It has read.me.", 2)
    assert asked == []
