"""Program under supervision, from its start to the end of all processes that it started."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from .command import CannotStart, ExitResult, ProgramCommand, ProgramLimits, TooMuchOutput
from .command_codec import encode_command
from .line_reader import LineReader, LineSplitter
from .output_stream import OutputStream
from .spawn import Spawned, spawn
from .stdin_pipe import StdinPipe
from .supervisor_channel import SupervisorChannel

_LIMITS = ProgramLimits()


class Program:
    """A running program. It blocks when stdout is not read: without a reader, call `discard_output`."""

    def __init__(self, name: str, spawned: Spawned, limits: ProgramLimits) -> None:
        self._name = name
        self._limits = limits
        self._out = OutputStream(spawned.out)
        self._err = OutputStream(spawned.err)
        self._err.discard()
        self._input = None if spawned.input is None else StdinPipe(spawned.input)
        self._lines = LineReader(self._out, LineSplitter(name, limits))
        self._channel = SupervisorChannel(name, spawned.process, spawned.channel, self._on_end)

    def lines(self) -> AsyncIterator[bytes]:
        """Lines of stdout, without line ends, for one reader at a time. A new loop continues where the last one
        stopped. Raises TooMuchOutput."""
        return self._lines

    async def whole_output(self) -> bytes:
        """All of stdout, until it is closed. Raises TooMuchOutput."""
        output = bytearray()
        while chunk := await self._out.read():
            output += chunk
            if len(output) > self._limits.max_bytes:
                limit = self._limits.max_bytes
                raise TooMuchOutput(f"{self._name!r} wrote more than {limit} bytes to stdout and was stopped.")
        return bytes(output)

    def discard_output(self) -> None:
        """Discards stdout from now on, without limit, but for an excerpt."""
        self._out.discard()

    async def write(self, data: bytes) -> None:
        """Writes to stdin, which must be a pipe. Raises BrokenPipeError once the program has closed it."""
        assert self._input is not None, "stdin is not a pipe"
        await self._input.write(data)

    def close_input(self) -> None:
        """Closes stdin. May be called more than once."""
        if self._input is not None:
            self._input.close()

    @property
    def out(self) -> bytes:
        """The beginning and the end of stdout since it is discarded."""
        return bytes(self._out.excerpt)

    @property
    def err(self) -> str:
        """The beginning and the end of stderr so far."""
        return str(self._err.excerpt)

    async def wait(self) -> ExitResult:
        """The exit result, once no process of the program is left. Discards stdout. May be called more than once.
        Raises ProgramLost."""
        self.discard_output()
        code = await self._channel.wait()
        return ExitResult(code, self.out, self.err)

    def kill(self) -> None:
        """Kills the program at once, without its grace period."""
        self._channel.kill()

    async def _start(self, command: bytes) -> None:
        try:
            await self._channel.start(command)
        except CannotStart as error:
            stderr = f" {self.err.strip()}" if self.err.strip() else ""
            raise CannotStart(f"{error}{stderr}") from error

    async def _stop(self) -> None:
        self.discard_output()
        await self._channel.stop()

    def _on_end(self) -> None:
        self.close_input()
        self._out.end()
        self._err.end()


@asynccontextmanager
async def start_program(command: ProgramCommand, limits: ProgramLimits = _LIMITS) -> AsyncIterator[Program]:
    """Runs a program for the duration of the context. On exit, for whatever reason, the program is stopped and every
    process that it started is killed. Raises CannotStart."""
    encoded = encode_command(command, limits.grace)
    name = command.argv[0]
    try:
        spawned = spawn(command.stdin)
    except OSError as error:
        raise CannotStart(f"{name!r} cannot be started: {error}.") from error
    program = Program(name, spawned, limits)
    try:
        await program._start(encoded)
        yield program
    finally:
        await program._stop()


async def run_program(command: ProgramCommand, limits: ProgramLimits = _LIMITS) -> ExitResult:
    """Runs a program to its end. Raises CannotStart, TooMuchOutput and ProgramLost."""
    async with start_program(command, limits) as program:
        out = await program.whole_output()
        return replace(await program.wait(), out=out)
