"""OpenCode for a run, a program for each agent: `opencode run`, once for everything that the agent is asked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ....core.fast_dataclass import dataclass
from ....core.messages import Message, User
from ....core.program_runtime import ProgramFailed, ProgramResult
from ....supervisor import ProgramCommand, ProgramError, ProgramLimits, ProgramLost, start_program
from ...workspace.workspace import Workspace, WorkspaceRoot
from ..environment import last_output
from .config import AGENT, PROVIDER, write_config
from .messages import ServerEvent, answered, failed, gathered, read_event

_LIMITS = ProgramLimits(max_bytes=256_000_000, max_line_bytes=32_000_000)


@dataclass(frozen=True, slots=True)
class RunSessions:
    """Agents that share nothing."""

    program: str
    workshop: WorkspaceRoot
    environment: Callable[[Path], Mapping[str, str]]
    """For an OpenCode whose home is to be in this folder."""

    async def open_session(self, agent: str) -> "RunSession":
        place = await self.workshop.place(agent)
        return RunSession(self.program, place, await place.furnish(lambda: self._furnish(place)))

    def _furnish(self, place: Workspace) -> Mapping[str, str]:
        write_config(place.folder, place.address)
        return self.environment(place.beside / "opencode")


@dataclass(slots=True)
class RunSession:
    """One agent: a folder, and what its last OpenCode called the session."""

    program: str
    place: Workspace
    environment: Mapping[str, str]
    _session: str | None = None
    _transcript: Sequence[Message] = ()

    async def prompt(self, text: str) -> ProgramResult:
        events = await self._run(text)
        self._session = next((event.sessionID for event in events if event.sessionID), self._session)
        got = answered([*self._transcript, User(text)], gathered(events))
        self._transcript = got.transcript
        return replace(got, text=self.place.from_here(got.text), changes=await self.place.changes())

    async def aclose(self) -> None:
        await self.place.leave()

    async def _run(self, text: str) -> list[ServerEvent]:
        folder = self.place.folder
        command = ProgramCommand(self._arguments(), {**self.environment, "PWD": str(folder)}, folder, text)
        try:
            async with start_program(command, _LIMITS) as program:
                events = [event async for line in program.lines() if (event := read_event(line)) is not None]
                ended = await program.wait()
        except ProgramError as error:
            raise ProgramFailed(str(error), retryable=isinstance(error, ProgramLost)) from error
        for event in events:
            if event.error is not None:
                raise failed(event.error)
        if ended.code != 0:
            said = last_output(ended.err)
            raise ProgramFailed(f"`opencode run` failed, exit status {ended.code}: {said}", retryable=ended.code < 0)
        return events

    def _arguments(self) -> list[str]:
        model = f"{PROVIDER}/{self.place.address.model}"
        arguments = [self.program, "run", "--format", "json", "--thinking", "--agent", AGENT, "--model", model]
        # With a title of ours, the model is not asked for one.
        return [*arguments, *(["--title", AGENT] if self._session is None else ["--session", self._session])]
