"""Process mode of OpenCode: `opencode run`, once per prompt of an agent."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ....core.fast_dataclass import dataclass
from ....core.messages import Message, User
from ....core.program_runtime import ProgramFailed, ProgramResult
from ....supervisor import ProgramCommand, ProgramError, ProgramLimits, ProgramLost, start_program
from ...workspace.workspace import Workspace, WorkspaceRoot
from ..environment import last_output
from .opencode_config import AGENT, PROVIDER, write_config
from .session_messages import ServerEvent, group_by_message, read_event, to_failure, to_result

_LIMITS = ProgramLimits(max_bytes=256_000_000, max_line_bytes=32_000_000)


@dataclass(frozen=True, slots=True)
class RunSessions:
    """Session factory. Sessions share nothing."""

    program: str
    workspaces: WorkspaceRoot
    environment: Callable[[Path], Mapping[str, str]]
    """Returns the environment of an OpenCode process whose home is in this directory."""

    async def open_session(self, agent: str) -> "RunSession":
        workspace = await self.workspaces.create(agent)
        return RunSession(self.program, workspace, await workspace.write_files(lambda: self._furnish(workspace)))

    def _furnish(self, workspace: Workspace) -> Mapping[str, str]:
        write_config(workspace.folder, workspace.address)
        return self.environment(workspace.private_dir / "opencode")


@dataclass(slots=True)
class RunSession:
    """One agent's workspace and the id of its OpenCode session."""

    program: str
    workspace: Workspace
    environment: Mapping[str, str]
    _session: str | None = None
    _transcript: Sequence[Message] = ()

    async def prompt(self, text: str) -> ProgramResult:
        events = await self._run(text)
        self._session = next((event.sessionID for event in events if event.sessionID), self._session)
        result = to_result([*self._transcript, User(text)], group_by_message(events))
        self._transcript = result.transcript
        return replace(result, text=self.workspace.relativize(result.text), changes=await self.workspace.changes())

    async def aclose(self) -> None:
        await self.workspace.remove()

    async def _run(self, text: str) -> list[ServerEvent]:
        folder = self.workspace.folder
        command = ProgramCommand(self._arguments(), {**self.environment, "PWD": str(folder)}, folder, text)
        try:
            async with start_program(command, _LIMITS) as program:
                events = [event async for line in program.lines() if (event := read_event(line)) is not None]
                ended = await program.wait()
        except ProgramError as error:
            raise ProgramFailed(str(error), retryable=isinstance(error, ProgramLost)) from error
        for event in events:
            if event.error is not None:
                raise to_failure(event.error)
        if ended.code != 0:
            output = last_output(ended.err)
            raise ProgramFailed(f"`opencode run` failed, exit status {ended.code}: {output}", retryable=ended.code < 0)
        return events

    def _arguments(self) -> list[str]:
        model = f"{PROVIDER}/{self.workspace.address.model}"
        arguments = [self.program, "run", "--format", "json", "--thinking", "--agent", AGENT, "--model", model]
        # Without a title, OpenCode asks the model for one.
        return [*arguments, *(["--title", AGENT] if self._session is None else ["--session", self._session])]
