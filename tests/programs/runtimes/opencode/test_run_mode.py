"""An OpenCode for each agent, on a stand-in that does what it is told."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from tests.support.runtime_contexts import FakeModelAccess, fake_opencode, runtime_context

from batch_agent.core.errors import SpecError
from batch_agent.core.messages import Assistant, ToolResults, User
from batch_agent.core.program_runtime import AgentSession, ProgramFailed, SessionFactory
from batch_agent.core.requests import Usage
from batch_agent.programs.runtimes import OpenCodeRuntime

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def sessions(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SessionFactory]:
    folder = tmp_path_factory.mktemp("process")
    runtime = OpenCodeRuntime(mode="process", command=fake_opencode(folder))
    async with runtime.open(runtime_context(folder / "runtime_context", FakeModelAccess())) as sessions:
        yield sessions


@asynccontextmanager
async def seated(sessions: SessionFactory, agent: str = "one") -> AsyncIterator[AgentSession]:
    seat = await sessions.open_session(agent)
    try:
        yield seat
    finally:
        await seat.aclose()


async def test_events_are_decoded_into_text_calls_and_usage(sessions: SessionFactory) -> None:
    async with seated(sessions) as seat:
        result = await seat.prompt("WRITE new.txt hello\nSAY it is done")
    assert (result.text, result.turns, result.usage) == ("it is done", 2, Usage(200, 120, 20))
    assert [type(each) for each in result.transcript] == [User, Assistant, ToolResults, Assistant]
    assert [call.name for call in result.calls] == ["write"]
    assert result.changes is not None
    assert [file.path for file in result.changes.files] == ["new.txt"]


async def test_a_second_prompt_continues_the_session_in_another_process(sessions: SessionFactory) -> None:
    async with seated(sessions) as seat:
        await seat.prompt("WRITE new.txt hello\nSAY it is done")
        again = await seat.prompt("TELL count")
    assert (again.text, again.turns) == ("4", 1)
    assert len(again.transcript) == 6


async def test_agents_have_separate_home_directories(sessions: SessionFactory) -> None:
    async def home(agent: str) -> str:
        async with seated(sessions, agent) as seat:
            return (await seat.prompt("TELL env XDG_DATA_HOME")).text

    async with asyncio.TaskGroup() as group:
        homes = [group.create_task(home(agent)) for agent in ("a", "b", "c")]
    assert len({task.result() for task in homes}) == 3


async def test_an_error_event_is_reported_with_its_own_message(sessions: SessionFactory) -> None:
    async with seated(sessions) as seat:
        with pytest.raises(ProgramFailed, match="the model is on fire"):
            await seat.prompt("FAIL the model is on fire")


async def test_a_program_that_ends_without_output_fails(sessions: SessionFactory) -> None:
    async with seated(sessions) as seat:
        with pytest.raises(ProgramFailed, match="exit status 3: no output"):
            await seat.prompt("DIE")


async def test_cancelling_an_agent_kills_its_program(sessions: SessionFactory, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    async with seated(sessions) as seat:
        async with asyncio.TaskGroup() as group:
            work = group.create_task(seat.prompt(f"RUN echo $PPID > {pid}\nHANG"))
            async with asyncio.timeout(60):
                while not (pid.exists() and pid.read_text().strip()):
                    await asyncio.sleep(0.01)
            work.cancel()
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)


async def test_output_beyond_the_limit_fails_the_agent(tmp_path: Path) -> None:
    runtime = OpenCodeRuntime(mode="process", command=fake_opencode(tmp_path, **{"is loud": True}))
    async with runtime.open(runtime_context(tmp_path / "runtime_context")) as sessions, seated(sessions) as seat:
        with pytest.raises(ProgramFailed, match="more than 32000000 bytes"):
            await seat.prompt("SAY hello")


async def test_the_program_gets_only_the_given_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GH_TOKEN", "HF_TOKEN"):
        monkeypatch.setenv(name, "hush")
    runtime = OpenCodeRuntime(mode="process", command=fake_opencode(tmp_path), env={"GH_TOKEN": "given"})
    runtime.check()
    assert "given" not in f"{runtime!r}{runtime.description}"
    async with (
        runtime.open(runtime_context(tmp_path / "runtime_context", FakeModelAccess())) as sessions,
        seated(sessions) as seat,
    ):
        assert (await seat.prompt("TELL env GH_TOKEN")).text == "given"
        assert (await seat.prompt("TELL env HF_TOKEN")).text == "nothing"
    with pytest.raises(SpecError, match="env must be a mapping of strings to strings"):
        OpenCodeRuntime(command=fake_opencode(tmp_path), env={"A": 1}).check()  # type: ignore[dict-item]
