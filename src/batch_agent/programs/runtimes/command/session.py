"""A command of the user's at work, once for everything that an agent is asked."""

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
from .template import CommandTemplate, names_task, replay_conversation

STDOUT = "stdout"
_LONGEST = 8_000_000
_LIMITS = ProgramLimits(max_bytes=_LONGEST)


@dataclass(frozen=True, slots=True)
class CommandSessions:
    """Agents that share nothing."""

    command: Sequence[str]
    env: Mapping[str, str]
    answer: str
    outside: Mapping[str, str] = field(repr=False)
    workshop: WorkspaceRoot

    async def open_session(self, agent: str) -> "CommandSession":
        return CommandSession(self, await self.workshop.place(agent))


@dataclass(slots=True)
class CommandSession:
    """One agent: a folder, with what was said so far, which the program does not remember."""

    crew: CommandSessions
    place: Workspace
    _said: list[tuple[str, str]] = field(default_factory=list)

    async def prompt(self, text: str) -> ProgramResult:
        answer = await self._run(replay_conversation(self._said, text))
        self._said.append((text, answer))
        return ProgramResult(self.place.from_here(answer), await self.place.changes())

    async def aclose(self) -> None:
        await self.place.leave()

    async def _run(self, task: str) -> str:
        file = None if self.crew.answer == STDOUT else self.place.folder / self.crew.answer
        if file is not None:
            with suppress(OSError):
                file.unlink()
        try:
            async with start_program(self._command(task), _LIMITS) as program:
                out = await _output(program, is_wanted=file is None)
                ended = await program.wait()
        except ProgramError as error:
            raise ProgramFailed(str(error), retryable=isinstance(error, ProgramLost)) from error
        if ended.code != 0:
            raise _failed(self.crew.command[0], ended, out)
        said = out if file is None else await asyncio.to_thread(_read, file)
        return said.decode(errors="replace").strip()

    def _command(self, task: str) -> ProgramCommand:
        crew = self.crew
        words = CommandTemplate(self.place.address, self.place.folder, task)
        place = {"PWD": str(self.place.folder)}  # some take it for the folder that they are in
        environment = {**crew.outside, **place, **crew.workshop.environment, **words.environment(crew.env)}
        stdin = None if names_task(crew.command, crew.env) else task
        return ProgramCommand(words.command(crew.command), environment, self.place.folder, stdin)


async def _output(program: Program, *, is_wanted: bool) -> bytes:
    if is_wanted:
        return await program.whole_output()
    program.discard_output()
    return b""


def _failed(name: str, ended: ExitResult, out: bytes) -> ProgramFailed:
    said = ended.err if ended.err.strip() else (out or ended.out).decode(errors="replace")
    return ProgramFailed(f"{name!r} failed, exit status {ended.code}: {last_output(said)}", retryable=ended.code < 0)


def _read(file: Path) -> bytes:
    """Raises ProgramFailed. No link is followed: an agent could have it lead anywhere."""
    try:
        if file.is_symlink() or not file.is_file():
            raise ProgramFailed(f"The program was to write its answer to {file.name!r}, and did not.")
        with file.open("rb") as answer:
            return answer.read(_LONGEST)
    except OSError as error:
        raise ProgramFailed(f"The answer in {file.name!r} cannot be read: {error.strerror}.") from error
