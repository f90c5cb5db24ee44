"""Running a program, from its start to the end of all that it started."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from .channel import SupervisorChannel
from .command import CannotStart, ExitResult, ProgramCommand, ProgramLimits, TooMuchOutput
from .command_codec import encode_command
from .line_reader import LineReader, LineSplitter
from .output_stream import OutputStream
from .spawn import Spawned, spawn
from .stdin_pipe import StdinPipe

_LIMITS = ProgramLimits()


class Program:
    """A program that runs. What it writes to stdout waits for its reader; without one, `mute` it."""

    def __init__(self, name: str, spawned: Spawned, limits: ProgramLimits) -> None:
        self._name = name
        self._limits = limits
        self._out = OutputStream(spawned.out)
        self._err = OutputStream(spawned.err)
        self._err.mute()
        self._input = None if spawned.input is None else StdinPipe(spawned.input)
        self._lines = LineReader(self._out, LineSplitter(name, limits))
        self._link = SupervisorChannel(name, spawned.process, spawned.link, self._over)

    def lines(self) -> AsyncIterator[bytes]:
        """Of stdout, without their ends, for one reader at a time; who comes again goes on where he stopped. Raises
        TooMuchOutput."""
        return self._lines

    async def whole_output(self) -> bytes:
        """All of stdout, until it is closed. Raises TooMuchOutput."""
        got = bytearray()
        while chunk := await self._out.take():
            got += chunk
            if len(got) > self._limits.most_bytes:
                most = self._limits.most_bytes
                raise TooMuchOutput(f"{self._name!r} wrote more than {most} bytes to stdout, and was stopped.")
        return bytes(got)

    def mute(self) -> None:
        """From now on nobody reads stdout: the program may write what it likes, and only an excerpt is kept."""
        self._out.mute()

    async def write(self, data: bytes) -> None:
        """To stdin, which must be a pipe. Raises BrokenPipeError once nobody reads there."""
        assert self._input is not None, "stdin is no pipe"
        await self._input.write(data)

    def close_input(self) -> None:
        """Nothing more will be written to stdin. May be called again."""
        if self._input is not None:
            self._input.close()

    @property
    def out(self) -> bytes:
        """The beginning and the end of what it has written to stdout since it was muted."""
        return bytes(self._out.excerpt)

    @property
    def err(self) -> str:
        """The beginning and the end of what it has written to stderr so far."""
        return str(self._err.excerpt)

    async def ended(self) -> ExitResult:
        """How it ended, once nothing of it is left; mutes it. Raises ProgramLost. May be asked again, also later."""
        self.mute()
        code = await self._link.ended()
        return ExitResult(code, self.out, self.err)

    def hurry(self) -> None:
        """It is killed at once, whatever its grace."""
        self._link.hurry()

    async def _start(self, ordered: bytes) -> None:
        try:
            await self._link.start(ordered)
        except CannotStart as error:
            said = f" {self.err.strip()}" if self.err.strip() else ""
            raise CannotStart(f"{error}{said}") from error

    async def _stop(self) -> None:
        self.mute()
        await self._link.stop()

    def _over(self) -> None:
        self.close_input()
        self._out.end()
        self._err.end()


@asynccontextmanager
async def start_program(command: ProgramCommand, limits: ProgramLimits = _LIMITS) -> AsyncIterator[Program]:
    """A program for as long as the block lasts; when it is left, for whatever reason, the program is stopped, and
    nothing that it started is there any more. Raises CannotStart when it does not get to run."""
    ordered = encode_command(command, limits.grace)
    name = command.argv[0]
    try:
        spawned = spawn(command.stdin)
    except OSError as error:
        raise CannotStart(f"{name!r} cannot be started: {error}.") from error
    program = Program(name, spawned, limits)
    try:
        await program._start(ordered)
        yield program
    finally:
        await program._stop()


async def run_program(command: ProgramCommand, limits: ProgramLimits = _LIMITS) -> ExitResult:
    """All of a program: raises CannotStart before it has run, TooMuchOutput or ProgramLost after."""
    async with start_program(command, limits) as program:
        out = await program.whole_output()
        return replace(await program.ended(), out=out)
