"""The real Codex CLI as the program of agents, on models that say what they are told to."""

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from tests.live.codex import codex_program
from tests.live.opencode import make_project, processes

from batch_agent import BackendError, BatchAgent, CodexRuntime, ErrorKind, SpecError
from batch_agent.core.messages import Thought, ToolResults, User
from batch_agent.core.requests import Reply, Request, Usage
from batch_agent.testing import ScriptedBackend, by_turn, call, say

PATCHING_MODEL = "gpt-5.5"
"""A name for which Codex offers apply_patch, a custom tool."""
PATCH = """*** Begin Patch
*** Add File: new.txt
+of {name}
*** End Patch"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path / "project")


def codex(project: Path | None = None, **options: Any) -> CodexRuntime:
    return CodexRuntime(workdir=project, command=codex_program(), **options)


def notes(request: Request) -> Reply:
    """Runs a command, patches, answers: each with the usage of a turn."""
    name = users(request)[-1].split()[-1]
    return by_turn(
        call("exec_command", cmd=f"cat read.me && echo {name} >> read.me && echo key=$BATCH_AGENT_CODEX_KEY. $PWD"),
        call("apply_patch", input=PATCH.format(name=name)),
        say(f"noted {name} in /batch-agent/project/new.txt", Usage(100, 50, 10)),
    )(request)  # type: ignore[return-value]


def users(request: Request) -> list[str]:
    return [message.text for message in request.messages if isinstance(message, User)]


def outputs(messages: Any) -> str:
    return "".join(result.content for each in messages if isinstance(each, ToolResults) for result in each.results)


async def test_four_agents_at_once_have_separate_workspaces_and_equal_prompts(project: Path) -> None:
    backend = ScriptedBackend(notes, context_tokens=32_000)
    names = [f"ship{number}" for number in range(4)]
    results = await BatchAgent.run(
        task="Note {it}",
        inputs=names,
        backend=backend,
        runtime=codex(project, model=PATCHING_MODEL),
        max_agents=4,
    )
    assert [result.output for result in results.raise_for_failures()] == [f"noted {name} in new.txt" for name in names]
    assert {(result.turns, result.usage) for result in results} == {(3, Usage(100, 50, 10))}
    for name, result in zip(names, results, strict=True):
        assert [(each.name, each.ok) for each in result.tool_calls] == [("exec_command", True), ("apply_patch", True)]
        assert result.changes is not None
        assert [(file.path, file.kind) for file in result.changes.files] == [
            ("new.txt", "added"),
            ("read.me", "modified"),
        ]
        assert f"+of {name}" in result.changes.patch
        assert "harbour keeps a register" in outputs(result.transcript)
        assert "key=. /batch-agent/project" in outputs(result.transcript)  # commands have no key
    assert sorted(file.name for file in project.iterdir()) == ["AGENTS.md", "read.me"]
    assert len(backend.requests) == 3 * 4  # nothing else is asked for
    [prompt] = {request.prompt for request in backend.requests}
    assert {"exec_command", "write_stdin", "apply_patch"} <= {tool.name for tool in prompt.tools}
    assert not {"web_search", "view_image", "request_user_input"} & {tool.name for tool in prompt.tools}
    # All that precedes the task is the same for all agents, and no request changes what was sent before.
    assert len({tuple(users(request)[:-1]) for request in backend.requests}) == 1
    for name in names:
        turns = [request.messages for request in backend.requests if f"Note {name}" in users(request)]
        assert all(later[: len(turn)] == turn for turn, later in pairwise(turns))


@pytest.mark.nightly
async def test_a_model_that_codex_does_not_know_thinks_and_runs_commands(project: Path) -> None:
    thinking = Reply("", "calls", Usage(50, 0, 9), call("exec_command", cmd="ls").calls, (Thought("A list, then."),))
    backend = ScriptedBackend(by_turn(thinking, say("It has read.me.")), context_tokens=32_000)
    runtime = codex(project, prompt="You keep notes short.")
    [result] = await BatchAgent.run(task="What is {it}", inputs=["here"], backend=backend, runtime=runtime)
    assert result.output == "It has read.me."
    assert "AGENTS.md" in outputs(result.transcript)
    request = backend.requests[-1]
    assert request.prompt.system.startswith("You keep notes short.")
    assert len(request.prompt.system) < 1000
    assert "Answer in one sentence." in str(request.messages) + request.prompt.system  # of AGENTS.md
    assert "A list, then." in str(request.messages)


async def test_an_invalid_answer_is_requested_again_in_the_same_session(project: Path) -> None:
    class Note(BaseModel):
        ships: int

    def script(request: Request) -> Reply:
        return say('{"ships": 1}' if "one ship" in str(request.messages) else "one ship")

    backend = ScriptedBackend(script, context_tokens=32_000)
    [result] = await BatchAgent.run(
        task="Count {it}", inputs=["ships"], backend=backend, runtime=codex(project), output_schema=Note
    )
    assert result.output == Note(ships=1)
    assert len(backend.requests) == result.turns == 2
    first, second = backend.requests
    assert second.messages[: len(first.messages)] == first.messages


async def test_an_error_of_the_model_is_reported_unchanged_and_not_repeated(project: Path) -> None:
    def fail(request: Request) -> Reply:
        raise BackendError(ErrorKind.SERVER, "HTTP 500 from http://gpu-7:8000: broken", status=500)

    backend = ScriptedBackend(fail, context_tokens=32_000)
    [result] = await BatchAgent.run(
        task="Do {it}", inputs=["it"], backend=backend, runtime=codex(project), max_retries=0
    )
    assert result.error is not None
    assert result.error.kind is ErrorKind.SERVER
    assert len(backend.requests) == 1


@pytest.mark.nightly
async def test_a_stream_that_begins_before_the_reply_is_read_to_its_end(project: Path) -> None:
    backend = ScriptedBackend(lambda _: say("at last"), seconds=6.0, context_tokens=32_000)
    [result] = await BatchAgent.run(task="Do {it}", inputs=["it"], backend=backend, runtime=codex(project))
    assert (result.output, len(backend.requests)) == ("at last", 1)


@pytest.mark.nightly
async def test_a_long_conversation_is_compacted_before_it_exceeds_the_window(project: Path) -> None:
    def script(request: Request) -> Reply:
        if "CONTEXT CHECKPOINT" in users(request)[-1]:
            return say("It was listed.")
        if "It was listed." in str(request.messages):
            return say("done")
        return Reply("", "calls", Usage(31_000, 0, 500), call("exec_command", cmd="ls").calls)

    backend = ScriptedBackend(script, context_tokens=32_000)
    [result] = await BatchAgent.run(task="Do {it}", inputs=["it"], backend=backend, runtime=codex(project))
    assert (result.output, result.turns) == ("done", 3)


async def test_processes_started_by_an_agent_are_killed_at_its_timeout(project: Path) -> None:
    mark = f"61{os.getpid()}"
    command = f"setsid sleep {mark}1 & sleep {mark}2"
    backend = ScriptedBackend(by_turn(call("exec_command", cmd=command), say("never")), context_tokens=32_000)
    [result] = await BatchAgent.run(
        task="Do {it}", inputs=["it"], backend=backend, runtime=codex(project), timeout_per_agent=8
    )
    assert result.error is not None
    assert list(processes(lambda words: words.startswith(f"sleep {mark}"))) == []
    assert list(processes(lambda words: codex_program() in words)) == []


async def test_a_configuration_rejected_by_codex_is_an_error_before_any_request(project: Path) -> None:
    backend = ScriptedBackend(lambda _: say("never"), context_tokens=32_000)
    with pytest.raises(SpecError, match="Codex rejected its configuration"):
        await BatchAgent.run(
            task="Do {it}",
            inputs=["it"],
            backend=backend,
            runtime=codex(project, config={"model_context_window": "wide"}),
        )
    assert backend.requests == []
