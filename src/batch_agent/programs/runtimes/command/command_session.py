"""Sessions of a user's command, which is started once per prompt."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path

from ....core.fast_dataclass import dataclass
from ....core.program_runtime import ProgramFailed, ProgramResult
from ....supervisor import ExitResult, Program, ProgramCommand, ProgramError, ProgramLimits, ProgramLost, start_program
from ...workspace.workspace import Workspace, WorkspaceRoot
from ..environment import last_output
from .command_template import CommandTemplate, names_task, replay_conversation

STDOUT = "stdout"
_MAX_ANSWER_BYTES = 8_000_000
_LIMITS = ProgramLimits(max_bytes=_MAX_ANSWER_BYTES)


@dataclass(frozen=True, slots=True)
class CommandSessions:
    """Session factory; sessions share nothing."""

    command: Sequence[str]
    env: Mapping[str, str]
    answer: str
    base_environment: Mapping[str, str] = field(repr=False)
    workspaces: WorkspaceRoot

    async def open_session(self, agent: str) -> "CommandSession":
        return CommandSession(self, await self.workspaces.create(agent))


@dataclass(slots=True)
class CommandSession:
    """One agent's workspace, and its conversation so far, which the program does not remember."""

    sessions: CommandSessions
    workspace: Workspace
    _exchanges: list[tuple[str, str]] = field(default_factory=list)

    async def prompt(self, text: str) -> ProgramResult:
        answer = await self._run(replay_conversation(self._exchanges, text))
        self._exchanges.append((text, answer))
        return ProgramResult(self.workspace.relativize(answer), await self.workspace.changes())

    async def aclose(self) -> None:
        await self.workspace.remove()

    async def _run(self, task: str) -> str:
        file = None if self.sessions.answer == STDOUT else self.workspace.folder / self.sessions.answer
        if file is not None:
            with suppress(OSError):
                file.unlink()
        try:
            async with start_program(self._command(task), _LIMITS) as program:
                out = await _output(program, keep=file is None)
                ended = await program.wait()
        except ProgramError as error:
            raise ProgramFailed(str(error), retryable=isinstance(error, ProgramLost)) from error
        if ended.code != 0:
            raise _failed(self.sessions.command[0], ended, out)
        output = out if file is None else await asyncio.to_thread(_read, file)
        return output.decode(errors="replace").strip()

    def _command(self, task: str) -> ProgramCommand:
        sessions = self.sessions
        template = CommandTemplate(self.workspace.address, self.workspace.folder, task)
        cwd = {"PWD": str(self.workspace.folder)}  # some programs take their directory from it
        environment = {
            **sessions.base_environment,
            **cwd,
            **sessions.workspaces.environment,
            **template.environment(sessions.env),
        }
        stdin = None if names_task(sessions.command, sessions.env) else task
        return ProgramCommand(template.command(sessions.command), environment, self.workspace.folder, stdin)


async def _output(program: Program, *, keep: bool) -> bytes:
    if keep:
        return await program.whole_output()
    program.discard_output()
    return b""


def _failed(name: str, ended: ExitResult, out: bytes) -> ProgramFailed:
    output = ended.err if ended.err.strip() else (out or ended.out).decode(errors="replace")
    return ProgramFailed(f"{name!r} failed, exit status {ended.code}: {last_output(output)}", retryable=ended.code < 0)


def _read(file: Path) -> bytes:
    """Raises ProgramFailed. Links are not followed: an agent could make them point anywhere."""
    try:
        if file.is_symlink() or not file.is_file():
            raise ProgramFailed(f"The program did not write its answer to {file.name!r}.")
        with file.open("rb") as answer:
            return answer.read(_MAX_ANSWER_BYTES)
    except OSError as error:
        raise ProgramFailed(f"The answer in {file.name!r} cannot be read: {error.strerror}.") from error
