"""A command of the user's at work, once for everything that an agent is asked."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path

from ....core.fast_dataclass import dataclass
from ....core.program_runtime import Answered, ProgramFailed
from ....supervisor import Command, Ended, Limits, Program, ProgramError, ProgramLost, running
from ...workspace.workspace import Place, Workshop
from ..environment import last_words
from .template import Words, names_task, retold

STDOUT = "stdout"
_LONGEST = 8_000_000
_LIMITS = Limits(most_bytes=_LONGEST)


@dataclass(frozen=True, slots=True)
class ProcessCrew:
    """Agents that share nothing."""

    command: Sequence[str]
    env: Mapping[str, str]
    answer: str
    outside: Mapping[str, str] = field(repr=False)
    workshop: Workshop

    async def seat(self, agent: str) -> "ProcessSeat":
        return ProcessSeat(self, await self.workshop.place(agent))


@dataclass(slots=True)
class ProcessSeat:
    """One agent: a folder, with what was said so far, which the program does not remember."""

    crew: ProcessCrew
    place: Place
    _said: list[tuple[str, str]] = field(default_factory=list)

    async def ask(self, text: str) -> Answered:
        answer = await self._run(retold(self._said, text))
        self._said.append((text, answer))
        return Answered(self.place.from_here(answer), await self.place.changes())

    async def aclose(self) -> None:
        await self.place.leave()

    async def _run(self, task: str) -> str:
        file = None if self.crew.answer == STDOUT else self.place.folder / self.crew.answer
        if file is not None:
            with suppress(OSError):
                file.unlink()
        try:
            async with running(self._command(task), _LIMITS) as program:
                out = await _output(program, is_wanted=file is None)
                ended = await program.ended()
        except ProgramError as error:
            raise ProgramFailed(str(error), retryable=isinstance(error, ProgramLost)) from error
        if ended.code != 0:
            raise _failed(self.crew.command[0], ended, out)
        said = out if file is None else await asyncio.to_thread(_read, file)
        return said.decode(errors="replace").strip()

    def _command(self, task: str) -> Command:
        crew = self.crew
        words = Words(self.place.address, self.place.folder, task)
        place = {"PWD": str(self.place.folder)}  # some take it for the folder that they are in
        environment = {**crew.outside, **place, **crew.workshop.environment, **words.environment(crew.env)}
        stdin = None if names_task(crew.command, crew.env) else task
        return Command(words.command(crew.command), environment, self.place.folder, stdin)


async def _output(program: Program, *, is_wanted: bool) -> bytes:
    if is_wanted:
        return await program.whole_output()
    program.mute()
    return b""


def _failed(name: str, ended: Ended, out: bytes) -> ProgramFailed:
    said = ended.err if ended.err.strip() else (out or ended.out).decode(errors="replace")
    return ProgramFailed(f"{name!r} failed, exit status {ended.code}: {last_words(said)}", retryable=ended.code < 0)


def _read(file: Path) -> bytes:
    """Raises ProgramFailed. No link is followed: an agent could have it lead anywhere."""
    try:
        if file.is_symlink() or not file.is_file():
            raise ProgramFailed(f"The program was to write its answer to {file.name!r}, and did not.")
        with file.open("rb") as answer:
            return answer.read(_LONGEST)
    except OSError as error:
        raise ProgramFailed(f"The answer in {file.name!r} cannot be read: {error.strerror}.") from error
