"""Supervised program: its start, its standard input, and the end of all processes that it started."""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from typing import IO, Literal

from ..core.fast_dataclass import dataclass
from . import supervisor_process
from .command import CannotStart, ExitResult, ProgramCommand, ProgramLimits, Stdin, TooMuchOutput, encode_command
from .output_stream import LineReader, LineSplitter, OutputStream
from .supervisor_channel import SupervisorChannel


@dataclass(frozen=True, slots=True)
class Spawned:
    """A supervisor that waits for its command. Its owner closes the descriptors."""

    process: "subprocess.Popen[bytes]"
    channel: socket.socket
    out: int
    err: int
    input: int | None = None
    """The write end of its stdin, if that is a pipe."""


def spawn(stdin: str | Literal[Stdin.PIPE] | None) -> Spawned:
    """Starts a supervisor. Raises OSError."""
    with ExitStack() as ours, ExitStack() as theirs:
        channel, other_end = socket.socketpair()
        ours.enter_context(channel)
        theirs.enter_context(other_end)
        out, out_end = _pipe(ours, theirs)
        err, err_end = _pipe(ours, theirs)
        read, write = _stdin(stdin, ours, theirs)
        process = subprocess.Popen(  # noqa: S603 - a file of this package
            [sys.executable, "-I", "-S", os.path.abspath(supervisor_process.__file__), str(other_end.fileno())],
            stdin=read,
            stdout=out_end,
            stderr=err_end,
            pass_fds=(other_end.fileno(),),
            start_new_session=True,  # a signal to our process group must not kill the process that cleans up
        )
        ours.pop_all()
    channel.setblocking(False)
    return Spawned(process, channel, out, err, write)


def _stdin(
    stdin: str | Literal[Stdin.PIPE] | None, ours: ExitStack, theirs: ExitStack
) -> tuple[int | IO[bytes], int | None]:
    """The program's standard input and, if that is a pipe, its write end."""
    if stdin is None:
        return subprocess.DEVNULL, None
    if isinstance(stdin, str):
        return theirs.enter_context(_file(stdin)), None
    read_end, write_end = os.pipe()
    theirs.callback(os.close, read_end)
    ours.callback(os.close, write_end)
    return read_end, write_end


def _pipe(ours: ExitStack, theirs: ExitStack) -> tuple[int, int]:
    read_end, write_end = os.pipe()
    ours.callback(os.close, read_end)
    theirs.callback(os.close, write_end)
    return read_end, write_end


def _file(text: str) -> IO[bytes]:
    """Temporary file that the program reads at its own pace."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - its caller closes it
    file.write(text.encode(errors="replace"))
    file.seek(0)
    return file


class StdinPipe:
    """Pipe that a program reads from. One task writes at a time, and waits while the pipe is full."""

    def __init__(self, descriptor: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptor: int | None = descriptor
        self._is_writable = asyncio.Event()
        os.set_blocking(descriptor, False)

    async def write(self, data: bytes) -> None:
        """Raises BrokenPipeError once the program has closed its end."""
        rest = memoryview(data)
        while rest:
            if self._descriptor is None:
                raise BrokenPipeError("standard input is closed")
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:
                await self._wait(self._descriptor)

    def close(self) -> None:
        """Closes the write end; the program reads the rest of the data first. May be called more than once."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._loop.remove_writer(descriptor)
            os.close(descriptor)
            self._is_writable.set()

    async def _wait(self, descriptor: int) -> None:
        self._is_writable.clear()
        self._loop.add_writer(descriptor, self._is_writable.set)
        try:
            await self._is_writable.wait()
        finally:
            if self._descriptor is not None:
                self._loop.remove_writer(descriptor)


_LIMITS = ProgramLimits()


class Program:
    """A running program. It blocks while stdout is not read, so call `discard_output` if there is no reader."""

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
        """Reads stdout until it is closed. Raises TooMuchOutput."""
        output = bytearray()
        while chunk := await self._out.read():
            output += chunk
            if len(output) > self._limits.max_bytes:
                limit = self._limits.max_bytes
                raise TooMuchOutput(f"{self._name!r} wrote more than {limit} bytes to stdout and was stopped.")
        return bytes(output)

    def discard_output(self) -> None:
        """Discards all further stdout, without a limit, except for an excerpt."""
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
        """The beginning and the end of the discarded stdout."""
        return bytes(self._out.excerpt)

    @property
    def err(self) -> str:
        """The beginning and the end of stderr so far."""
        return str(self._err.excerpt)

    async def wait(self) -> ExitResult:
        """Waits until no process of the program is left, and returns the exit result. Discards stdout. May be called
        more than once. Raises ProgramLost."""
        self.discard_output()
        code = await self._channel.wait()
        return ExitResult(code, self.out, self.err)

    def kill(self) -> None:
        """Kills the program at once, without a grace period."""
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
    """Runs a program for the duration of the context. On exit, for whatever reason, stops the program and kills every
    process that it started. Raises CannotStart."""
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
