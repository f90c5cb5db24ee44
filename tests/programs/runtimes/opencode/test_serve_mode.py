"""One OpenCode for many agents, on a stand-in that does what it is told."""

import asyncio
import os
import shlex
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.support.runtime_contexts import FakeModelAccess, fake_opencode, runtime_context

from batch_agent.core.errors import SpecError
from batch_agent.core.messages import Assistant, ToolResults, User
from batch_agent.core.program_runtime import AgentSession, ProgramFailed, SessionFactory
from batch_agent.core.requests import Usage
from batch_agent.programs.runtimes import OpenCodeRuntime

pytestmark = pytest.mark.asyncio(loop_scope="module")

Open = Callable[..., AbstractAsyncContextManager[SessionFactory]]
_LONG = 60.0
_OUTSIDE = {"OPENAI_API_KEY": "secret", "OPENCODE_CONFIG": "mine", "TMPDIR": "/tmp", "OWN": "it's"}
_STRAY = "import os, time; os.setsid(); print(os.getpid(), file=open('{}', 'w'), flush=True); time.sleep(600)"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "read.me").write_text("as it was\n")
    return folder


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared(
    tmp_path_factory: pytest.TempPathFactory, project: Path
) -> AsyncIterator[tuple[SessionFactory, FakeModelAccess]]:
    """For tests that leave it as it was."""
    folder, model_access = tmp_path_factory.mktemp("shared"), FakeModelAccess()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _OUTSIDE.items():
            patch.setenv(name, value)
        runtime = OpenCodeRuntime(workdir=project, command=fake_opencode(folder))
        async with runtime.open(runtime_context(folder / "runtime_context", model_access)) as sessions:
            yield sessions, model_access


@pytest.fixture
def sessions(shared: tuple[SessionFactory, FakeModelAccess]) -> SessionFactory:
    return shared[0]


@pytest.fixture
def model_access(shared: tuple[SessionFactory, FakeModelAccess]) -> FakeModelAccess:
    return shared[1]


@pytest.fixture
def opened(tmp_path: Path, project: Path) -> Open:
    """One that may be broken."""

    @asynccontextmanager
    async def sessions(
        model_access: FakeModelAccess | None = None, *, broken: Mapping[str, Any] = {}, **output: Any
    ) -> AsyncIterator[SessionFactory]:
        runtime = OpenCodeRuntime(workdir=project, command=fake_opencode(tmp_path, **broken), **output)
        runtime.check()
        async with runtime.open(runtime_context(tmp_path / "runtime_context", model_access)) as opened:
            yield opened

    return sessions


@asynccontextmanager
async def seated(sessions: SessionFactory, agent: str = "one") -> AsyncIterator[AgentSession]:
    seat = await sessions.open_session(agent)
    try:
        yield seat
    finally:
        await seat.aclose()


async def output(sessions: SessionFactory, text: str, agent: str = "one") -> str:
    async with seated(sessions, agent) as seat:
        return (await seat.prompt(text)).text


async def test_text_actions_and_usage_of_an_agent_are_reported(sessions: SessionFactory, project: Path) -> None:
    async with seated(sessions) as seat:
        result = await seat.prompt("WRITE new.txt hello\nSAY it is done")
    assert (result.text, result.turns, result.usage) == ("it is done", 2, Usage(200, 120, 20))
    assert [(call.name, call.ok, call.seconds) for call in result.calls] == [("write", True, 0.5)]
    assert [type(each) for each in result.transcript] == [User, Assistant, ToolResults, Assistant]
    assert result.changes is not None
    assert [(file.path, file.kind) for file in result.changes.files] == [("new.txt", "added")]
    assert "+hello" in result.changes.patch
    assert [file.name for file in project.iterdir()] == ["read.me"]


async def test_a_second_prompt_continues_the_session_and_reports_only_new_messages(sessions: SessionFactory) -> None:
    async with seated(sessions) as seat:
        await seat.prompt("WRITE new.txt hello\nSAY it is done")
        again = await seat.prompt("SAY again")
    assert (again.text, again.turns, again.calls) == ("again", 1, ())
    assert len(again.transcript) == 6
    assert again.changes is not None
    assert len(again.changes.files) == 1


async def test_each_agent_has_its_own_folder_and_key(sessions: SessionFactory, model_access: FakeModelAccess) -> None:
    agents = [f"agent/{n}" for n in range(8)]
    async with asyncio.TaskGroup() as group:
        work = [group.create_task(output(sessions, "WRITE same.txt mine\nTELL key", agent)) for agent in agents]
    assert [task.result() for task in work] == [f"key-of-{agent}" for agent in agents]
    hidden = [list(model_access.masks_by_agent[agent]) for agent in agents]
    assert len({paths[0] for paths in hidden}) == 8
    assert {tuple(model_access.masks_by_agent[agent].values()) for agent in agents} == {
        ("/batch-agent/project", "/batch-agent/beside", "/batch-agent/house", "-batch-agent-project")
    }


async def test_paths_in_an_answer_are_relative_to_the_workspace(
    sessions: SessionFactory, model_access: FakeModelAccess
) -> None:
    async with seated(sessions) as seat:
        [folder, *_] = model_access.masks_by_agent["one"]
        result = await seat.prompt(f"SAY see {folder}/src/a.py in {folder}")
    assert result.text == "see src/a.py in ."


async def test_opencode_has_its_own_home_and_its_commands_have_that_of_the_user(
    sessions: SessionFactory, model_access: FakeModelAccess
) -> None:
    async with seated(sessions) as seat:
        homes = [(await seat.prompt(f"TELL env {name}")).text for name in ("HOME", "XDG_CONFIG_HOME", "OPENAI_API_KEY")]
        command = "RUN echo $HOME $TMPDIR $OWN [$OPENCODE_SERVER_PASSWORD$OPENCODE_CONFIG_CONTENT$XDG_CONFIG_HOME]"
        [ran] = (await seat.prompt(command)).transcript[-2:-1]
    [_, _, runtime_context, _] = model_access.masks_by_agent["one"]
    assert homes[0].startswith(runtime_context)
    assert homes[1].startswith(runtime_context)
    assert homes[2] == "nothing"
    assert isinstance(ran, ToolResults)
    own = os.environ.get("XDG_CONFIG_HOME", "")
    assert ran.results[0].content.strip() == f"{os.environ['HOME']} /tmp it's [{own}]"


async def test_a_session_error_is_reported_with_its_own_message(sessions: SessionFactory) -> None:
    with pytest.raises(ProgramFailed, match="the model is on fire") as to_failure:
        await output(sessions, "FAIL the model is on fire")
    assert not to_failure.value.retryable


async def test_an_empty_answer_is_an_answer(sessions: SessionFactory) -> None:
    assert await output(sessions, "nothing to do") == ""


async def test_cancelling_an_agent_leaves_no_process(sessions: SessionFactory, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    stray = shlex.join([sys.executable, "-S", "-c", _STRAY.format(pids)])
    async with seated(sessions) as seat:
        async with asyncio.TaskGroup() as group:
            work = group.create_task(seat.prompt(f"RUN ({stray} >/dev/null 2>&1 &)\nHANG"))
            await until(lambda: pids.exists() and pids.read_text() != "")
            work.cancel()
        pid = int(pids.read_text())
        await until(lambda: not is_running(pid))
        assert (await seat.prompt("SAY still here")).text == "still here"


async def test_agents_of_a_dead_opencode_server_are_retryable_on_a_new_one(opened: Open) -> None:
    async with opened() as sessions, seated(sessions, "two") as other:
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(failure(other, "HANG"))
            died = await failure(await sessions.open_session("one"), "DIE")
        assert died.retryable
        assert waiting.result().retryable
        assert "exit status 3" in str(died)
        assert await output(sessions, "SAY hello") == "hello"
        assert (await failure(other, "SAY hello")).retryable


async def test_an_opencode_server_that_keeps_dying_is_restarted_a_limited_number_of_times(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batch_agent.programs.runtimes.opencode.serve_mode._MAX_STARTS", 2)
    async with opened() as sessions:
        for _ in range(2):
            assert (await failure(await sessions.open_session("one"), "DIE")).retryable
        with pytest.raises(ProgramFailed, match="exited 2 times") as to_failure:
            await sessions.open_session("one")
        assert not to_failure.value.retryable


async def test_a_server_that_does_not_abort_a_session_is_replaced(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batch_agent.programs.runtimes.opencode.opencode_client._ABORT_TIMEOUT", 0.1)
    async with opened(broken={"deaf": True}) as sessions:
        first = await output(sessions, "TELL pid")
        seat = await sessions.open_session("one")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await seat.prompt("HANG")
        await seat.aclose()
        assert await output(sessions, "TELL pid") != first


async def test_unreadable_messages_fail_the_agent(opened: Open) -> None:
    async with opened(broken={"garbage": True}) as sessions:
        with pytest.raises(ProgramFailed, match="cannot be read"):
            await output(sessions, "SAY hello")


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({"start": "dies"}, "exited immediately, exit status 1.*no database"),
        ({"start": "is sick"}, "exited immediately: exit status 1.*the port is taken"),
        (
            {"version": "1.2.3"},
            r"is OpenCode 1\.2\.3; 1\.18\.18 or newer is required. Run `npm install -g opencode-ai`",
        ),
        ({"version": "flag provided but not defined", "version status": 2}, "is not a known version of OpenCode"),
    ],
)
async def test_a_wrong_opencode_version_is_one_clear_error_before_anything_starts(
    opened: Open, broken: dict[str, Any], why: str
) -> None:
    with pytest.raises(SpecError, match=f"(?s){why}"):
        async with opened(broken=broken):
            pass


async def test_an_opencode_server_that_is_not_ready_in_time_is_given_up(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batch_agent.programs.runtimes.opencode.opencode_client._START_TIMEOUT", 0.5)
    with pytest.raises(SpecError, match="did not start in"):
        async with opened(broken={"start": "hangs"}):
            pass


@pytest.mark.parametrize("mode", ["serve", "process"])
async def test_a_configuration_rejected_by_opencode_is_an_error_before_anything_starts(opened: Open, mode: str) -> None:
    with pytest.raises(SpecError, match=r"rejected its configuration.*such nonsense"):
        async with opened(mode=mode, config={"refused": "such nonsense"}):
            pass


async def test_workspaces_are_kept_in_the_requested_directory(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model_access = FakeModelAccess()
    async with opened(model_access, keep=True) as sessions:
        await output(sessions, "WRITE new.txt hello\nSAY done")
    [kept, private_dir, *_] = (Path(path) for path in model_access.masks_by_agent["one"])
    assert (kept / "new.txt").read_text() == "hello"
    assert list(private_dir.iterdir()) == [kept]


async def failure(seat: AgentSession, text: str) -> ProgramFailed:
    with pytest.raises(ProgramFailed) as to_failure:
        await seat.prompt(text)
    return to_failure.value


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(_LONG):
        while not is_so():
            await asyncio.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
